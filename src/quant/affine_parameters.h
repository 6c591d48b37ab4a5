// Which scales and zero points suit numbers.
#pragma once

#include "onnx_light/array_view.h"
#include "onnx_light/encoded_payload.h"
#include "onnx_light/page_format.h"

namespace onnx_light {

struct AffineParameters {
  AffineLayout layout;
  SharedBytes scales;
  SharedBytes zero_points;  // empty where the codes are signed
};

// Scales by range, and for codes of 4 and 2 bits those with a lower squared error where a search
// finds them. A cell whose numbers are all equal gets its magnitude as the scale. The scales are
// FLOAT where the format's type has no normal number for one of them.
// REQUIRES: the format is affine, the numbers are finite, every dim is positive.
AffineParameters ChooseParameters(const ArrayView& rows, const PageFormat& format);

}  // namespace onnx_light
