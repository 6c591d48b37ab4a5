// Types of caches without references, and how they compare.
#pragma once

#include <string>

#include "onnx_light/cache_type.h"
#include "onnx_light/messages.h"
#include "onnx_light/page.h"

namespace onnx_light {

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
