#include "arrays.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "convert.h"
#include "fields.h"

namespace onnx_light::python {
namespace {

// One run of numbers of an object that says how they lie. Releases it at its end.
class Buffer {
 public:
  // Not `ok` where the object's own iterator would not give exactly these numbers.
  explicit Buffer(PyObject* values) {
    if (!IsArrayOfNumbers(values)) return;
    if (PyObject_GetBuffer(values, &view_, PyBUF_RECORDS_RO) == 0) return;
    // Types that the buffer protocol has no name for.
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw ErrorAlreadySet();
    PyErr_Clear();
  }
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool ok() const { return view_.obj != nullptr && view_.ndim == 1 && view_.format[1] == '\0'; }
  char format() const { return view_.format[0]; }
  Py_ssize_t width() const { return view_.itemsize; }
  uint64_t count() const { return static_cast<uint64_t>(view_.shape[0]); }
  bool is_contiguous() const { return view_.strides[0] == view_.itemsize; }
  const void* data() const { return view_.buf; }
  template <typename T>
  T At(uint64_t index) const {
    T value;
    std::memcpy(
        &value,
        static_cast<const char*>(view_.buf) + static_cast<Py_ssize_t>(index) * view_.strides[0],
        sizeof(T));
    return value;
  }

 private:
  static bool IsArrayOfNumbers(PyObject* values) {
    return IsNumpyArray(values) || PyMemoryView_Check(values) || PyBytes_CheckExact(values) ||
           PyByteArray_CheckExact(values) ||
           std::strcmp(Py_TYPE(values)->tp_name, "array.array") == 0;
  }

