// Codes to numbers.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_light/dtype.h"
#include "onnx_light/encoded_payload.h"

namespace onnx_light {

// ValueError `quant.unknown_layout` at `path` where the layout is unknown, so that values cannot be
// had.
void CheckDecodable(const EncodedPayload& payload, const std::string& path);

// The rows [first, first + count) of one batch entry and head as `dtype`, in C order, at an address
// of any alignment. Computed in float, then rounded to nearest even.
// REQUIRES: the rows lie inside, and CheckDecodable() accepts the payload.
void DecodeRows(const EncodedPayload& payload, int64_t batch, int64_t head, int64_t first,
                int64_t count, DType dtype, void* target);

}  // namespace onnx_light
