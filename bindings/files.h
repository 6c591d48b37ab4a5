// Files that the Python code of the package writes and reads together with others.
#pragma once

#include "onnx_light/interrupt.h"
#include "python.h"

namespace onnx_light::python {

// Lets Python's signal handlers run, and throws ErrorAlreadySet if one raises: Ctrl-C ends a long
// call. For work that goes on without the GIL.
Interrupt SignalHandlers();

// Adds _MessageFile and _load_external_data. Throws ErrorAlreadySet.
void AddFileTypes(PyObject* module);

}  // namespace onnx_light::python
