// Conversion between the dense element types, as numpy and ml_dtypes convert: widening is exact,
// narrowing rounds to nearest, ties to even, and results below the smallest normal number become
// subnormal. What is too large becomes an infinity, or NaN in float8_e4m3fn, which has none. The
// sign of a NaN survives; its payload survives only where both types are the same.
#pragma once

#include <cstdint>

#include "onnx_light/dtype.h"

namespace onnx_light {

// Converts `count` elements. Neither pointer need be aligned; the ranges must not overlap.
void ConvertElements(DType from, const void* source, DType to, void* target, uint64_t count);

// One element.
float ToFloat(DType from, const void* source);

}  // namespace onnx_light
