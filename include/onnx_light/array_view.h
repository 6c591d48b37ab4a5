// Somebody else's keys or values, looked at where they lie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "onnx_light/dtype.h"
#include "onnx_light/export.h"

namespace onnx_light {

// A [batch, heads, tokens, width] array. Strides are in bytes and may be anything, zero and
// negative included; elements need not be aligned. The view owns nothing.
struct ArrayView {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> strides{};

  int64_t batch() const { return shape[0]; }
  int64_t heads() const { return shape[1]; }
  int64_t tokens() const { return shape[2]; }
  int64_t width() const { return shape[3]; }

  // The tokens [first, first + count). REQUIRES: they lie inside.
  ArrayView Tokens(int64_t first, int64_t count) const {
    ArrayView part = *this;
    part.data += first * strides[2];
    part.shape[2] = count;
    return part;
  }
};

// The view of an array in C order. ValueError `cache.shape` where a dim is negative,
// `cache.too_large` where the size in bytes does not fit 63 bits.
ONNX_LIGHT_EXPORT ArrayView ContiguousView(const void* data, DType dtype,
                                           const std::array<int64_t, 4>& shape);

}  // namespace onnx_light
