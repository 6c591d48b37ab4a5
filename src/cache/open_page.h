// Growing a page in place.
//
// A row is written once, by the one thread whose Claim() covered it, before any value covers the
// row; it does not matter that other threads read earlier rows meanwhile. Values carry the rows to
// other threads, and a value travels by a mutex, join or the like, so Claim() itself needs no more
// than atomicity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "onnx_light/array_view.h"
#include "onnx_light/page.h"

namespace onnx_light {

class OpenPage {
 public:
  // A page in new memory whose first `committed` rows the caller writes. ValueError
  // `cache.too_large` where the size does not fit 63 bits; std::bad_alloc.
  static std::shared_ptr<const Page> Make(const CacheShape& shape, int64_t capacity,
                                          DType key_dtype, DType value_dtype, int64_t committed);

  // Whether the caller may now write the rows [length, length + count): false if the page does not
  // grow, is too small, or somebody else went on from `length` before.
  static bool Claim(const Page& page, int64_t length, int64_t count);

  // Copies the tokens of `source` to the rows from `row` on of the batch entries from `batch` on.
  // REQUIRES: the caller claimed the rows, and shape and dtype fit.
  static void Write(const Page& page, Side side, int64_t batch, int64_t row,
                    const ArrayView& source);
};

}  // namespace onnx_light
