#include "input.h"

#include <memory>

namespace onnx_light::python {
namespace {

// Takes the GIL, also on threads that Python does not know; after Python's end there is nothing to
// give back to.
class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()) {}
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

int ReleaseBuffer(void* buffer) {
  const std::unique_ptr<Py_buffer> owned(static_cast<Py_buffer*>(buffer));
  PyBuffer_Release(owned.get());
  return 0;
}

// The exporter of a buffer may be a Python class, whose code must not run in the middle of a change
// to a message tree: the interpreter calls it when it is between two instructions.
void ReleaseBufferLater(Py_buffer* buffer) {
  if (!Py_IsInitialized()) return;
  if (Py_AddPendingCall(ReleaseBuffer, buffer) == 0) return;
  const WithGil gil;
  ReleaseBuffer(buffer);
}

}  // namespace

Input::Input(PyObject* data, bool borrow, bool accept_str) {
  if (PyBytes_Check(data)) {
    SetObject(data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), borrow);
  } else if (PyUnicode_Check(data) && accept_str) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(data, &size);
    if (text == nullptr) throw ErrorAlreadySet();
    SetObject(data, text, size, borrow);
  } else if (GetBytes(data, &buffer_)) {
    SetBuffer(borrow);
  } else {
    Raise(PyExc_TypeError, "a bytes-like object%s is needed, not %.200s",
          accept_str ? " or a str" : "", Py_TYPE(data)->tp_name);
  }
}

// A bytes or str object: immutable, and its end runs no Python code.
void Input::SetObject(PyObject* object, const char* data, Py_ssize_t size, bool borrow) {
  object_ = Ref::Borrow(object);
  input_.bytes = {reinterpret_cast<const std::byte*>(data), static_cast<size_t>(size)};
  if (!borrow) return;
  Py_INCREF(object);
  input_.owner = BufferRef::Wrap(data, static_cast<uint64_t>(size), [object] {
    if (!Py_IsInitialized()) return;
    const WithGil gil;
    Py_DECREF(object);
  });
}

void Input::SetBuffer(bool borrow) {
  const auto size = static_cast<size_t>(buffer_.len);
  if (buffer_.readonly == 0) {
    const SharedBytes copy = CopyBytes(buffer_.buf, size);
    input_ = {copy.span(), copy.owner};
    private_copy_ = true;
    return;
  }
  input_.bytes = {static_cast<const std::byte*>(buffer_.buf), size};
  if (!borrow) return;
  auto* kept = new Py_buffer(buffer_);
  buffer_ = Py_buffer{};
  input_.owner = BufferRef::Wrap(kept->buf, size, [kept] { ReleaseBufferLater(kept); });
}

Input::~Input() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

}  // namespace onnx_light::python
