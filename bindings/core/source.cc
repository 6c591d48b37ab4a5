#include "core/source.h"

#include <memory>

namespace nb = nanobind;

namespace onnx_light::python {

SharedBytes BorrowBuffer(nb::handle object) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_SIMPLE) != 0) throw nb::python_error();
  const void* data = buffer->buf;
  const auto size = static_cast<uint64_t>(buffer->len);
  if (buffer->readonly == 0) {
    SharedBytes copy = CopyBytes(data, size);
    PyBuffer_Release(buffer.get());
    return copy;
  }
  Py_buffer* kept = buffer.release();
  return SharedBytes(data, size, BufferRef::Wrap(data, size, [kept] {
                       const std::unique_ptr<Py_buffer> owned(kept);
                       if (!Py_IsInitialized()) return;  // there is nothing left to give back to
                       const nb::gil_scoped_acquire gil;
                       PyBuffer_Release(kept);
                     }));
}

}  // namespace onnx_light::python
