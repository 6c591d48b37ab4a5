#include "check/cache.h"

#include <optional>

#include "check/block.h"
#include "check/pages.h"

namespace onnx_light {

CacheShape CheckCache(const PagedCacheProto& cache, const References& references,
                      const std::string& path) {
  std::optional<PageExtent> before;
  for (size_t i = 0; i < cache.blocks().size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const PageExtent extent =
        ReadBlock(*cache.blocks()[i], references, PagePath(path, index)).extent;
    CheckPage(extent, before ? &*before : nullptr, path, index);
    before = extent;
  }
  return before ? before->shape : CacheShape();
}

}  // namespace onnx_light
