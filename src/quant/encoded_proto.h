// Encoded payloads from messages and back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "onnx/tensor_data.h"
#include "onnx_light/encoded_payload.h"
#include "onnx_light/messages.h"

namespace onnx_light {

// The number of a type of codes in TensorProto.DataType. REQUIRES: kInt8 to kUInt2.
int32_t StorageType(PageType code_type);

// The dims of the scale, and of the zero point, of a payload with these dims, of any rank.
std::vector<int64_t> ScaleDims(const AffineLayout& layout, std::span<const int64_t> dims);

// What an encoded value may refer to.
struct References {
  const ModelProto* model = nullptr;  // may be null where there are no references
  OtherFiles other_files = OtherFiles::kRefuse;
};

// The payload that `value` describes; large data are shared with the message. An unknown struct
// layout is kept as it is, its types resolved. Where data in other files are skipped, the payload
// is without them.
//
// Throws ValueError with a path such as "<path>.affine.scale": `cache.missing`,
// `cache.logical_type` (not FLOAT with four positive dims), `cache.storage_type`, `cache.scale`,
// `cache.zero_point`, `cache.axis`, `cache.block_size`, `cache.payload_size`, `cache.layout`,
// `cache.reference`, `cache.data`, `cache.external`, `cache.too_large`.
EncodedPayload ReadEncodedValue(const EncodedValueProto& value, const References& references,
                                const std::string& path);

// That `value` is an encoded tensor of any rank: the same rules, but the logical type may be FLOAT,
// FLOAT16, BFLOAT16 or DOUBLE, and dims may be 0.
void CheckEncodedValue(const EncodedValueProto& value, const References& references,
                       const std::string& path);

// Fills the empty message `value`, which lives in `arena`; large data are shared with it.
void WriteEncodedValue(const EncodedPayload& payload, Arena& arena, EncodedValueProto& value);

}  // namespace onnx_light
