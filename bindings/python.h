// The little of the C API that every file here needs: references, and errors across the border.
#pragma once

// clang-format off: structmember.h needs what Python.h declares.
#include <Python.h>
#include <structmember.h>
// clang-format on

#include <exception>
#include <utility>

namespace onnx_light::python {

// An owned reference, or null.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  static Ref Borrow(PyObject* object) { return Ref(Py_XNewRef(object)); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Thrown where a Python error is set already.
struct ErrorAlreadySet {};

// `object`, or ErrorAlreadySet if it is null.
inline PyObject* Check(PyObject* object) {
  if (object == nullptr) throw ErrorAlreadySet();
  return object;
}
inline void Check(int status) {
  if (status < 0) throw ErrorAlreadySet();
}

// Sets a Python error and throws. `format` as PyErr_Format's.
[[noreturn]] void Raise(PyObject* type, const char* format, ...);

// Sets the Python error for the exception that is being handled.
void SetErrorFromCurrentException();

bool IsNumpyArray(PyObject* object);

// Fills `view` with the bytes of `object` if it is a buffer of bytes: a bytearray, a memoryview, an
// array. Single numbers (of numpy, of ctypes) have buffers, too, but are no bytes. Else false.
bool GetBytes(PyObject* object, Py_buffer* view);

// Runs `f`, a callable that returns T, and turns exceptions into a Python error and `failure`.
template <typename T, typename F>
T Guard(T failure, F&& f) {
  try {
    return f();
  } catch (...) {
    SetErrorFromCurrentException();
    return failure;
  }
}
template <typename F>
PyObject* GuardObject(F&& f) {
  return Guard<PyObject*>(nullptr, std::forward<F>(f));
}

// A type that is complete: no attribute changes any more, no object can be given another class, and
// nobody derives from it. Objects of two of our classes may be alike in size only.
inline void Freeze(PyTypeObject* type) {
  type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
  type->tp_flags &= ~static_cast<unsigned long>(Py_TPFLAGS_BASETYPE);
  PyType_Modified(type);
}

// Lets other threads run.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace onnx_light::python
