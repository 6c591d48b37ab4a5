// Single values between Python and messages, with protobuf's rules for types and ranges.
#pragma once

#include <string>
#include <string_view>

#include "handles.h"

namespace onnx_light::python {

// Text for an error: "NodeProto.name".
std::string FieldName(const FieldBinding& field);

// The bytes of a bytes-like or str object while this lives.
class BytesView {
 public:
  // Accepts what a string field (UTF-8 text) or a bytes field takes; else TypeError or ValueError.
  BytesView(PyObject* value, const FieldBinding& field);
  ~BytesView();
  BytesView(const BytesView&) = delete;
  BytesView& operator=(const BytesView&) = delete;

  std::string_view view() const { return view_; }

 private:
  void FromText(PyObject* value, const FieldBinding& field);

  std::string_view view_;
  Py_buffer buffer_{};
};

// A number as it lies in memory.
union Number {
  int32_t int32;
  int64_t int64;
  uint32_t uint32;
  uint64_t uint64;
  bool boolean;
  float float32;
  double float64;
};

// The value of a number field of this kind. TypeError for other types (bool and float in integer
// fields too), ValueError out of range and for enum values that are not listed.
Number ToNumber(PyObject* value, const FieldBinding& field);

// The Python object of the value at `at`: int, float, bool, str (bytes if it is no UTF-8), bytes.
PyObject* ToPython(const FieldInfo& field, const void* at);

inline bool IsText(Kind kind) { return kind == Kind::kString || kind == Kind::kBytes; }

}  // namespace onnx_light::python
