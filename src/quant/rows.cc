#include "quant/rows.h"

#include <algorithm>
#include <cstring>

#include "base/convert.h"
#include "quant/packing.h"

namespace onnx_light {
FloatRows::FloatRows(const ArrayView& array)
    : array_(array),
      padded_(PaddedWidth(array.width())),
      direct_(array.dtype == DType::kFloat32 && array.strides[3] == sizeof(float) &&
              array.strides[2] % static_cast<int64_t>(sizeof(float)) == 0 &&
              array.width() == padded_) {
  if (!direct_) elements_.resize(array.width() * ElementSize(array.dtype));
}

FloatBlock FloatRows::Rows(int64_t batch, int64_t head, int64_t first, int64_t count) {
  const auto& strides = array_.strides;
  const std::byte* row = array_.data + batch * strides[0] + head * strides[1] + first * strides[2];
  if (direct_) {
    return {reinterpret_cast<const float*>(row), strides[2] / static_cast<int64_t>(sizeof(float)),
            count, padded_};
  }
  const size_t size = count * padded_;
  if (floats_.size() < size) floats_.resize(size);
  const int64_t item = ElementSize(array_.dtype);
  for (int64_t token = 0; token < count; ++token, row += strides[2]) {
    const std::byte* elements = row;
    if (strides[3] != item) {
      for (int64_t i = 0; i < array_.width(); ++i) {
        std::memcpy(elements_.data() + i * item, row + i * strides[3], item);
      }
      elements = elements_.data();
    }
    ConvertElements(array_.dtype, elements, DType::kFloat32, floats_.data() + token * padded_,
                    array_.width());
  }
  return {floats_.data(), padded_, count, padded_};
}

ParameterRows::ParameterRows(const AffineLayout& layout, const std::array<int64_t, 4>& dims,
                             const std::byte* scales, const std::byte* zero_points)
    : layout_(layout),
      cell_(CellDims(layout, dims)),
      counts_(CellCounts(layout, dims)),
      width_(dims[3]),
      scales_(scales),
      zero_points_(zero_points) {
  const int64_t longest = counts_[3] == 1 ? dims[2] : PaddedWidth(width_);
  for (Values* values : {&scale_, &zero_point_}) {
    values->cells.resize(counts_[2] * counts_[3]);
    values->run.resize(longest);
  }
  if (zero_points != nullptr) codes_.resize(counts_[2] * counts_[3]);
}

void ParameterRows::MoveToHead(int64_t batch, int64_t head) {
  const auto cells = static_cast<int64_t>(scale_.cells.size());
  const int64_t first = (batch / cell_[0] * counts_[1] + head / cell_[1]) * cells;
  if (first == first_) return;
  first_ = first;
  ConvertElements(layout_.scale_type, scales_ + first * ElementSize(layout_.scale_type),
                  DType::kFloat32, scale_.cells.data(), cells);
  if (zero_points_ == nullptr) return;
  UnpackCodes(zero_points_, layout_.code_type, first, cells, codes_.data());
  for (int64_t i = 0; i < cells; ++i) {
    zero_point_.cells[i] = IsSigned(layout_.code_type)
                               ? static_cast<float>(static_cast<int8_t>(codes_[i]))
                               : static_cast<float>(codes_[i]);
  }
}

ParameterRun ParameterRows::Run(int64_t batch, int64_t head, int64_t token, int64_t count) {
  MoveToHead(batch, head);
  if (counts_[3] == 1) {
    return {count, true, ForTokens(scale_, token, count), ForTokens(zero_point_, token, count)};
  }
  const int64_t tokens = std::min(count, cell_[2] - token % cell_[2]), row = token / cell_[2];
  return {tokens, false, ForWidth(scale_, row), ForWidth(zero_point_, row)};
}

const float* ParameterRows::ForTokens(Values& values, int64_t token, int64_t count) const {
  if (cell_[2] == 1) return values.cells.data() + token;
  for (int64_t i = 0; i < count; ++i) values.run[i] = values.cells[(token + i) / cell_[2]];
  return values.run.data();
}

const float* ParameterRows::ForWidth(Values& values, int64_t row) const {
  const float* cells = values.cells.data() + row * counts_[3];
  if (cell_[3] == 1 && width_ % kLanes == 0) return cells;
  for (int64_t i = 0; i < counts_[3]; ++i) {
    const int64_t first = i * cell_[3];
    std::fill_n(values.run.data() + first, std::min(cell_[3], width_ - first), cells[i]);
  }
  return values.run.data();
}

}  // namespace onnx_light
