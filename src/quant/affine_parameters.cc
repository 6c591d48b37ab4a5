#include "quant/affine_parameters.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/convert.h"
#include "quant/packing.h"
#include "quant/rows.h"

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

// Mantissa bits of a float that a type of scales drops, and its least normal number.
uint32_t DroppedBits(DType scale_type) {
  if (scale_type == DType::kFloat16) return 13;
  return scale_type == DType::kBFloat16 ? 16 : 0;
}
float LeastScale(DType scale_type) {
  if (scale_type == DType::kFloat16) return 0x1p-14f;
  if (scale_type == DType::kBFloat16) return 0x1p-126f;
  return std::numeric_limits<float>::denorm_min();
}

class ParameterChooser {
 public:
  ParameterChooser(const ArrayView& rows, const PageFormat& format)
      : array_(rows),
        rows_(rows),
        layout_(LayoutOf(format, rows.shape)),
        counts_(CellCounts(layout_, rows.shape)),
        kernels_(SelectedQuantKernels()),
        levels_(static_cast<float>((1 << CodeBits(layout_.code_type)) - 1)),
        is_signed_(IsSigned(layout_.code_type)) {
    const size_t cells = counts_[0] * counts_[1] * counts_[2] * counts_[3];
    for (auto* values : {&low_, &high_, &scale_, &zero_point_}) values->resize(cells);
  }

  AffineParameters Choose() {
    FindRanges();
    if (!SetByRange(layout_.scale_type)) {
      layout_.scale_type = DType::kFloat32;
      SetByRange(DType::kFloat32);
    }
    if (CodeBits(layout_.code_type) < 8) Search();
    return Stored();
  }

 private:
  // -----------------------------------------------------------------------------------------------
  // Ranges

  void FindRanges() {
    if (layout_.shape == Shape::kScalar) {
      FindTensorRange();
    } else if (layout_.axis == 2) {
      FindChannelRanges();
    } else {
      FindTokenRanges();
    }
  }

  // f(batch, head, first token, number of tokens) for every stretch of at most `tokens`.
  template <typename F>
  void ForTokens(int64_t tokens, F f) {
    for (int64_t batch = 0; batch < array_.batch(); ++batch) {
      for (int64_t head = 0; head < array_.heads(); ++head) {
        for (int64_t first = 0; first < array_.tokens(); first += tokens) {
          f(batch, head, first, std::min(tokens, array_.tokens() - first));
        }
      }
    }
  }
  int64_t TokensOfCell() const { return std::min(layout_.block_size, array_.tokens()); }

  void FindTensorRange() {
    low_[0] = std::numeric_limits<float>::infinity();
    high_[0] = -low_[0];
    ForTokens(1, [this](int64_t batch, int64_t head, int64_t token, int64_t) {
      float low, high;
      kernels_.find_range(rows_.Row(batch, head, token), array_.width(), &low, &high);
      low_[0] = std::min(low_[0], low);
      high_[0] = std::max(high_[0], high);
    });
  }

  void FindChannelRanges() {
    const int64_t padded = PaddedWidth(array_.width());
    std::vector<float> low(padded), high(padded);
    size_t cell = 0;
    ForTokens(TokensOfCell(), [&](int64_t batch, int64_t head, int64_t first, int64_t count) {
      const FloatBlock block = rows_.Rows(batch, head, first, count);
      std::copy_n(block.values, padded, low.begin());
      std::copy_n(block.values, padded, high.begin());
      kernels_.widen_ranges(block, low.data(), high.data());
      std::copy_n(low.begin(), array_.width(), low_.begin() + cell);
      std::copy_n(high.begin(), array_.width(), high_.begin() + cell);
      cell += array_.width();
    });
  }

  void FindTokenRanges() {
    size_t cell = 0;
    ForTokens(1, [&](int64_t batch, int64_t head, int64_t token, int64_t) {
      const float* row = rows_.Row(batch, head, token);
      for (int64_t i = 0; i < array_.width(); i += layout_.block_size) {
        const int64_t count = std::min(layout_.block_size, array_.width() - i);
        kernels_.find_range(row + i, count, &low_[cell], &high_[cell]);
        ++cell;
      }
    });
  }

  // -----------------------------------------------------------------------------------------------
  // Scales by range

  bool IsConstant(size_t cell) const { return low_[cell] == high_[cell]; }

  float ScaleByRange(size_t cell) const {
    const float low = low_[cell], high = high_[cell];
    if (low == high) return std::fabs(low);
    if (is_signed_) return std::max(-low, high) / std::floor(levels_ / 2);
    const double range = std::max<double>(high, 0) - std::min<double>(low, 0);
    return static_cast<float>(range / levels_);
  }

  float ZeroPointByRange(size_t cell, float scale) const {
    const float low = std::min(low_[cell], 0.0f);
    if (is_signed_ || scale == 0) return 0;
    return std::clamp(std::nearbyint(-low / scale), 0.0f, levels_);
  }

