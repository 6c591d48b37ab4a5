#include "quant/rows.h"

#include <algorithm>
#include <cstring>

#include "base/convert.h"
#include "quant/packing.h"

namespace onnx_light {
namespace {

// One value for each cell, to one for each element of a row.
void Spread(const std::vector<float>& cells, int64_t cell_width, int64_t width, float* row) {
  if (cells.size() == 1) {
    std::fill(row, row + width, cells[0]);
  } else if (cell_width == 1) {
    std::copy(cells.begin(), cells.end(), row);
  } else {
    for (size_t i = 0; i < cells.size(); ++i) {
      const int64_t first = static_cast<int64_t>(i) * cell_width;
      std::fill_n(row + first, std::min(cell_width, width - first), cells[i]);
    }
  }
}

}  // namespace

FloatRows::FloatRows(const ArrayView& array)
    : array_(array),
      direct_(array.dtype == DType::kFloat32 && array.strides[3] == sizeof(float) &&
              array.width() % kLanes == 0) {
  if (direct_) return;
  floats_.resize(PaddedWidth(array.width()));
  elements_.resize(array.width() * ElementSize(array.dtype));
}

const float* FloatRows::Row(int64_t batch, int64_t head, int64_t token) {
  const auto& strides = array_.strides;
  const std::byte* row = array_.data + batch * strides[0] + head * strides[1] + token * strides[2];
  if (direct_) return reinterpret_cast<const float*>(row);
  const int64_t item = ElementSize(array_.dtype);
  if (strides[3] != item) {
    for (int64_t i = 0; i < array_.width(); ++i) {
      std::memcpy(elements_.data() + i * item, row + i * strides[3], item);
    }
    row = elements_.data();
  }
  ConvertElements(array_.dtype, row, DType::kFloat32, floats_.data(), array_.width());
  return floats_.data();
}

ParameterRows::ParameterRows(const AffineLayout& layout, const std::array<int64_t, 4>& dims,
                             const std::byte* scales, const std::byte* zero_points)
    : layout_(layout),
      cell_(CellDims(layout, dims)),
      counts_(CellCounts(layout, dims)),
      width_(dims[3]),
      scales_(scales),
      zero_points_(zero_points),
      cell_values_(counts_[3]),
      scale_(PaddedWidth(width_)),
      zero_point_(PaddedWidth(width_)),
      codes_(zero_points == nullptr ? 0 : counts_[3]) {}

bool ParameterRows::MoveTo(int64_t batch, int64_t head, int64_t token) {
  // Divisions take longer than all the rest of a short row.
  if (batch != batch_ || head != head_) {
    batch_ = batch;
    head_ = head;
    first_row_ = (batch / cell_[0] * counts_[1] + head / cell_[1]) * counts_[2];
  }
  const int64_t row = first_row_ + (cell_[2] == 1 ? token : counts_[2] == 1 ? 0 : token / cell_[2]);
  const int64_t first = row * counts_[3];
  if (first == first_) return false;
  first_ = first;
  ConvertElements(layout_.scale_type, scales_ + first * ElementSize(layout_.scale_type),
                  DType::kFloat32, cell_values_.data(), cell_values_.size());
  Spread(cell_values_, cell_[3], width_, scale_.data());
  if (zero_points_ == nullptr) return true;
  UnpackCodes(zero_points_, layout_.code_type, first, counts_[3], codes_.data());
  for (int64_t i = 0; i < counts_[3]; ++i) {
    cell_values_[i] = IsSigned(layout_.code_type)
                          ? static_cast<float>(static_cast<int8_t>(codes_[i]))
                          : static_cast<float>(codes_[i]);
  }
  Spread(cell_values_, cell_[3], width_, zero_point_.data());
  return true;
}

}  // namespace onnx_light
