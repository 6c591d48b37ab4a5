#include "cache/sizes.h"

#include <algorithm>
#include <bit>

namespace onnx_light {

int64_t GrownCapacity(int64_t rows, int64_t page_size) {
  constexpr uint64_t kLeast = 16;
  const uint64_t grown = std::max(kLeast, std::bit_ceil(static_cast<uint64_t>(rows)));
  return static_cast<int64_t>(std::min(grown, static_cast<uint64_t>(page_size)));
}

}  // namespace onnx_light
