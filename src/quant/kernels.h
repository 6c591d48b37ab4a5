// The inner loops of encoding and decoding, compiled once for each instruction set from one source
// (kernels_body.h). All of them give the same bits.
#pragma once

#include <cstdint>

#include "base/isa.h"

namespace onnx_light {

// Kernels look at whole stretches of this many elements: widths are multiples of it, and what lies
// after the elements that matter is zero.
inline constexpr int64_t kLanes = 16;

// Consecutive tokens: row t begins at values + t * stride.
struct FloatBlock {
  const float* values;
  int64_t stride;
  int64_t tokens;
  int64_t width;
};

inline FloatBlock PartOf(const FloatBlock& rows, int64_t first, int64_t tokens) {
  return {rows.values + first * rows.stride, rows.stride, tokens, rows.width};
}

// What the codes of a block mean. `divisor` is the scale, or infinity where the scale is 0; `least`
// and `most` bound code - zero_point.
struct CodeParameters {
  const float* divisor;
  const float* least;
  const float* most;
  const float* zero_point;
  bool per_token;  // one of each for a token; else one for an element of the width
  // No quotient comes to a number outside the bounds, and all zero points are 0: neither is read.
  bool has_plain_codes = false;
};

// How scales are rounded when they are stored.
struct ScaleRounding {
  uint32_t dropped_bits;  // of the mantissa
  float least;            // the smallest positive scale
  float most;
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
  ScaleRounding rounding;
  // The scales and zero points by range, as stored; replaced where others have a lower error.
  float* scale;
  float* zero_point;
};

struct QuantKernels {
  // low[i] = min(low[i], row[i]), high[i] = max(high[i], row[i]) for every row of the block.
  // Whether all numbers are finite; if not, the ranges mean nothing.
  bool (*widen_ranges)(const FloatBlock& rows, float* low, float* high);
  // low[i] = -m and high[i] = m, the largest magnitude of each column; both the number of a column
  // that has only one. Whether all numbers are finite.
  bool (*find_column_sizes)(const FloatBlock& rows, float* low, float* high);
  // The smallest and the largest of each `group` numbers of each row, of whose first `width`
  // numbers the last group may be shorter; and whether all are finite.
  bool (*find_ranges)(const FloatBlock& rows, int64_t width, int64_t group, float* low,
                      float* high);
  // The same, or ranges as find_column_sizes() has.
  bool (*find_sizes)(const FloatBlock& rows, int64_t width, int64_t group, float* low, float* high);
  // Whether all magnitudes are at most `most`; no NaN is.
  bool (*are_within)(const FloatBlock& rows, float most);
  // scale[i] = max(-low[i], high[i]) / floor(levels / 2), or the magnitude where both are equal.
  // The arrays are as long as whole stretches of kLanes.
  void (*signed_scales)(const float* low, const float* high, int64_t count, float levels,
                        float* scale);
  // scale[i] = (max(high[i], 0) - min(low[i], 0)) / levels, or the magnitude where both are equal.
  void (*unsigned_scales)(const float* low, const float* high, int64_t count, float levels,
                          float* scale);
  // zero_point[i] = round(-min(low[i], 0) / scale[i]), at most `levels`; 0 where the scale is 0.
  // The arrays are as long as whole stretches of kLanes.
  void (*zero_points)(const float* low, const float* scale, int64_t count, float levels,
                      float* zero_point);
  // Rounds the scales of groups with those ranges. False if one is out of bounds then, unless its
  // group has zeros only or no bit is dropped. The arrays are as long as whole stretches of kLanes,
  // with ranges of zeros behind `count`.
  bool (*round_scales)(const ScaleRounding& rounding, const float* low, const float* high,
                       int64_t count, float* scale);
  // codes[t * width + i] = round(row t[i] / divisor), within the bounds, + zero_point. Where
  // parameters are those of the width, a part of the memory that follows the block is fetched
  // meanwhile: often the next block lies there.
  void (*encode_rows)(const FloatBlock& rows, const CodeParameters& parameters, uint8_t* codes);
  // rows[t * width + i] = (codes[t * width + i] - zero_point) * scale, for codes of 8 bits. Scales
  // and zero points are one for a token if `per_token`, else one for an element of the width.
  void (*decode_rows)(const uint8_t* codes, bool is_signed, int64_t tokens, int64_t width,
                      const float* scale, const float* zero_point, bool per_token, float* rows);
  void (*search_scales)(const SearchGroups& groups);
  // Codes of 4 or 2 bits, low bits first, for at most `count` packed bytes: for how many is
  // returned, and the rest of less than a vector is left. Signed codes come out as int8_t.
  int64_t (*unpack_bytes)(const uint8_t* packed, int64_t count, int bits, bool is_signed,
                          uint8_t* codes);
  int64_t (*pack_bytes)(const uint8_t* codes, int64_t count, int bits, uint8_t* packed);
  // llama.cpp's records, each a FLOAT16 scale and then the codes. Whether all magnitudes are at
  // most `most`; if not, the records mean nothing.
  bool (*encode_q8_0)(const float* values, int64_t records, float most, uint8_t* target);
  bool (*encode_q4_0)(const float* values, int64_t records, float most, uint8_t* target);
  void (*decode_q8_0)(const uint8_t* source, int64_t records, float* values);
  void (*decode_q4_0)(const uint8_t* source, int64_t records, float* values);
};

// REQUIRES: the machine has the instruction set.
const QuantKernels& QuantKernelsFor(Isa isa);

// Those of SelectedIsa().
const QuantKernels& SelectedQuantKernels();

}  // namespace onnx_light
