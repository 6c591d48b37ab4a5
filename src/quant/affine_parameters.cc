#include "quant/affine_parameters.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "quant/packing.h"

namespace onnx_light {
namespace {

using Shape = AffineLayout::Shape;

AffineLayout LayoutOf(const PageFormat& format, const std::array<int64_t, 4>& dims) {
  AffineLayout layout{format.type(), format.scale_type(), Shape::kScalar, 0, 0};
  if (format.scale() == ScaleKind::kTensor) return layout;
  layout.shape = Shape::kBlocked;
  layout.axis = format.scale() == ScaleKind::kChannel ? 2 : 3;
  layout.block_size = format.group() != 0 ? format.group() : dims[layout.axis];
  return layout;
}

ScaleRounding RoundingTo(DType scale_type) {
  if (scale_type == DType::kFloat16) return {13, 0x1p-14f, 65504};
  if (scale_type == DType::kBFloat16) return {16, 0x1p-126f, 0x1.fep127f};
  return {0, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max()};
}

// Whether products of such scales and the levels of codes can exceed all floats.
bool MayOverflow(const ScaleRounding& rounding) {
  return rounding.most > std::numeric_limits<float>::max() / 256;
}

// The largest scale with which a level is a finite number.
float LargestScaleFor(float level) {
  float scale = std::numeric_limits<float>::max() / level;
  while (!std::isfinite(scale * level)) scale = std::nextafter(scale, 0.0f);
  return scale;
}

// The bits of scales that are rounded to float16 or bfloat16 already, and normal numbers or 0.
void StoreRounded(const std::vector<float>& scales, DType type, uint16_t* target) {
  const uint32_t bias = type == DType::kFloat16 ? (127 - 15) << 10 : 0;
  const int dropped = type == DType::kFloat16 ? 13 : 16;
  for (size_t i = 0; i < scales.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(scales[i]);
    target[i] = static_cast<uint16_t>(bits == 0 ? 0 : (bits >> dropped) - bias);
  }
}

}  // namespace

ParameterChooser::ParameterChooser(const PageFormat& format, const std::array<int64_t, 4>& dims,
                                   DType scale_type)
    : layout_(LayoutOf(format, dims)),
      dims_(dims),
      kernels_(SelectedQuantKernels()),
      levels_(static_cast<float>((1 << CodeBits(layout_.code_type)) - 1)),
      is_signed_(IsSigned(layout_.code_type)),
      rounding_(RoundingTo(scale_type)) {
  layout_.scale_type = scale_type;
  Resize(1);
  const std::array<int64_t, 4> counts = CellCounts(layout_, dims);
  const int64_t cells = counts[0] * counts[1] * counts[2] * counts[3];
  all_scales_.reserve(cells);
  if (!is_signed_) all_zero_points_.reserve(cells);
}

void ParameterChooser::Resize(int64_t cells) {
  cells_ = cells;
  // Kernels take whole vectors of cells, and rows of channels whole vectors from any cell on.
  const auto size = static_cast<size_t>(PaddedWidth(cells + kLanes - 1));
  for (auto* values : {&low_, &high_, &scale_, &zero_point_}) {
    if (values->size() < size) values->resize(size);
  }
  // Lanes without a cell have ranges of zeros.
  std::fill(low_.begin() + cells, low_.end(), 0.0f);
  std::fill(high_.begin() + cells, high_.end(), 0.0f);
}

ParameterChooser::Outcome ParameterChooser::Choose(const FloatBlock& rows) {
  const bool by_channel = layout_.axis == 2;
  const int64_t along = by_channel ? rows.tokens : dims_[3];
  const int64_t group = std::min(layout_.block_size, along);
  Resize((along + group - 1) / group * (by_channel ? dims_[3] : rows.tokens));
  const auto find = is_signed_ ? kernels_.find_sizes : kernels_.find_ranges;
  const bool is_finite =
      by_channel ? FindChannelRanges(rows) : find(rows, dims_[3], group, low_.data(), high_.data());
  if (!is_finite) return Outcome::kNotFinite;
  if (!SetByRange()) return Outcome::kNotNormal;
  if (CodeBits(layout_.code_type) < 8) by_channel ? SearchChannels(rows) : SearchTokens(rows);
  Keep();
  return Outcome::kChosen;
}

ParameterChooser::Outcome ParameterChooser::ChooseForAll(FloatRows& rows) {
  float least = std::numeric_limits<float>::infinity(), most = -least;
  std::vector<float> values, low(dims_[2]), high(dims_[2]);
  for (int64_t i = 0; i < dims_[0] * dims_[1]; ++i) {
    const FloatBlock block = rows.Rows(i / dims_[1], i % dims_[1], 0, dims_[2]);
    if (!kernels_.find_ranges(block, dims_[3], dims_[3], low.data(), high.data())) {
      return Outcome::kNotFinite;
    }
    least = std::min(least, *std::min_element(low.begin(), low.end()));
    most = std::max(most, *std::max_element(high.begin(), high.end()));
    for (int64_t token = 0; token < block.tokens && CodeBits(layout_.code_type) < 8; ++token) {
      const float* row = block.values + token * block.stride;
      values.insert(values.end(), row, row + block.width);
    }
  }
  low_[0] = least;
  high_[0] = most;
  if (!SetByRange()) return Outcome::kNotNormal;
  const auto lanes = static_cast<int64_t>(values.size()) / kLanes;
  if (lanes != 0) SearchCells(0, 1, values.data(), kLanes, lanes, true);
  Keep();
  return Outcome::kChosen;
}

bool ParameterChooser::FindChannelRanges(const FloatBlock& rows) {
  std::vector<float> low(rows.width), high(rows.width);
  const int64_t tokens = std::min(layout_.block_size, rows.tokens);
  int64_t cell = 0;
  for (int64_t first = 0; first < rows.tokens; first += tokens) {
    const FloatBlock group = PartOf(rows, first, std::min(tokens, rows.tokens - first));
    if (is_signed_) {
      if (!kernels_.find_column_sizes(group, low.data(), high.data())) return false;
    } else {
      std::copy_n(group.values, rows.width, low.begin());
      std::copy_n(group.values, rows.width, high.begin());
      if (!kernels_.widen_ranges(group, low.data(), high.data())) return false;
    }
    std::copy_n(low.begin(), dims_[3], low_.begin() + cell);
    std::copy_n(high.begin(), dims_[3], high_.begin() + cell);
    cell += dims_[3];
  }
  return true;
}

// -------------------------------------------------------------------------------------------------
// Scales by range

bool ParameterChooser::SetByRange() {
  const auto scales = is_signed_ ? kernels_.signed_scales : kernels_.unsigned_scales;
  scales(low_.data(), high_.data(), cells_, levels_, scale_.data());
  if (!kernels_.round_scales(rounding_, low_.data(), high_.data(), cells_, scale_.data())) {
    return false;
  }
  if (!is_signed_) {
    kernels_.zero_points(low_.data(), scale_.data(), cells_, levels_, zero_point_.data());
  }
  return !MayOverflow(rounding_) || BoundScales();
}

// The level of a cell's codes that lies farthest from 0.
float ParameterChooser::FarthestLevel(int64_t cell) const {
  if (IsConstant(cell)) return 1;
  if (is_signed_) return std::floor(levels_ / 2);
  return std::max(zero_point_[cell], levels_ - zero_point_[cell]);
}

// Next to the largest floats the levels at the ends of a range may lie beyond them: then the scale
// is smaller, and the ends are cut off. False if the type of the scales cannot be that precise.
bool ParameterChooser::BoundScales() {
  for (int64_t cell = 0; cell < cells_; ++cell) {
    const float level = FarthestLevel(cell);
    if (std::isfinite(scale_[cell] * level)) continue;
    if (rounding_.dropped_bits != 0) return false;
    scale_[cell] = LargestScaleFor(level);
  }
  return true;
}

// -------------------------------------------------------------------------------------------------
// Scales by search, sixteen cells at a time

// Searches for the `count` cells from `first` on, whose numbers are the lanes from 0 on. All lanes
// are the one cell where `one_group`.
void ParameterChooser::SearchCells(int64_t first, int64_t count, const float* values,
                                   int64_t stride, int64_t elements, bool one_group) {
  std::array<float, kLanes> low{}, high{}, scale{}, zero_point{};
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const int64_t cell = one_group ? first : first + std::min(lane, count - 1);
    low[lane] = std::min(low_[cell], 0.0f);
    high[lane] = std::max(high_[cell], 0.0f);
    scale[lane] = scale_[cell];
    zero_point[lane] = zero_point_[cell];
  }
  const float least = is_signed_ ? -std::ceil(levels_ / 2) : 0;
  ScaleRounding rounding = rounding_;  // and no scale with a level that is no finite number
  rounding.most = std::min(rounding.most, LargestScaleFor(levels_));
  kernels_.search_scales({values, stride, elements, low.data(), high.data(), levels_, least,
                          !is_signed_, one_group, rounding, scale.data(), zero_point.data()});
  for (int64_t lane = 0; lane < count; ++lane) {
    if (IsConstant(first + lane)) continue;
    scale_[first + lane] = scale[lane];
    zero_point_[first + lane] = zero_point[lane];
  }
}

