// Enums as protobuf shows them: a wrapper with Name() and Value(), and every value as an attribute.
#pragma once

#include "python.h"

namespace onnx_light::python {

// Adds EnumTypeWrapper, the enums and their values to `module` and to the message classes.
// REQUIRES: the message classes are there.
void AddEnums(PyObject* module);

}  // namespace onnx_light::python
