// The rules of a cache's message.
#pragma once

#include <string>

#include "onnx_light/messages.h"
#include "onnx_light/page.h"
#include "quant/encoded_proto.h"

namespace onnx_light {

// What CacheFromProto() would find wrong, without making the cache. The shape; zeros if the cache
// is empty.
CacheShape CheckCache(const PagedCacheProto& cache, const References& references,
                      const std::string& path);

}  // namespace onnx_light