  // False where the type has no normal number for a scale.
  bool SetByRange(DType scale_type) {
    std::vector<std::byte> stored(scale_.size() * ElementSize(scale_type));
    for (size_t cell = 0; cell < scale_.size(); ++cell) scale_[cell] = ScaleByRange(cell);
    ConvertElements(DType::kFloat32, scale_.data(), scale_type, stored.data(), scale_.size());
    ConvertElements(scale_type, stored.data(), DType::kFloat32, scale_.data(), scale_.size());
    for (size_t cell = 0; cell < scale_.size(); ++cell) {
      const float scale = scale_[cell];
      const bool is_zero = low_[cell] == 0 && high_[cell] == 0;
      const bool is_normal = scale >= LeastScale(scale_type) && std::isfinite(scale);
      if (!is_zero && !is_normal && scale_type != DType::kFloat32) return false;
      zero_point_[cell] = ZeroPointByRange(cell, scale);
    }
    return true;
  }

  // -----------------------------------------------------------------------------------------------
  // Scales by search, sixteen cells at a time

  void Search() {
    if (layout_.shape == Shape::kScalar) {
      SearchTensor();
    } else if (layout_.axis == 2) {
      SearchChannels();
    } else {
      SearchTokens();
    }
  }

  // Searches for the `count` cells from `first` on, whose numbers are the lanes from 0 on. All
  // lanes are the one cell where `one_group`.
  void SearchCells(size_t first, size_t count, const float* values, int64_t stride,
                   int64_t elements, bool one_group = false) {
    std::array<float, kLanes> low{}, high{}, scale{}, zero_point{};
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t cell = one_group ? first : first + std::min(lane, count - 1);
      low[lane] = std::min(low_[cell], 0.0f);
      high[lane] = std::max(high_[cell], 0.0f);
      scale[lane] = scale_[cell];
      zero_point[lane] = zero_point_[cell];
    }
    const float least = is_signed_ ? -std::ceil(levels_ / 2) : 0;
    kernels_.search_scales({values, stride, elements, low.data(), high.data(), levels_, least,
                            !is_signed_, one_group, DroppedBits(layout_.scale_type),
                            LeastScale(layout_.scale_type), scale.data(), zero_point.data()});
    for (size_t lane = 0; lane < count; ++lane) {
      if (IsConstant(first + lane)) continue;
      scale_[first + lane] = scale[lane];
      zero_point_[first + lane] = zero_point[lane];
    }
  }

  void SearchTensor() {
    const int64_t padded = PaddedWidth(array_.width());
    std::vector<float> values;
    ForTokens(1, [&](int64_t batch, int64_t head, int64_t token, int64_t) {
      const float* row = rows_.Row(batch, head, token);
      values.insert(values.end(), row, row + padded);
    });
    SearchCells(0, 1, values.data(), kLanes, static_cast<int64_t>(values.size()) / kLanes, true);
  }

  void SearchChannels() {
    const int64_t width = array_.width();
    size_t cell = 0;
    ForTokens(TokensOfCell(), [&](int64_t batch, int64_t head, int64_t first, int64_t count) {
      const FloatBlock block = rows_.Rows(batch, head, first, count);
      for (int64_t i = 0; i < width; i += kLanes) {
        SearchCells(cell + i, std::min(kLanes, width - i), block.values + i, block.stride, count);
      }
      cell += width;
    });
  }

  // Cells are turned by a quarter, so that each is a lane; a short last one of a row ends in zeros.
  void SearchTokens() {
    const int64_t elements = std::min(layout_.block_size, array_.width());
    std::vector<float> values(elements * kLanes);
    size_t cell = 0, lanes = 0;
    const auto flush = [&] {
      if (lanes != 0) SearchCells(cell, lanes, values.data(), kLanes, elements);
      std::fill(values.begin(), values.end(), 0.0f);
      cell += lanes;
      lanes = 0;
    };
    ForTokens(1, [&](int64_t batch, int64_t head, int64_t token, int64_t) {
      const float* row = rows_.Row(batch, head, token);
      for (int64_t first = 0; first < array_.width(); first += elements) {
        const int64_t count = std::min(elements, array_.width() - first);
        for (int64_t i = 0; i < count; ++i) values[i * kLanes + lanes] = row[first + i];
        if (++lanes == kLanes) flush();
      }
    });
    flush();
  }

  // -----------------------------------------------------------------------------------------------

  AffineParameters Stored() const {
    const auto cells = static_cast<int64_t>(scale_.size());
    BufferRef scales = BufferRef::Allocate(cells * ElementSize(layout_.scale_type));
    ConvertElements(DType::kFloat32, scale_.data(), layout_.scale_type, scales.mutable_data(),
                    scale_.size());
    if (is_signed_) return {layout_, SharedBytes(std::move(scales)), {}};
    const int bits = CodeBits(layout_.code_type);
    std::vector<uint8_t> codes(zero_point_.begin(), zero_point_.end());
    BufferRef zero_points = BufferRef::Allocate(PackedSize(cells, bits));
    std::fill_n(zero_points.mutable_data(), zero_points.size(), std::byte{0});
    PackCodes(codes.data(), cells, bits, 0, zero_points.mutable_data());
    return {layout_, SharedBytes(std::move(scales)), SharedBytes(std::move(zero_points))};
  }

  const ArrayView& array_;
  FloatRows rows_;
  AffineLayout layout_;
  const std::array<int64_t, 4> counts_;
  const QuantKernels& kernels_;
  const float levels_;  // largest code less smallest code
  const bool is_signed_;
  std::vector<float> low_, high_, scale_, zero_point_;  // one for each cell
};

}  // namespace

AffineParameters ChooseParameters(const ArrayView& rows, const PageFormat& format) {
  return ParameterChooser(rows, format).Choose();
}

}  // namespace onnx_light
