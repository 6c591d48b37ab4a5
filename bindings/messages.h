// The Python classes of all messages, made from the tables.
#pragma once

#include "handles.h"

namespace onnx_light::python {

// Makes the base class Message and one class per message, with its properties, has_x and add_x
// methods, field numbers and nested classes, and adds them to `module`.
void AddMessageTypes(PyObject* module);

// The methods of the base class, in message_methods.cc.
PyMethodDef* MessageMethods();
PyObject* CompareMessages(PyObject* self, PyObject* other, int operation);
PyObject* MessageText(PyObject* self);

// A callable attribute of a class that is bound to one field: has_x, add_x. In field_method.cc.
enum class FieldMethodKind { kHas, kAdd };
void AddFieldMethodType();
PyObject* NewFieldMethod(const FieldBinding& field, FieldMethodKind kind);

}  // namespace onnx_light::python
