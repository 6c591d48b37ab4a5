// What a snapshot holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onnx_light/bytes.h"
#include "onnx_light/cache.h"

namespace onnx_light {

struct NamedCache {
  std::string name;
  PagedCache cache;
};

// Token ids as int64 in C order. The bytes may have any alignment.
struct TokenIds {
  int64_t batch = 0;   // 0: the shape is [length], else [batch, length]
  int64_t length = 0;  // the positions [0, length)
  SharedBytes ids;
};

using KeyValues = std::vector<std::pair<std::string, std::string>>;

struct SnapshotContent {
  std::vector<NamedCache> caches;
  std::optional<TokenIds> tokens;
  // What made the caches: fields of a model identity by name. Kept apart from the user's metadata.
  KeyValues identity;
  KeyValues metadata;
};

}  // namespace onnx_light