  Py_buffer view_{};
};

// Room for `count` more numbers at the end of the list.
void* Extend(Arena& arena, RepeatedBase& list, Kind kind, uint64_t count) {
  const uint64_t start = list.size;
  InsertElements(arena, list, start, count, kind);
  return static_cast<char*>(list.data) + start * ElementSize(kind);
}

template <typename To, typename From>
bool AppendAs(Arena& arena, RepeatedBase& list, Kind kind, const Buffer& from) {
  const uint64_t count = from.count();
  if constexpr (std::is_integral_v<To>) {
    // No float goes into a list of integers, not even a whole one.
    if constexpr (std::is_floating_point_v<From>) return false;
    if constexpr (std::is_integral_v<From>) {
      for (uint64_t i = 0; i < count; ++i) {
        if (!std::in_range<To>(from.At<From>(i))) return false;
      }
    }
  }
  if (count == 0) return true;
  auto* to = static_cast<To*>(Extend(arena, list, kind, count));
  if (std::is_same_v<To, From> && from.is_contiguous()) {
    std::memcpy(to, from.data(), count * sizeof(To));
    return true;
  }
  for (uint64_t i = 0; i < count; ++i) {
    const From value = from.At<From>(i);
    // An integer goes by way of double, as Python's float() has it.
    if constexpr (std::is_floating_point_v<To> && std::is_integral_v<From>) {
      to[i] = static_cast<To>(static_cast<double>(value));
    } else {
      to[i] = static_cast<To>(value);
    }
  }
  return true;
}

template <typename To>
bool AppendTo(Arena& arena, RepeatedBase& list, Kind kind, const Buffer& from) {
  const Py_ssize_t width = from.width();
  const auto is = [&](const char* formats, Py_ssize_t bytes) {
    return width == bytes && std::strchr(formats, from.format()) != nullptr;
  };
  const char* const signed_formats = "bhilqn";
  const char* const unsigned_formats = "BHILQN";
  if (is(signed_formats, 8)) return AppendAs<To, int64_t>(arena, list, kind, from);
  if (is(signed_formats, 4)) return AppendAs<To, int32_t>(arena, list, kind, from);
  if (is(signed_formats, 2)) return AppendAs<To, int16_t>(arena, list, kind, from);
  if (is(signed_formats, 1)) return AppendAs<To, int8_t>(arena, list, kind, from);
  if (is(unsigned_formats, 8)) return AppendAs<To, uint64_t>(arena, list, kind, from);
  if (is(unsigned_formats, 4)) return AppendAs<To, uint32_t>(arena, list, kind, from);
  if (is(unsigned_formats, 2)) return AppendAs<To, uint16_t>(arena, list, kind, from);
  if (is(unsigned_formats, 1)) return AppendAs<To, uint8_t>(arena, list, kind, from);
  if (is("f", 4)) return AppendAs<To, float>(arena, list, kind, from);
  if (is("d", 8)) return AppendAs<To, double>(arena, list, kind, from);
  return false;
}

bool AppendList(Arena& arena, RepeatedBase& list, Kind kind, const ListObject& values) {
  if (values.kind() != kind) return false;
  const uint64_t count = values.list->size;
  if (count == 0) return true;
  void* to = Extend(arena, list, kind, count);
  // Looked at now: the lists may be one and have moved.
  std::memcpy(to, values.list->data, count * ElementSize(kind));
  return true;
}

const char* NumpyType(Kind kind) {
  switch (kind) {
    case Kind::kInt32:
    case Kind::kEnum:
      return "int32";
    case Kind::kInt64:
      return "int64";
    case Kind::kUint32:
      return "uint32";
    case Kind::kUint64:
      return "uint64";
    case Kind::kBool:
      return "bool";
    case Kind::kFloat:
      return "float32";
    case Kind::kDouble:
      return "float64";
    case Kind::kString:
      return "U";
    default:
      return "S";
  }
}

PyObject* NumbersToArray(ListObject& self, PyObject* numpy) {
  Ref array;
  uint64_t size = 0;
  do {  // making an array may run code that changes the list
    size = self.list->size;
    array = Ref(Check(PyObject_CallMethod(numpy, "empty", "ns", static_cast<Py_ssize_t>(size),
                                          NumpyType(self.kind()))));
  } while (size != self.list->size);
  if (size != 0) {
    Py_buffer view;
    Check(PyObject_GetBuffer(array.get(), &view, PyBUF_WRITABLE));
    std::memcpy(view.buf, self.list->data, static_cast<size_t>(view.len));
    PyBuffer_Release(&view);
  }
  return array.release();
}

}  // namespace

bool AppendNumbers(Arena& arena, RepeatedBase& list, const FieldBinding& field, PyObject* values) {
  const Kind kind = field.field->kind;
  if (IsText(kind) || kind == Kind::kMessage || kind == Kind::kEnum) return false;
  if (Py_TYPE(values) == scalar_list_type) {
    return AppendList(arena, list, kind, *reinterpret_cast<ListObject*>(values));
  }
  const Buffer from(values);
  if (!from.ok()) return false;
  switch (kind) {
    case Kind::kInt32:
      return AppendTo<int32_t>(arena, list, kind, from);
    case Kind::kInt64:
      return AppendTo<int64_t>(arena, list, kind, from);
    case Kind::kUint32:
      return AppendTo<uint32_t>(arena, list, kind, from);
    case Kind::kUint64:
      return AppendTo<uint64_t>(arena, list, kind, from);
    case Kind::kFloat:
      return AppendTo<float>(arena, list, kind, from);
    case Kind::kDouble:
      return AppendTo<double>(arena, list, kind, from);
    default:
      return false;
  }
}

PyObject* ToArray(ListObject& self, PyObject* dtype) {
  const bool has_dtype = dtype != nullptr && dtype != Py_None;
  const Ref numpy(Check(PyImport_ImportModule("numpy")));
  if (IsText(self.kind())) {
    const Ref texts(Check(PySequence_List(reinterpret_cast<PyObject*>(&self))));
    const Ref own(Check(PyUnicode_FromString(NumpyType(self.kind()))));
    return Check(PyObject_CallMethod(numpy.get(), "array", "OO", texts.get(),
                                     has_dtype ? dtype : own.get()));
  }
  Ref array(NumbersToArray(self, numpy.get()));
  if (!has_dtype) return array.release();
  // Order, casting, subclasses and copying as astype has them, but no second copy if the type fits.
  return Check(
      PyObject_CallMethod(array.get(), "astype", "OssOO", dtype, "K", "unsafe", Py_True, Py_False));
}

}  // namespace onnx_light::python
