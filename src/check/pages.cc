#include "check/pages.h"

#include "base/math.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

void CheckStart(const PageExtent& page, const PageExtent* before, const std::string& path) {
  if (page.start < 0) {
    throw ValueError("cache.start", path, std::to_string(page.start) + " is negative");
  }
  if (!CheckedAdd(page.start, page.length)) {
    throw ValueError("cache.too_large", path,
                     std::to_string(page.start) + " plus length exceeds 2^63 - 1");
  }
  if (before == nullptr || page.start == before->start + before->length) return;
  throw ValueError("cache.start", path,
                   std::to_string(page.start) + ", but the block before ends at " +
                       std::to_string(before->start + before->length));
}

void CheckLength(const PageExtent& page, const std::string& path) {
  if (page.length <= 0) {
    throw ValueError("cache.length", path, std::to_string(page.length) + ", must be positive");
  }
  if (page.length <= page.capacity) return;
  throw ValueError(
      "cache.length", path,
      std::to_string(page.length) + " exceeds capacity " + std::to_string(page.capacity));
}

}  // namespace

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

int64_t DenseSize(const CacheShape& shape, Side side, int64_t capacity, DType dtype,
                  const std::string& path) {
  const int64_t width = shape.width(side);
  const auto size = CheckedProduct({shape.batch, shape.heads, capacity, width, ElementSize(dtype)});
  if (size) return *size;
  throw ValueError("cache.too_large", path,
                   "the size in bytes of " +
                       ShapeText({shape.batch, shape.heads, capacity, width}) + " " +
                       std::string(Name(dtype)) + " exceeds 2^63 - 1");
}

void CheckPositive(const CacheShape& shape, int64_t capacity, const std::string& path) {
  const std::pair<const char*, int64_t> sizes[] = {{"batch", shape.batch},
                                                   {"heads", shape.heads},
                                                   {"key width", shape.key_width},
                                                   {"value width", shape.value_width},
                                                   {"capacity", capacity}};
  for (const auto& [what, size] : sizes) {
    if (size > 0) continue;
    throw ValueError("cache.shape", path,
                     std::string(what) + " is " + std::to_string(size) + ", must be positive");
  }
}

void CheckDenseSize(const CacheShape& shape, int64_t capacity, Side side, DType dtype,
                    uint64_t size, const std::string& path) {
  const std::string where = (path.empty() ? "" : path + ".") + Name(side);
  const int64_t expected = DenseSize(shape, side, capacity, dtype, where);
  if (size == static_cast<uint64_t>(expected)) return;
  throw ValueError("cache.payload_size", where,
                   std::to_string(size) + " bytes, " +
                       ShapeText({shape.batch, shape.heads, capacity, shape.width(side)}) + " " +
                       std::string(Name(dtype)) + " takes " + std::to_string(expected));
}

void CheckPayload(const CacheShape& shape, int64_t capacity, Side side, const PagePayload& payload,
                  const std::string& path) {
  const auto* encoded = std::get_if<EncodedPayload>(&payload);
  if (encoded == nullptr) {
    const auto& dense = std::get<DensePayload>(payload);
    CheckDenseSize(shape, capacity, side, dense.dtype, dense.bytes.size, path);
    return;
  }
  const std::array<int64_t, 4> dims{shape.batch, shape.heads, capacity, shape.width(side)};
  if (encoded->dims == dims) return;
  throw ValueError("cache.shape", (path.empty() ? "" : path + ".") + Name(side),
                   "shape " + ShapeText(encoded->dims) + ", must be " + ShapeText(dims));
}

void CheckPage(const PageExtent& page, const PageExtent* before, const std::string& path,
               int64_t index) {
  CheckLength(page, PagePath(path, index, "length"));
  CheckStart(page, before, PagePath(path, index, "start"));
  if (before == nullptr || page.shape == before->shape) return;
  throw ValueError("cache.shape", PagePath(path, index),
                   Describe(page.shape) + ", but the block before has " + Describe(before->shape));
}

}  // namespace onnx_light
