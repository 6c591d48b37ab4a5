// The type of cache values in a graph: a structure of pages, known by its name and version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "onnx_light/arena.h"
#include "onnx_light/export.h"
#include "onnx_light/messages.h"

namespace onnx_light {

inline constexpr std::string_view kCacheTypeName = "onnx_light.PagedKVCache";

// What a type says about its caches; nothing for what it leaves open.
struct CacheType {
  std::optional<int64_t> batch, heads, key_width, value_width;
};

// What `type` says about caches, at once or by references into the struct_types of `model`, which
// may be null; nothing if it has another name or is no struct type. Throws ValueError, with `path`
// as that of the type: `check.cache_type` for another version than ours, or another structure than
// the pages of a cache; `cache.reference` for references that lead nowhere; `cache.layout` where
// types lie too deep in each other.
ONNX_LIGHT_EXPORT std::optional<CacheType> ReadCacheType(const TypeProto& type,
                                                         const ModelProto* model,
                                                         const std::string& path);

// Makes the empty message `type` that of such caches. REQUIRES: what is given is positive.
ONNX_LIGHT_EXPORT void WriteCacheType(const CacheType& caches, Arena& arena, TypeProto& type);

}  // namespace onnx_light
