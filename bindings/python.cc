#include "python.h"

#include <cstdarg>
#include <cstring>
#include <new>
#include <string>

#include "onnx_light/errors.h"

namespace onnx_light::python {
namespace {

// Paths and values of a file need not be UTF-8, and an error must be able to name them.
PyObject* ToText(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
}

// Raises onnx_light.errors.`name`(*arguments).
void SetCodedError(const char* name, PyObject* arguments) {
  const Ref owned(arguments);
  const Ref module(arguments == nullptr ? nullptr : PyImport_ImportModule("onnx_light.errors"));
  const Ref type(module ? PyObject_GetAttrString(module.get(), name) : nullptr);
  const Ref error(type ? PyObject_CallObject(type.get(), arguments) : nullptr);
  if (error) PyErr_SetObject(type.get(), error.get());
}

void SetSystemError(const SystemError& error) {
  // Python makes the subclass (FileNotFoundError, ...) from the number.
  const Ref arguments(error.filename().empty()
                          ? Py_BuildValue("(iN)", error.error_number(), ToText(error.message()))
                          : Py_BuildValue("(iNN)", error.error_number(), ToText(error.message()),
                                          PyUnicode_DecodeFSDefault(error.filename().c_str())));
  if (!arguments) return;
  const Ref exception(PyObject_CallObject(PyExc_OSError, arguments.get()));
  if (exception) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
  }
}

}  // namespace

void Raise(PyObject* type, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyErr_FormatV(type, format, arguments);
  va_end(arguments);
  throw ErrorAlreadySet();
}

namespace {

bool IsNumpyScalar(PyObject* object) {
  PyObject* bases = Py_TYPE(object)->tp_mro;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); ++i) {
    const auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(bases, i));
    if (std::strcmp(base->tp_name, "numpy.generic") == 0) return true;
  }
  return false;
}

}  // namespace

bool IsNumpyArray(PyObject* object) {
  return std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") == 0;
}

bool GetBytes(PyObject* object, Py_buffer* view) {
  const bool is_bytes = PyBytes_Check(object);  // numpy has a scalar that is one
  if (PyObject_CheckBuffer(object) == 0 || (!is_bytes && IsNumpyScalar(object))) return false;
  // Arrays of a type that the buffer protocol has no name for still have bytes.
  Check(PyObject_GetBuffer(object, view, PyBUF_SIMPLE));
  if (view->ndim != 0 || is_bytes || IsNumpyArray(object)) return true;
  PyBuffer_Release(view);
  *view = {};
  return false;
}

void SetErrorFromCurrentException() {
  try {
    throw;
  } catch (const ErrorAlreadySet&) {
  } catch (const ParseError& error) {
    SetCodedError("ParseError", Py_BuildValue("(NNNK)", ToText(error.code()), ToText(error.path()),
                                              ToText(error.message()),
                                              static_cast<unsigned long long>(error.offset())));
  } catch (const ValueError& error) {
    SetCodedError("CodedError", Py_BuildValue("(NNN)", ToText(error.code()), ToText(error.path()),
                                              ToText(error.message())));
  } catch (const TypeError& error) {
    const Ref text(ToText(error.what()));
    if (text) PyErr_SetObject(PyExc_TypeError, text.get());
  } catch (const SystemError& error) {
    SetSystemError(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_SystemError, "%s", error.what());
  }
}

}  // namespace onnx_light::python