void ParameterChooser::SearchChannels(const FloatBlock& rows) {
  const int64_t tokens = std::min(layout_.block_size, rows.tokens);
  int64_t cell = 0;
  for (int64_t first = 0; first < rows.tokens; first += tokens) {
    const int64_t count = std::min(tokens, rows.tokens - first);
    for (int64_t i = 0; i < dims_[3]; i += kLanes) {
      SearchCells(cell + i, std::min(kLanes, dims_[3] - i), rows.values + first * rows.stride + i,
                  rows.stride, count);
    }
    cell += dims_[3];
  }
}

// Cells are turned by a quarter, so that each is a lane; a short last one of a row ends in zeros.
void ParameterChooser::SearchTokens(const FloatBlock& rows) {
  const int64_t elements = std::min(layout_.block_size, dims_[3]);
  std::vector<float> values(elements * kLanes);
  int64_t cell = 0, lanes = 0;
  const auto flush = [&] {
    if (lanes != 0) SearchCells(cell, lanes, values.data(), kLanes, elements);
    std::fill(values.begin(), values.end(), 0.0f);
    cell += lanes;
    lanes = 0;
  };
  for (int64_t token = 0; token < rows.tokens; ++token) {
    const float* row = rows.values + token * rows.stride;
    for (int64_t first = 0; first < dims_[3]; first += elements) {
      const int64_t count = std::min(elements, dims_[3] - first);
      for (int64_t i = 0; i < count; ++i) values[i * kLanes + lanes] = row[first + i];
      if (++lanes == kLanes) flush();
    }
  }
  flush();
}

