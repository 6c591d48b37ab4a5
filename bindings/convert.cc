#include "convert.h"

#include <cstring>
#include <limits>

namespace onnx_light::python {
namespace {

[[noreturn]] void BadType(PyObject* value, const FieldBinding& field, const char* expected) {
  Raise(PyExc_TypeError, "%s: %.200s is no value for this field, which takes %s",
        FieldName(field).c_str(), Py_TYPE(value)->tp_name, expected);
}

[[noreturn]] void OutOfRange(PyObject* value, const FieldBinding& field, const char* type) {
  Raise(PyExc_ValueError, "%s: %R is out of range for %s", FieldName(field).c_str(), value, type);
}

bool IsNumpyBool(PyObject* value) {
  const char* name = Py_TYPE(value)->tp_name;
  return std::strcmp(name, "numpy.bool") == 0 || std::strcmp(name, "numpy.bool_") == 0;
}

// An exact integer: what has __index__, but no bool.
Ref ToIndex(PyObject* value, const FieldBinding& field) {
  if (PyBool_Check(value)) BadType(value, field, "an integer");
  if (PyLong_CheckExact(value)) return Ref::Borrow(value);
  if (!PyIndex_Check(value)) BadType(value, field, "an integer");
  PyObject* index = PyNumber_Index(value);
  if (index == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw ErrorAlreadySet();
    PyErr_Clear();
    BadType(value, field, "an integer");
  }
  return Ref(index);
}

int64_t ToSigned(PyObject* value, const FieldBinding& field, int64_t low, int64_t high,
                 const char* type) {
  const Ref index = ToIndex(value, field);
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.get(), &overflow);
  if (number == -1 && PyErr_Occurred() != nullptr) throw ErrorAlreadySet();
  if (overflow != 0 || number < low || number > high) OutOfRange(value, field, type);
  return number;
}

uint64_t ToUnsigned(PyObject* value, const FieldBinding& field, uint64_t high, const char* type) {
  const Ref index = ToIndex(value, field);
  const unsigned long long number = PyLong_AsUnsignedLongLong(index.get());
  if (number == std::numeric_limits<unsigned long long>::max() && PyErr_Occurred() != nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) throw ErrorAlreadySet();
    PyErr_Clear();
    OutOfRange(value, field, type);
  }
  if (number > high) OutOfRange(value, field, type);
  return number;
}

double ToDouble(PyObject* value, const FieldBinding& field) {
  if (PyFloat_CheckExact(value)) return PyFloat_AS_DOUBLE(value);
  // An array with one element converts to a number, but a field takes none.
  if (IsNumpyArray(value)) BadType(value, field, "a number");
  const double number = PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
      PyErr_Clear();
      OutOfRange(value, field, "a float");
    }
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw ErrorAlreadySet();
    PyErr_Clear();
    BadType(value, field, "a number");
  }
  return number;
}

bool ToBool(PyObject* value, const FieldBinding& field) {
  if (PyBool_Check(value)) return value == Py_True;
  if (IsNumpyBool(value)) return PyObject_IsTrue(value) == 1;
  if (IsNumpyArray(value) || !PyIndex_Check(value)) BadType(value, field, "a bool or an integer");
  return ToSigned(value, field, std::numeric_limits<int64_t>::min(),
                  std::numeric_limits<int64_t>::max(), "a bool") != 0;
}

int32_t ToEnum(PyObject* value, const FieldBinding& field) {
  const EnumInfo& info = *field.field->enumeration;
  if (PyUnicode_Check(value)) {
    const char* name = PyUnicode_AsUTF8(value);
    if (name == nullptr) throw ErrorAlreadySet();
    for (const EnumValueInfo& listed : info.values) {
      if (std::strcmp(listed.name, name) == 0) return listed.number;
    }
    Raise(PyExc_ValueError, "%s: %s has no value %R", FieldName(field).c_str(), info.full_name,
          value);
  }
  const auto number =
      static_cast<int32_t>(ToSigned(value, field, std::numeric_limits<int32_t>::min(),
                                    std::numeric_limits<int32_t>::max(), "an enum"));
  if (!info.Contains(number)) {
    Raise(PyExc_ValueError, "%s: %s has no value %i", FieldName(field).c_str(), info.full_name,
          static_cast<int>(number));
  }
  return number;
}

