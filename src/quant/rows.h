// What encoding and decoding walk along: rows of numbers, and the scales that go with them. A row
// is the width of one token; buffers of rows are padded with zeros to a multiple of kLanes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/math.h"
#include "onnx_light/array_view.h"
#include "onnx_light/encoded_payload.h"
#include "quant/kernels.h"

namespace onnx_light {

inline int64_t PaddedWidth(int64_t width) {
  return static_cast<int64_t>(RoundUp(static_cast<uint64_t>(width), kLanes));
}

// Rows of an array of any type and strides as floats.
class FloatRows {
 public:
  // REQUIRES: the array outlives this.
  explicit FloatRows(const ArrayView& array);

  // PaddedWidth() floats; valid until the next call.
  const float* Row(int64_t batch, int64_t head, int64_t token);

 private:
  const ArrayView& array_;
  const bool direct_;
  std::vector<std::byte> elements_;  // of a row whose elements do not lie together
  std::vector<float> floats_;
};

// The scales and zero points of rows, spread over the width.
class ParameterRows {
 public:
  // `zero_points` may be null. REQUIRES: what is pointed to outlives this.
  ParameterRows(const AffineLayout& layout, const std::array<int64_t, 4>& dims,
                const std::byte* scales, const std::byte* zero_points);

  // Goes to a row; false where its parameters are those of the row before.
  bool MoveTo(int64_t batch, int64_t head, int64_t token);

  // PaddedWidth() floats each.
  const float* scale() const { return scale_.data(); }
  const float* zero_point() const { return zero_point_.data(); }

 private:
  const AffineLayout layout_;
  const std::array<int64_t, 4> cell_, counts_;
  const int64_t width_;
  const std::byte* scales_;
  const std::byte* zero_points_;
  int64_t first_ = -1;                              // the cell where the row begins
  int64_t batch_ = -1, head_ = -1, first_row_ = 0;  // the row of cells of batch_ and head_
  std::vector<float> cell_values_, scale_, zero_point_;
  std::vector<uint8_t> codes_;
};

}  // namespace onnx_light
