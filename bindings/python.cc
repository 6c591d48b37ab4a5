#include "python.h"

#include <cstdarg>
#include <new>
#include <string>

#include "onnx_light/errors.h"

namespace onnx_light::python {
namespace {

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
                          ? Py_BuildValue("(is)", error.error_number(), error.message().c_str())
                          : Py_BuildValue("(iss)", error.error_number(), error.message().c_str(),
                                          error.filename().c_str()));
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

void SetErrorFromCurrentException() {
  try {
    throw;
  } catch (const ErrorAlreadySet&) {
  } catch (const ParseError& error) {
    SetCodedError("ParseError", Py_BuildValue("(sssK)", error.code().c_str(), error.path().c_str(),
                                              error.message().c_str(),
                                              static_cast<unsigned long long>(error.offset())));
  } catch (const ValueError& error) {
    SetCodedError("CodedError", Py_BuildValue("(sss)", error.code().c_str(), error.path().c_str(),
                                              error.message().c_str()));
  } catch (const TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const SystemError& error) {
    SetSystemError(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_SystemError, "%s", error.what());
  }
}

}  // namespace onnx_light::python
