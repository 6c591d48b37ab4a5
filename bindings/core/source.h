// Bytes that belong to Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include "onnx_light/bytes.h"

namespace onnx_light::python {

// The bytes of a bytes-like object: where they lie if it is read-only, and it then lives as long as
// they are referred to; else a copy. TypeError if it is something else or not contiguous.
SharedBytes BorrowBuffer(nanobind::handle object);

}  // namespace onnx_light::python
