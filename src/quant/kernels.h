// The inner loops of encoding and decoding, compiled once for each instruction set from one source
// (kernels_body.h). All of them give the same bits.
#pragma once

#include <cstdint>

#include "base/isa.h"

namespace onnx_light {

// Kernels look at whole stretches of this many elements: counts are multiples of it, and what lies
// after the elements that matter is zero.
inline constexpr int64_t kLanes = 16;

// What a code means for each element of a row. `divisor` is the scale, or infinity where the scale
// is 0; `least` and `most` bound code - zero_point.
struct RowParameters {
  const float* divisor;
  const float* least;
  const float* most;
  const float* zero_point;
};

// Sixteen groups side by side, one in each lane, whose best scales are looked for: element i of the
// group in lane j is values[i * stride + j].
struct SearchGroups {
  const float* values;
  int64_t stride;
  int64_t count;     // elements of each group
  const float* low;  // for each lane: the range, 0 included
  const float* high;
  float levels;          // largest code less smallest code
  float least;           // smallest code
  bool has_zero_points;  // else the zero point is 0
  bool one_group;        // all lanes together are one group
  // How scales are rounded when they are stored.
  uint32_t dropped_bits;  // of the mantissa
  float least_scale;      // the smallest positive one
  // The scales and zero points by range, as stored; replaced where others have a lower error.
  float* scale;
  float* zero_point;
};

struct QuantKernels {
  // low[i] = min(low[i], row[i]), high[i] = max(high[i], row[i]).
  void (*widen_ranges)(const float* row, int64_t count, float* low, float* high);
  // The smallest and the largest of any number of elements, at least one.
  void (*find_range)(const float* values, int64_t count, float* low, float* high);
  // Whether all magnitudes are at most `most`; no NaN is.
  bool (*are_within)(const float* row, int64_t count, float most);
  // codes[i] = round(row[i] / divisor[i]), within the bounds, + zero_point[i].
  void (*encode_row)(const float* row, int64_t count, const RowParameters& parameters,
                     uint8_t* codes);
  // row[i] = (codes[i] - zero_point[i]) * scale[i], for codes of 8 bits.
  void (*decode_row)(const uint8_t* codes, bool is_signed, int64_t count, const float* scale,
                     const float* zero_point, float* row);
  void (*search_scales)(const SearchGroups& groups);
};

// REQUIRES: the machine has the instruction set.
const QuantKernels& QuantKernelsFor(Isa isa);

// Those of SelectedIsa().
const QuantKernels& SelectedQuantKernels();

}  // namespace onnx_light
