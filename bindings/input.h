// The bytes that Python hands to a parser.
#pragma once

#include "onnx_light/serialization.h"
#include "python.h"

namespace onnx_light::python {

// Holds the bytes of a bytes, bytearray, memoryview, str (its UTF-8) or other buffer. Bytes that
// may be written to through this buffer are copied first and then borrowed.
class Input {
 public:
  // TypeError for other objects. `borrow`: the input may be kept alive by a message.
  Input(PyObject* data, bool borrow, bool accept_str);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  const ParseInput& parse_input() const { return input_; }
  // Whether `owner` is a private copy, which costs nothing to borrow.
  bool is_private_copy() const { return private_copy_; }
  // Whether other threads may change the bytes while the GIL is released: a read-only view need not
  // be the only one. A parser looks at some bytes twice.
  bool may_change() const { return may_change_; }

 private:
  void SetObject(PyObject* object, const char* data, Py_ssize_t size, bool borrow);
  void SetBuffer(bool borrow);

  ParseInput input_;
  Ref object_;
  Py_buffer buffer_{};
  bool private_copy_ = false;
  bool may_change_ = false;
};

}  // namespace onnx_light::python