// -------------------------------------------------------------------------------------------------

void ParameterChooser::Keep() {
  all_scales_.insert(all_scales_.end(), scale_.begin(), scale_.begin() + cells_);
  if (is_signed_) return;
  all_zero_points_.insert(all_zero_points_.end(), zero_point_.begin(),
                          zero_point_.begin() + cells_);
}

AffineParameters ParameterChooser::Stored() const {
  const auto cells = static_cast<int64_t>(all_scales_.size());
  BufferRef scales = BufferRef::Allocate(cells * ElementSize(layout_.scale_type));
  if (layout_.scale_type == DType::kFloat32) {
    std::memcpy(scales.mutable_data(), all_scales_.data(), scales.size());
  } else {
    StoreRounded(all_scales_, layout_.scale_type,
                 reinterpret_cast<uint16_t*>(scales.mutable_data()));
  }
  if (is_signed_) return {layout_, SharedBytes(std::move(scales)), {}};
  const int bits = CodeBits(layout_.code_type);
  BufferRef zero_points = BufferRef::Allocate(PackedSize(cells, bits));
  std::fill_n(zero_points.mutable_data(), zero_points.size(), std::byte{0});
  PackCodes(all_zero_points_.data(), cells, bits, 0, zero_points.mutable_data());
  return {layout_, SharedBytes(std::move(scales)), SharedBytes(std::move(zero_points))};
}

}  // namespace onnx_light
