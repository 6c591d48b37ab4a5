// Numbers to codes.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_light/array_view.h"
#include "onnx_light/encoded_payload.h"
#include "onnx_light/page_format.h"

namespace onnx_light {

// Throws ValueError at `path` unless rows like these can be stored in an encoded format:
// `quant.not_finite` for NaN and infinities; for records `quant.width` where the width is no
// multiple of kRecordValues, and `quant.overflow` where a record's scale would be infinite.
void CheckEncodable(const ArrayView& rows, const PageFormat& format, const std::string& path);

// The payload of these rows, whose number is its capacity. Errors as CheckEncodable(). REQUIRES:
// the format is not dense, every dim is positive.
EncodedPayload Encode(const ArrayView& rows, const PageFormat& format, const std::string& path);

// Codes for given scales and zero points (none: all are 0), which the payload shares. REQUIRES: the
// rows are finite, and the parameters have the sizes that follow from layout and shape.
EncodedPayload EncodeWith(const ArrayView& rows, const AffineLayout& layout, SharedBytes scales,
                          SharedBytes zero_points);

}  // namespace onnx_light
