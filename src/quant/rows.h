// What encoding and decoding walk along: rows of numbers, and the scales that go with them. A row
// is the width of one token; buffers of rows are padded with zeros to a multiple of kLanes. Blocks
// of rows have one batch entry and head.
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

  // `count` tokens from `first` on, PaddedWidth() wide; valid until the next call.
  FloatBlock Rows(int64_t batch, int64_t head, int64_t first, int64_t count);
  const float* Row(int64_t batch, int64_t head, int64_t token) {
    return Rows(batch, head, token, 1).values;
  }

 private:
  const ArrayView& array_;
  const int64_t padded_;
  const bool direct_;
  std::vector<std::byte> elements_;  // of a row whose elements do not lie together
  std::vector<float> floats_;
};

// The scales and zero points of consecutive tokens with something in common: either each token has
// one for all its elements, or all tokens have the same ones.
struct ParameterRun {
  int64_t tokens;
  bool per_token;
  // One for each token, or PaddedWidth(). Valid until the next call.
  const float* scale;
  const float* zero_point;
};

class ParameterRows {
 public:
  // `zero_points` may be null. REQUIRES: what is pointed to outlives this.
  ParameterRows(const AffineLayout& layout, const std::array<int64_t, 4>& dims,
                const std::byte* scales, const std::byte* zero_points);

  // From `token` on, as many as go together, but at most `count`.
  ParameterRun Run(int64_t batch, int64_t head, int64_t token, int64_t count);

 private:
  struct Values {
    std::vector<float> cells;  // of one head
    std::vector<float> run;
  };

  void MoveToHead(int64_t batch, int64_t head);
  const float* ForTokens(Values& values, int64_t token, int64_t count) const;
  const float* ForWidth(Values& values, int64_t row) const;

  const AffineLayout layout_;
  const std::array<int64_t, 4> cell_, counts_;
  const int64_t width_;
  const std::byte* scales_;
  const std::byte* zero_points_;
  int64_t first_ = -1;  // the first cell of the head
  Values scale_, zero_point_;
  std::vector<uint8_t> codes_;
};

}  // namespace onnx_light
