// The inner loops of attention, compiled once for each instruction set from one source
// (kernels_body.h). They work on tiles: up to kTileTokens tokens of one KV head, and some of the
// query rows that look at it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace onnx_light {

// Tokens of a tile, and the distance between two rows of scores.
inline constexpr int64_t kTileTokens = 64;

// Widths of queries, of widened keys and values and of sums are multiples of this: what lies past
// the width is zero. It is the widest vector of any instruction set.
inline constexpr int64_t kWidthPadding = 16;
constexpr int64_t PaddedFloats(int64_t count) {
  return (count + kWidthPadding - 1) / kWidthPadding * kWidthPadding;
}

// How a row of keys or values is stored, as far as it decides the inner loop. `Lane`: codes less a
// zero point for each channel. `Group`: codes less a zero point, times a scale, for each row and
// group of channels. Codes without either are plain numbers; scales, if any, belong to whole
// channels or whole rows and are applied outside of the loop.
enum class RowFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3FN,
  kF8E5M2,
  kI8,
  kU8,
  kI4,
  kU4,
  kU8Lane,
  kU4Lane,
  kI8Group,
  kU8Group,
  kI4Group,
  kU4Group,
  kQ8_0,
  kQ4_0,
  kUnknown,  // no kernel reads it
};
inline constexpr int kRowFormats = static_cast<int>(RowFormat::kUnknown);

// Bytes that will be read next: kernels fetch them from memory while they work on something else.
struct BytesAhead {
  const std::byte* data = nullptr;
  int64_t size = 0;
};

// Rows as a kernel reads them. It touches the bytes of the rows and nothing beside them.
struct RowTile {
  RowFormat format = RowFormat::kF32;
  const std::byte* data = nullptr;  // the first row
  int64_t row_size = 0;             // bytes from one row to the next
  int64_t width = 0;                // numbers in a row
  // Lane: one for each channel, in the order of the format. Group: groups for each row.
  const float* zero = nullptr;
  // Group: as `zero`.
  const float* group_scale = nullptr;
  int64_t groups = 1;
  // Null, or what the numbers of a channel or of a row are to be multiplied with. `scores` leaves
  // both to the caller, `mix` the second one.
  const float* channel_scale = nullptr;
  const float* row_scale = nullptr;
  BytesAhead ahead;
};

// Some rows of queries, as many floats each as the tile is wide, or more.
struct QueryRows {
  const float* data = nullptr;
  int64_t stride = 0;  // floats from one row to the next
  int count = 0;       // at most AttentionKernels::max_rows
};

// What a tile adds to the sums of query rows: sums = sums * correction + weights * values.
struct MixTarget {
  const float* weights = nullptr;     // kTileTokens for each row
  const float* correction = nullptr;  // one for each row; null: 1
  float* sums = nullptr;
  int64_t stride = 0;  // floats from one row of sums to the next
  int rows = 0;        // at most AttentionKernels::max_rows
};

// The running softmax of query rows over tiles.
struct SoftmaxTile {
  float* scores = nullptr;           // kTileTokens for each row; become weights
  const float* bias = nullptr;       // the same, added after the softcap; -inf hides; or null
  const float* key_scale = nullptr;  // one for each of kTileTokens, or null
  float softcap = 0;                 // 0: none
  int64_t tokens = 0;
  int64_t rows = 0;
  float* largest = nullptr;     // for each row: the largest score so far
  float* total = nullptr;       // the sum of all exp(score - largest)
  float* correction = nullptr;  // out: what earlier sums are to be multiplied with
};

struct AttentionKernels {
  int max_rows;

  // scores[row * kTileTokens + token], without the scales of the tile. Null: not for this format.
  void (*scores[kRowFormats])(const RowTile& keys, int64_t tokens, const QueryRows& queries,
                              float* scores);
  void (*mix[kRowFormats])(const RowTile& values, int64_t tokens, const MixTarget& target);
  // Rows as floats, all scales applied, `stride` floats apart; past the width zero. Null as above.
  void (*widen[kRowFormats])(const RowTile& rows, int64_t tokens, float* target, int64_t stride);
  // Formats that read channels in pairs: queries and zero points go through `pair` first.
  bool pairs[kRowFormats];
  // The channels a row must have a multiple of, and a group too.
  int64_t step[kRowFormats];

  // From natural order to that of paired formats. REQUIRES: width is a multiple of their step.
  void (*pair)(const float* source, int64_t width, float* target);
  // Products of the first `width` numbers of rows with one row. In place is fine.
  void (*multiply)(const float* rows, int64_t stride, int64_t count, const float* factors,
                   int64_t width, float* target);
  void (*soften)(const SoftmaxTile& tile);
  // Whether all numbers are finite. REQUIRES: count is a multiple of kWidthPadding.
  bool (*finite)(const float* values, int64_t count);
  // target = target * a + source * b.
  void (*blend)(float* target, float a, const float* source, float b, int64_t count);
  float (*exp)(float x);
};

// REQUIRES: the machine has the instruction set.
const AttentionKernels& AttentionKernelsFor(Isa isa);

// Those of SelectedIsa().
const AttentionKernels& SelectedAttentionKernels();

}  // namespace onnx_light
