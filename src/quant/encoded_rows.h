// Parts of encoded payloads, without decoding them.
#pragma once

#include <cstdint>
#include <span>

#include "onnx_light/encoded_payload.h"

namespace onnx_light {

// Whether the first `length` rows of every batch entry and head have the same layout, codes, scales
// and zero points, or for an unknown layout the same bytes and the same message besides. As bits:
// NaN is equal to itself. REQUIRES: the dims are equal but for the capacity.
bool EqualEncodedRows(const EncodedPayload& a, const EncodedPayload& b, int64_t length);

// The payload with every row from `length` on turned into zeros: codes are zero points, and scales
// that belong to such rows alone are 0; the bytes of an unknown layout are 0. ValueError
// `quant.unknown_layout` where those are no rows of one size. REQUIRES: 0 < length <= dims[2].
EncodedPayload WithoutRowsFrom(const EncodedPayload& payload, int64_t length);

// The given batch entries, in that order. ValueError `quant.unknown_layout` as CheckDecodable().
// REQUIRES: the indices lie in [0, dims[0]), and there is at least one.
EncodedPayload GatherBatch(const EncodedPayload& payload, std::span<const int64_t> indices);

}  // namespace onnx_light
