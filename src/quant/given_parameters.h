// Encoding with scales and zero points that a caller gives.
#pragma once

#include <string>

#include "onnx_light/array_view.h"
#include "onnx_light/encoded_payload.h"
#include "onnx_light/quantization_parameters.h"

namespace onnx_light {

// The payload of these rows, whose number is its capacity. Where no layout has the given blocks,
// parameters are repeated. ValueError at `path`: `quant.scale` where the shape does not divide the
// rows' or a scale is negative or not finite, `quant.not_finite` for rows that are not.
// REQUIRES: there is a code type, and every dim is positive.
EncodedPayload EncodeWithGiven(const ArrayView& rows, const QuantizationParameters& parameters,
                               const std::string& path);

}  // namespace onnx_light
