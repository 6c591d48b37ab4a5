// The methods of messages that read and write bytes, files and streams.
#pragma once

#include "handles.h"
#include "onnx_light/serialization.h"

namespace onnx_light::python {

// A new bytes object with the serialized form.
PyObject* SerializeToBytes(const MessageObject& self, const SerializeOptions& options);

PyObject* ByteSize(PyObject* self, PyObject*);
PyObject* ParseFromString(PyObject* self, PyObject* arguments, PyObject* keywords);
PyObject* MergeFromString(PyObject* self, PyObject* data);
PyObject* FromString(PyObject* type, PyObject* data);
PyObject* ParseFromFile(PyObject* self, PyObject* arguments, PyObject* keywords);
PyObject* SerializeToString(PyObject* self, PyObject* arguments, PyObject* keywords);
PyObject* SerializeSize(PyObject* self, PyObject* arguments, PyObject* keywords);
PyObject* SerializeToFile(PyObject* self, PyObject* arguments, PyObject* keywords);
PyObject* SerializeToFileDescriptor(PyObject* self, PyObject* arguments, PyObject* keywords);
PyObject* SerializeToStream(PyObject* self, PyObject* output);

}  // namespace onnx_light::python
