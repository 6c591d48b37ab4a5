// Which scales and zero points suit numbers.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "onnx_light/encoded_payload.h"
#include "onnx_light/page_format.h"
#include "quant/kernels.h"
#include "quant/rows.h"

namespace onnx_light {

struct AffineParameters {
  AffineLayout layout;
  SharedBytes scales;
  SharedBytes zero_points;  // empty where the codes are signed
};

// The parameters of one block after the other, in order: scales by range, and for
// codes of 4 and 2 bits those with a lower squared error where a search finds them. A cell whose
// numbers are all equal gets its magnitude as the scale. REQUIRES: the format is affine, every dim
// is positive.
class ParameterChooser {
 public:
  // Scales are rounded to `scale_type`.
  ParameterChooser(const PageFormat& format, const std::array<int64_t, 4>& dims, DType scale_type);

  const AffineLayout& layout() const { return layout_; }

  enum class Outcome : uint8_t {
    kChosen,
    kNotFinite,  // some number is not
    kNotNormal,  // the type has no normal number for a scale, and is not FLOAT
  };

  // Of the next block: tokens of one batch entry and head, all of them unless each token has scales
  // of its own. REQUIRES: the layout is not scalar, all blocks before were kChosen.
  Outcome Choose(const FloatBlock& rows);
  // Of the one cell of a scalar layout. Nothing else may be asked for.
  Outcome ChooseForAll(FloatRows& rows);

  // For each cell of the block that was last.
  const float* scale() const { return scale_.data(); }
  const float* zero_point() const { return zero_point_.data(); }

  AffineParameters Stored() const;

 private:
  void Resize(int64_t cells);
  bool FindChannelRanges(const FloatBlock& rows);
  bool IsConstant(int64_t cell) const { return low_[cell] == high_[cell]; }
  bool SetByRange();
  float FarthestLevel(int64_t cell) const;
  bool BoundScales();
  void SearchChannels(const FloatBlock& rows);
  void SearchTokens(const FloatBlock& rows);
  void SearchCells(int64_t first, int64_t count, const float* values, int64_t stride,
                   int64_t elements, bool one_group = false);
  void Keep();

  AffineLayout layout_;
  const std::array<int64_t, 4> dims_;
  const QuantKernels& kernels_;
  const float levels_;  // largest code less smallest code
  const bool is_signed_;
  const ScaleRounding rounding_;
  int64_t cells_ = 1;  // of the block
  // One for each of them, and at least kLanes - 1 more.
  std::vector<float> low_, high_, scale_, zero_point_;
  std::vector<float> all_scales_;
  std::vector<uint8_t> all_zero_points_;
};

}  // namespace onnx_light