template <typename T>
T Load(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace

std::string FieldName(const FieldBinding& field) {
  return std::string(field.owner->info->full_name) + '.' + field.field->name;
}

void BytesView::FromText(PyObject* value, const FieldBinding& field) {
  if (field.field->kind != Kind::kString) BadType(value, field, "bytes");
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &size);
  if (text == nullptr) throw ErrorAlreadySet();
  view_ = {text, static_cast<size_t>(size)};
}

BytesView::BytesView(PyObject* value, const FieldBinding& field) {
  if (PyUnicode_Check(value)) {
    FromText(value, field);
    return;
  }
  if (PyBytes_Check(value)) {
    view_ = {PyBytes_AS_STRING(value), static_cast<size_t>(PyBytes_GET_SIZE(value))};
  } else if (field.field->kind == Kind::kBytes && GetBytes(value, &buffer_)) {
    view_ = {static_cast<const char*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
  } else {
    BadType(value, field, field.field->kind == Kind::kString ? "str" : "bytes");
  }
  if (field.field->kind == Kind::kString) {
    const Ref text(
        PyUnicode_DecodeUTF8(view_.data(), static_cast<Py_ssize_t>(view_.size()), "strict"));
    if (!text) {
      PyErr_Clear();
      Raise(PyExc_ValueError, "%s: the bytes are no UTF-8 text", FieldName(field).c_str());
    }
  }
}

BytesView::~BytesView() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

Number ToNumber(PyObject* value, const FieldBinding& field) {
  Number number{};
  switch (field.field->kind) {
    case Kind::kInt32:
      number.int32 =
          static_cast<int32_t>(ToSigned(value, field, std::numeric_limits<int32_t>::min(),
                                        std::numeric_limits<int32_t>::max(), "int32"));
      break;
    case Kind::kInt64:
      number.int64 = ToSigned(value, field, std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max(), "int64");
      break;
    case Kind::kUint32:
      number.uint32 = static_cast<uint32_t>(
          ToUnsigned(value, field, std::numeric_limits<uint32_t>::max(), "uint32"));
      break;
    case Kind::kUint64:
      number.uint64 = ToUnsigned(value, field, std::numeric_limits<uint64_t>::max(), "uint64");
      break;
    case Kind::kBool:
      number.boolean = ToBool(value, field);
      break;
    case Kind::kEnum:
      number.int32 = ToEnum(value, field);
      break;
    case Kind::kFloat:
      number.float32 = static_cast<float>(ToDouble(value, field));
      break;
    default:
      number.float64 = ToDouble(value, field);
  }
  return number;
}

PyObject* ToPython(const FieldInfo& field, const void* at) {
  switch (field.kind) {
    case Kind::kInt32:
    case Kind::kEnum:
      return PyLong_FromLong(Load<int32_t>(at));
    case Kind::kInt64:
      return PyLong_FromLongLong(Load<int64_t>(at));
    case Kind::kUint32:
      return PyLong_FromUnsignedLong(Load<uint32_t>(at));
    case Kind::kUint64:
      return PyLong_FromUnsignedLongLong(Load<uint64_t>(at));
    case Kind::kBool:
      return PyBool_FromLong(Load<bool>(at));
    case Kind::kFloat:
      return PyFloat_FromDouble(Load<float>(at));
    case Kind::kDouble:
      return PyFloat_FromDouble(Load<double>(at));
    default:
      break;
  }
  const std::string_view bytes = static_cast<const String*>(at)->view();
  const char* data = bytes.data();
  const auto size = static_cast<Py_ssize_t>(bytes.size());
  if (field.kind == Kind::kString) {
    PyObject* text = PyUnicode_DecodeUTF8(data, size, nullptr);
    // The wire does not promise UTF-8: such a value shows as its bytes.
    if (text != nullptr || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return text;
    PyErr_Clear();
  }
  return PyBytes_FromStringAndSize(data, size);
}

}  // namespace onnx_light::python
