// What the cache does with the rows of a payload, whatever form it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "onnx_light/array_view.h"
#include "onnx_light/page.h"

namespace onnx_light {

// Bits that the visible rows take, scales and the like included.
double VisibleBits(const PlacedPage& placed, Side side);

// The visible rows of a dense payload.
ArrayView DenseRows(const PlacedPage& placed, Side side);

// The visible rows of any payload: dense ones where they lie, encoded ones decoded to float.
class VisibleRows {
 public:
  // ValueError `quant.unknown_layout` at the side's name. REQUIRES: the page outlives this.
  VisibleRows(const PlacedPage& placed, Side side);
  const ArrayView& view() const { return view_; }
  // What decoded rows fill; null where none were decoded.
  const BufferRef& buffer() const { return buffer_; }

 private:
  BufferRef buffer_;
  ArrayView view_;
};

// The bytes of the visible rows of a dense payload, as [batch, heads, capacity, width] with zeros
// from the last visible row on; shared where nothing is to be left out. REQUIRES: capacity is at
// least the number of visible rows.
SharedBytes DenseBytes(const PlacedPage& placed, Side side, int64_t capacity);

// The capacity of the page in a message: its visible rows, unless a side is encoded, which keeps
// all its rows.
int64_t WrittenCapacity(const PlacedPage& placed);

// Copies the tokens of `source` to rows of a [batch, heads, capacity, width] array whose first row
// to write, that of batch 0 and head 0, is `target`.
void CopyTokens(const ArrayView& source, std::byte* target, int64_t capacity);

// The rows [first, first + count) of one batch entry and head as `dtype`, in C order. Not aligned.
// REQUIRES: the rows are visible, and their values known (CheckReadable).
void ReadRows(const PlacedPage& placed, Side side, int64_t batch, int64_t head, int64_t first,
              int64_t count, DType dtype, void* target);

// ValueError `quant.unknown_layout` at the side's name where the values of a payload are not known.
void CheckReadable(const PlacedPage& placed, Side side);

// Whether two places with equal shapes and lengths show the same format and the same bits.
bool EqualRows(const PlacedPage& a, const PlacedPage& b, Side side);

}  // namespace onnx_light
