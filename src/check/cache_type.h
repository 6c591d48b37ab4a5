// The type of cache values in a graph: a structure of pages, known by its name and version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "onnx_light/messages.h"
#include "onnx_light/page.h"

namespace onnx_light {

// What a type says about its caches; nothing for what it leaves open.
struct CacheType {
  std::optional<int64_t> batch, heads, key_width, value_width;
};

// Whether the type, without references, has the name of cache values.
bool IsCacheType(const StructTypeProto& type);

// ValueError `check.cache_type` at `path` for another version than ours, or another structure than
// the pages of a cache. REQUIRES: IsCacheType(type).
CacheType ReadCacheType(const StructTypeProto& type, const std::string& path);

// What differs, as "heads 2 and 4"; empty if a value may have both types.
std::string Difference(const CacheType& a, const CacheType& b);

// The type of caches of that shape. An empty cache has no shape and goes with all.
CacheType TypeOf(const CacheShape& shape);

}  // namespace onnx_light
