// Formats and policies that come from Python.
#pragma once

#include <nanobind/nanobind.h>

#include "onnx_light/cache_policy.h"

namespace onnx_light::python {

// A PageFormat, its text, or anything that numpy takes for a dtype. ValueError `quant.format` at
// `path` for another text or dtype; what numpy raises where it is no dtype.
PageFormat ToPageFormat(nanobind::handle format, const char* path);

// A CachePolicy or its text; None is the policy that keeps what is appended. ValueError
// `quant.policy` or `quant.format`, TypeError for anything else.
CachePolicy ToPolicy(nanobind::handle policy);

// The same, or a PageFormat or dtype for both sides.
CachePolicy ToPolicyOrFormat(nanobind::handle policy);

// None where the policy keeps what is appended.
nanobind::object PolicyObject(const CachePolicy& policy);

}  // namespace onnx_light::python
