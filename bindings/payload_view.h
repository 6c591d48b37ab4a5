// Shared bytes as a Python object with the buffer protocol.
#pragma once

#include "onnx_light/bytes.h"
#include "python.h"

namespace onnx_light::python {

void AddPayloadType();
// A read-only memoryview of `bytes`, which it keeps alive.
PyObject* NewPayloadView(SharedBytes bytes);

}  // namespace onnx_light::python
