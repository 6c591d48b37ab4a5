// The text of messages. The first byte chooses the class, the rest is what is parsed.
#include <algorithm>

#include "fuzz.h"
#include "snapshot/check_content.h"

namespace onnx_light::fuzz {
namespace {

// The longest line for one byte of input: a field in the deepest message, with its name.
constexpr size_t kMaxTextPerByte = 2 * 100 + 100;

void CheckForm(const std::string& text) {
  int depth = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    Check(end != std::string::npos, "every line ends");
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.ends_with('}')) --depth;
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    Check(depth >= 0 && indent == 2 * static_cast<size_t>(depth), "lines are indented by depth");
    if (line.ends_with(" {")) ++depth;
    at = end + 1;
  }
  Check(depth == 0, "every message ends");
  const auto is_control = [](char c) { return (c >= 0 && c < ' ' && c != '\n') || c == '\x7f'; };
  Check(std::none_of(text.begin(), text.end(), is_control), "control characters are escaped");
  Check(snapshot::IsUtf8(text), "a text is UTF-8");
}

void Run(Input input) {
  const MessageInfo& info = ClassOf(input.Byte());
  const std::span<const std::byte> bytes = input.Rest();
  const std::unique_ptr<Tree> tree = TryParse(info, {bytes, {}});
  if (tree == nullptr) return;
  const std::string text = ToText(info, *tree->message);
  Check(text.size() <= kMaxTextPerByte * bytes.size(), "the size of a text follows the input");
  CheckForm(text);

  Tree copy(info);
  Merge(copy.arena, info, *copy.message, *tree->message);
  Check(ToText(info, *copy.message) == text, "a copy has the same text");
  ClearUnknownFields(copy.arena, *copy.message);
  Check(ToText(info, *copy.message) == text, "unknown fields are no part of the text");
}

}  // namespace
}  // namespace onnx_light::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnx_light::fuzz::Run({data, size});
  return 0;
}
