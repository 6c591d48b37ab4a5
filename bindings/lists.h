// The Python types of repeated fields: RepeatedScalar and RepeatedMessage.
#pragma once

#include "handles.h"

namespace onnx_light::python {

// Makes both types, adds them to `module`, and registers them as MutableSequence.
void AddListTypes(PyObject* module);

}  // namespace onnx_light::python
