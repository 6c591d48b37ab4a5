#include "cache/sizes.h"

#include <algorithm>
#include <bit>

namespace onnx_light {

int64_t GrownCapacity(int64_t rows, int64_t page_size) {
  constexpr uint64_t kLeast = 16;
  const uint64_t grown = std::max(kLeast, std::bit_ceil(static_cast<uint64_t>(rows)));
  return static_cast<int64_t>(std::min(grown, static_cast<uint64_t>(page_size)));
}

std::string ShapeText(const std::array<int64_t, 4>& shape) {
  std::string text = "[";
  for (int64_t dim : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(dim);
  return text + "]";
}

std::string Describe(const CacheShape& shape) {
  return "batch " + std::to_string(shape.batch) + ", heads " + std::to_string(shape.heads) +
         ", key width " + std::to_string(shape.key_width) + ", value width " +
         std::to_string(shape.value_width);
}

std::string PagePath(const std::string& path, int64_t index, const char* field) {
  std::string text = (path.empty() ? "" : path + ".") + "blocks[" + std::to_string(index) + "]";
  return field == nullptr ? text : text + "." + field;
}

}  // namespace onnx_light
