#include "onnx_light/cache_policy.h"

#include <algorithm>
#include <vector>

#include "onnx_light/errors.h"
#include "quant/numbers.h"

namespace onnx_light {
namespace {

[[noreturn]] void Throw(const std::string& path, const std::string& message) {
  throw ValueError("quant.policy", path, message);
}

std::vector<std::string_view> Words(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\r\f\v";
  std::vector<std::string_view> words;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
    if (text.empty()) return words;
    words.push_back(text.substr(0, text.find_first_of(kSpaces)));
    text.remove_prefix(words.back().size());
  }
}

int64_t ParseTokens(std::string_view text, const std::string& option) {
  if (const auto tokens = ParseCount(text)) return *tokens;
  Throw(option, "'" + std::string(text) + "' is no number of tokens, 0 or more");
}

std::optional<DType> ParseOpen(std::string_view text) {
  if (text == "auto") return std::nullopt;
  const PageFormat format = PageFormat::Parse(text, "open");
  if (format.is_dense()) return format.dtype();
  Throw("open", "'" + std::string(text) + "' is not dense, as new tokens are");
}

// One of several "name=value".
class OptionReader {
 public:
  void Read(std::string_view word) {
    const size_t equal = word.find('=');
    const std::string name = LongName(word.substr(0, equal));
    if (equal == word.npos) {
      Throw(name, "no value, an option is written name=value");
    }
    for (const std::string& other : seen_) {
      if (other == name) Throw(name, "given twice");
    }
    seen_.push_back(name);
    Set(name, word.substr(equal + 1));
  }
  const CachePolicy& policy() const { return policy_; }

 private:
  static std::string LongName(std::string_view name) {
    if (name == "k") return "key";
    if (name == "v") return "value";
    return std::string(name);
  }

  void Set(const std::string& name, std::string_view value) {
    if (name == "key") {
      policy_.key = PageFormat::Parse(value, name);
    } else if (name == "value") {
      policy_.value = PageFormat::Parse(value, name);
    } else if (name == "open") {
      policy_.open = ParseOpen(value);
    } else if (name == "sink_tokens") {
      policy_.sink_tokens = ParseTokens(value, name);
    } else if (name == "recent_tokens") {
      policy_.recent_tokens = ParseTokens(value, name);
    } else {
      Throw(name, "unknown option, must be key, value, open, sink_tokens or recent_tokens");
    }
  }

  CachePolicy policy_;
  std::vector<std::string> seen_;
};

CachePolicy ParseWord(std::string_view word) {
  for (const PolicyPreset& preset : PolicyPresets()) {
    if (preset.name == word) return preset.policy;
  }
  CachePolicy policy;
  policy.key = policy.value = PageFormat::Parse(word, "policy");
  return policy;
}

CachePolicy Formats(PageFormat key, PageFormat value) {
  CachePolicy policy;
  policy.key = key;
  policy.value = value;
  return policy;
}

void CheckTokens(int64_t tokens, const char* name) {
  if (tokens < 0) Throw(name, std::to_string(tokens) + " is negative");
}

}  // namespace

CachePolicy CachePolicy::Parse(std::string_view text) {
  const std::vector<std::string_view> words = Words(text);
  if (words.empty()) Throw("policy", "the text is empty");
  if (words.size() == 1 && words[0].find('=') == text.npos) return ParseWord(words[0]);
  OptionReader reader;
  for (std::string_view word : words) reader.Read(word);
  return reader.policy();
}

std::string CachePolicy::Text() const {
  std::string text;
  const auto add = [&text](const char* name, std::string_view value) {
    text += (text.empty() ? "" : " ") + std::string(name) + "=" + std::string(value);
  };
  if (key) add("key", key->Text());
  if (value) add("value", value->Text());
  if (open) add("open", Name(*open));
  if (sink_tokens != 0) add("sink_tokens", std::to_string(sink_tokens));
  if (recent_tokens != 0) add("recent_tokens", std::to_string(recent_tokens));
  if (text.empty()) add("open", "auto");
  return text;
}

void CachePolicy::Validate() const {
  CheckTokens(sink_tokens, "sink_tokens");
  CheckTokens(recent_tokens, "recent_tokens");
}

std::span<const PolicyPreset> PolicyPresets() {
  using Type = PageType;
  static const PolicyPreset kPresets[] = {
      {"int8", Formats(PageFormat::Affine(Type::kInt8, ScaleKind::kChannel),
                       PageFormat::Affine(Type::kInt8, ScaleKind::kToken))},
      {"k8v8", Formats(PageFormat::Affine(Type::kUInt8, ScaleKind::kChannel),
                       PageFormat::Affine(Type::kInt8, ScaleKind::kToken))},
      {"k8v4", Formats(PageFormat::Affine(Type::kInt8, ScaleKind::kChannel),
                       PageFormat::Affine(Type::kUInt4, ScaleKind::kToken, 32))},
      {"int4", Formats(PageFormat::Affine(Type::kUInt4, ScaleKind::kChannel, 32),
                       PageFormat::Affine(Type::kUInt4, ScaleKind::kToken, 64))},
  };
  return kPresets;
}

}  // namespace onnx_light
