// Encoded payloads from messages and back.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "onnx_light/encoded_payload.h"
#include "onnx_light/messages.h"

namespace onnx_light {

// The number of a type of codes in TensorProto.DataType. REQUIRES: kInt8 to kUInt2.
int32_t StorageType(PageType code_type);

// The dims of the scale, and of the zero point, of a payload with these dims.
std::vector<int64_t> ScaleDims(const AffineLayout& layout, const std::array<int64_t, 4>& dims);

// The payload that `value` describes; large data are shared with the message. References are
// resolved in `model`, which may be null where there are none. An unknown struct layout is kept as
// it is, its types resolved.
//
// Throws ValueError with a path such as "<path>.affine.scale": `cache.missing`,
// `cache.logical_type` (not FLOAT with four positive dims), `cache.storage_type`, `cache.scale`,
// `cache.zero_point`, `cache.axis`, `cache.block_size`, `cache.payload_size`, `cache.layout`,
// `cache.reference`, `cache.data`, `cache.external`, `cache.too_large`.
EncodedPayload ReadEncodedValue(const EncodedValueProto& value, const ModelProto* model,
                                const std::string& path);

// Fills the empty message `value`, which lives in `arena`; large data are shared with it.
void WriteEncodedValue(const EncodedPayload& payload, Arena& arena, EncodedValueProto& value);

}  // namespace onnx_light
