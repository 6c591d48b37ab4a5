#include "input.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

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

// Whether a buffer's exporter is a bytes object, or a view of one.
bool IsBytes(PyObject* exporter) {
  if (PyMemoryView_Check(exporter)) exporter = PyMemoryView_GET_BASE(exporter);
  return exporter != nullptr && PyBytes_Check(exporter);
}

// Buffers that nothing refers to any more. The exporter of one may be a Python class, whose code
// must not run in the middle of a change to a message tree: the interpreter releases them when it
// is between two instructions.
std::mutex done_mutex;
std::vector<std::unique_ptr<Py_buffer>> done_buffers;

int ReleaseDone(void*) {
  std::vector<std::unique_ptr<Py_buffer>> buffers;
  {
    const std::lock_guard lock(done_mutex);
    buffers.swap(done_buffers);
  }
  for (const auto& buffer : buffers) PyBuffer_Release(buffer.get());
  return 0;
}

void ReleaseLater(std::unique_ptr<Py_buffer> buffer) {
  if (!Py_IsInitialized()) {
    buffer.release();  // with Python's memory
    return;
  }
  const std::lock_guard lock(done_mutex);
  done_buffers.push_back(std::move(buffer));
  // The interpreter has room for a few calls only; without it a later one releases this buffer,
  // too.
  if (done_buffers.size() == 1 || done_buffers.size() % 64 == 0) {
    Py_AddPendingCall(ReleaseDone, nullptr);
  }
}

}  // namespace

Input::Input(PyObject* data, bool borrow, bool accept_str) {
  // Of a subclass of bytes the end may run code, as that of any buffer's exporter may.
  if (PyBytes_CheckExact(data)) {
    SetObject(data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), borrow);
  } else if (PyUnicode_Check(data) && accept_str) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(data, &size);
    if (text == nullptr) throw ErrorAlreadySet();
    SetObject(data, text, size, borrow && PyUnicode_CheckExact(data));
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
  may_change_ = !IsBytes(buffer_.obj);
  if (!borrow) return;
  auto* kept = new Py_buffer(buffer_);
  buffer_ = Py_buffer{};
  input_.owner =
      BufferRef::Wrap(kept->buf, size, [kept] { ReleaseLater(std::unique_ptr<Py_buffer>(kept)); });
}

Input::~Input() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

}  // namespace onnx_light::python
