// ParseOptions, SerializeOptions and SerializeSizeResult for Python.
#pragma once

#include "onnx_light/serialization.h"
#include "python.h"

namespace onnx_light::python {

void AddOptionTypes(PyObject* module);

// The options in a Python object, the default for None or null; TypeError for anything else and
// ValueError for values that make no sense.
ParseOptions ToParseOptions(PyObject* object);
SerializeOptions ToSerializeOptions(PyObject* object);

PyObject* FromSizeResult(const SerializeSizeResult& result);

}  // namespace onnx_light::python
