#include "snapshot/check_content.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "onnx_light/errors.h"
#include "snapshot/fields.h"
#include "snapshot/format.h"
#include "snapshot/payload_form.h"

namespace onnx_light::snapshot {
namespace {

void CheckName(const std::string& name, size_t index, std::set<std::string_view>& names) {
  const std::string path = "caches[" + std::to_string(index) + "]";
  if (name.empty()) throw ValueError("snapshot.name", path, "the name is empty");
  if (!IsUtf8(name)) throw ValueError("snapshot.name", path, "the name is no UTF-8");
  if (name.starts_with(kReservedPrefix)) {
    throw ValueError("snapshot.name", path,
                     "the name " + name + " begins with onnx_light., which is reserved");
  }
  if (!names.insert(name).second) {
    throw ValueError("snapshot.name", path, "a second cache with the name " + name);
  }
}

void CheckEnd(const NamedCache& named, const NamedCache& first) {
  const int64_t end = named.cache.end();
  if (static_cast<uint64_t>(end) > kMaxPadded) {
    throw ValueError("snapshot.too_large", named.name,
                     "ends at position " + std::to_string(end) +
                         ", a snapshot holds positions to " + std::to_string(kMaxPadded));
  }
  if (end == first.cache.end()) return;
  throw ValueError("snapshot.end", named.name,
                   "ends at position " + std::to_string(end) + ", but " + first.name + " at " +
                       std::to_string(first.cache.end()) +
                       ": all caches of a snapshot end at one position");
}

void CheckForms(const NamedCache& named) {
  int64_t number = 0;
  for (const PlacedPage& placed : named.cache.pages()) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (FormOf(placed.page->payload(side))) continue;
      throw ValueError("snapshot.format",
                       named.name + ".blocks[" + std::to_string(number) + "]." + Name(side),
                       "has a struct layout that is not known here, so nobody could find its parts "
                       "in a snapshot; it can be kept as a message");
    }
    ++number;
  }
}

std::string Shape(const TokenIds& tokens) {
  return "[" + (tokens.batch == 0 ? "" : std::to_string(tokens.batch) + ", ") +
         std::to_string(tokens.length) + "]";
}

void CheckTokens(const TokenIds& tokens, const SnapshotContent& content) {
  const int64_t end = content.caches.empty() ? 0 : content.caches.front().cache.end();
  if (tokens.batch < 0 || tokens.length != end) {
    throw ValueError("snapshot.tokens", "tokens",
                     "ids " + Shape(tokens) + " do not cover the positions 0 to " +
                         std::to_string(end) + " where the caches end");
  }
  for (const NamedCache& named : content.caches) {
    if (tokens.batch == 0 || named.cache.empty() || named.cache.batch() == tokens.batch) continue;
    throw ValueError("snapshot.tokens", "tokens",
                     "ids " + Shape(tokens) + " do not go with " + named.name +
                         ", whose batch is " + std::to_string(named.cache.batch()));
  }
  const uint64_t rows = tokens.batch == 0 ? 1 : tokens.batch;
  const uint64_t size = tokens.ids.size;
  if (size % 8 == 0 && size / 8 % rows == 0 &&
      size / 8 / rows == static_cast<uint64_t>(tokens.length)) {
    return;
  }
  throw ValueError("snapshot.tokens", "tokens",
                   std::to_string(size) + " bytes are no int64 ids " + Shape(tokens));
}

void CheckKeys(const KeyValues& entries, const char* argument, bool may_be_reserved) {
  std::set<std::string_view> keys;
  for (const auto& [key, value] : entries) {
    const std::string path = std::string(argument) + "[" + key + "]";
    if (!IsUtf8(key) || !IsUtf8(value)) {
      throw ValueError("snapshot.metadata", argument, "a key or its value is no UTF-8");
    }
    if (!may_be_reserved && key.starts_with(kReservedPrefix)) {
      throw ValueError("snapshot.metadata", path, "keys that begin with onnx_light. are reserved");
    }
    if (!keys.insert(key).second) {
      throw ValueError("snapshot.metadata", path, "the key is given twice");
    }
  }
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t size = Utf8SequenceSize(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

void CheckContent(const SnapshotContent& content) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < content.caches.size(); ++i) {
    CheckName(content.caches[i].name, i, names);
    CheckEnd(content.caches[i], content.caches.front());
    CheckForms(content.caches[i]);
  }
  if (content.tokens) CheckTokens(*content.tokens, content);
  CheckKeys(content.identity, "identity", true);
  CheckKeys(content.metadata, "metadata", false);
}

}  // namespace onnx_light::snapshot
