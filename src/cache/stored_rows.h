// New tokens in the type in which a policy stores them.
#pragma once

#include "onnx_light/array_view.h"
#include "onnx_light/bytes.h"
#include "onnx_light/cache_policy.h"
#include "onnx_light/page.h"

namespace onnx_light {

// The type that an open page has on a side whose new tokens are of type `appended`.
DType OpenDType(const CachePolicy& policy, Side side, DType appended);

// The tokens as they are where they have the type already, and else a converted copy of them.
class StoredRows {
 public:
  // Rounds to nearest even; float8 saturates, but keeps infinities that it has. ValueError
  // `cache.overflow` at the side's name where a finite number would become infinite in FLOAT16 or
  // BFLOAT16. REQUIRES: `source` outlives this.
  StoredRows(const ArrayView& source, DType dtype, Side side);

  const ArrayView& view() const { return view_; }
  // What converted rows fill; null where none were.
  const BufferRef& buffer() const { return buffer_; }

 private:
  BufferRef buffer_;  // null where nothing is converted
  ArrayView view_;
};

}  // namespace onnx_light
