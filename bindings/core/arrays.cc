#include "core/arrays.h"

#include <nanobind/stl/string.h>

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "onnx_light/errors.h"

namespace nb = nanobind;

namespace onnx_light::python {
namespace {

constexpr int kUserDefinedType = 256;  // numpy numbers the types of other packages from here on

bool IsNumpyArray(nb::handle object) {
  // Not initialised here: an import may hand the lock of the interpreter to a thread that then
  // waits for the initialisation.
  static PyObject* type = nullptr;
  if (type == nullptr)
    type = nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
  return nb::isinstance(object, type);
}

// The type of a numpy array that the buffer protocol cannot express.
std::optional<DType> UserDefinedType(nb::handle array) {
  const nb::object dtype = array.attr("dtype");
  if (nb::cast<int>(dtype.attr("num")) < kUserDefinedType) return std::nullopt;
  return ParseDType(nb::cast<std::string>(dtype.attr("name")));
}

std::string Names(std::span<const DType> types) {
  std::string names;
  for (DType dtype : types) names += (names.empty() ? "" : ", ") + std::string(Name(dtype));
  return names;
}

[[noreturn]] void ThrowRank(const char* name, int64_t rank) {
  throw ValueError("cache.shape", name,
                   std::to_string(rank) + " dims, must be the 4 of [batch, heads, tokens, width]");
}

[[noreturn]] void ThrowDType(const char* name, const std::string& given,
                             std::span<const DType> types = kDTypes) {
  throw ValueError("cache.dtype", name, given + " is none of " + Names(types));
}

// str() or repr() of an object.
std::string Text(PyObject* function(PyObject*), nb::handle object) {
  const nb::object text = nb::steal(function(object.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  return nb::cast<std::string>(text);
}

std::string TypeText(nb::handle array, const std::string& otherwise) {
  if (!nb::hasattr(array, "dtype")) return otherwise;
  return "type " + Text(PyObject_Str, nb::object(array.attr("dtype")));
}

std::optional<DType> TypeOfFormat(const char* format) {
  std::string_view text = format == nullptr ? "B" : format;
  if (!text.empty() && (text[0] == '@' || text[0] == '=' || text[0] == '<')) text.remove_prefix(1);
  if (text == "f") return DType::kFloat32;
  if (text == "e") return DType::kFloat16;
  return std::nullopt;
}

std::optional<DType> TypeOfTensor(const nb::dlpack::dtype& type) {
  using Code = nb::dlpack::dtype_code;
  if (type.lanes != 1) return std::nullopt;
  switch (static_cast<Code>(type.code)) {
    case Code::Float:
      if (type.bits == 32) return DType::kFloat32;
      if (type.bits == 16) return DType::kFloat16;
      return std::nullopt;
    case Code::Bfloat:
      return type.bits == 16 ? std::optional(DType::kBFloat16) : std::nullopt;
    case Code::Float8_E4M3FN:
      return DType::kFloat8E4M3FN;
    case Code::Float8_E5M2:
      return DType::kFloat8E5M2;
    default:
      return std::nullopt;
  }
}

// The capsule of `object.__dlpack__`, in the newest form that the object makes.
nb::object ExportTensor(nb::handle object) {
  try {
    return object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")();
}

// How numpy itself can see elements of this type.
nb::dlpack::dtype ExchangeType(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const Code code = dtype == DType::kFloat32 || dtype == DType::kFloat16 ? Code::Float : Code::UInt;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * ElementSize(dtype)), 1};
}

template <typename T>
nb::capsule Owner(T object) {
  auto owned = std::make_unique<T>(std::move(object));
  nb::capsule capsule(owned.get(), [](void* held) noexcept { delete static_cast<T*>(held); });
  owned.release();
  return capsule;
}

template <typename... Access, typename Data>
nb::object ArrayOf(Data* data, const ArrayView& rows, nb::handle owner) {
  std::array<size_t, 4> shape{};
  std::array<int64_t, 4> strides{};
  for (int i = 0; i < 4; ++i) {
    shape[i] = static_cast<size_t>(rows.shape[i]);
    strides[i] = rows.strides[i] / ElementSize(rows.dtype);
  }
  const nb::dlpack::dtype type = ExchangeType(rows.dtype);
  const nb::ndarray<nb::numpy, Access...> array(data, 4, shape.data(), owner, strides.data(), type);
  nb::object result = nb::cast(array);
  if (static_cast<nb::dlpack::dtype_code>(type.code) == nb::dlpack::dtype_code::Float) {
    return result;
  }
  const std::string name(Name(rows.dtype));
  return result.attr("view")(nb::module_::import_("ml_dtypes").attr(name.c_str()));
}

}  // namespace

ArrayArgument::ArrayArgument(nb::handle object, const char* name, std::span<const DType> types)
    : types_(types) {
  if (IsNumpyArray(object)) {
    const std::optional<DType> type = UserDefinedType(object);
    if (type) {
      ReadBuffer(object.attr("view")(ElementSize(*type) == 2 ? "u2" : "u1"), type, name);
    } else if (nb::cast<int>(object.attr("dtype").attr("num")) >= kUserDefinedType) {
      ThrowDType(name, TypeText(object, ""), types_);
    } else {
      ReadBuffer(object, std::nullopt, name);
    }
  } else if (nb::hasattr(object, "__dlpack__")) {
    ReadDLPack(object, name);
  } else if (PyObject_CheckBuffer(object.ptr())) {
    ReadBuffer(object, std::nullopt, name);
  } else {
    throw nb::type_error((std::string(name) +
                          ": an array (numpy, or with __dlpack__ or the buffer " +
                          "protocol) is needed, not " + Py_TYPE(object.ptr())->tp_name)
                             .c_str());
  }
}

ArrayArgument::~ArrayArgument() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

void ArrayArgument::ReadBuffer(nb::handle object, std::optional<DType> known, const char* name) {
  // Released by hand where this throws: the destructor does not run then.
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_RECORDS_RO) < 0) {
    // So numpy says that it cannot express the type.
    if (!IsNumpyArray(object) || PyErr_ExceptionMatches(PyExc_ValueError) == 0) {
      throw nb::python_error();
    }
    PyErr_Clear();
    ThrowDType(name, TypeText(object, ""), types_);
  }
  const std::string format = buffer_.format == nullptr ? "B" : buffer_.format;
  const int64_t rank = buffer_.ndim;
  const std::optional<DType> dtype = known ? known : TypeOfFormat(buffer_.format);
  if (rank != 4 || !dtype) {
    PyBuffer_Release(&buffer_);
    if (rank != 4) ThrowRank(name, rank);
    ThrowDType(name, TypeText(object, "buffer format '" + format + "'"), types_);
  }
  view_.data = static_cast<const std::byte*>(buffer_.buf);
  view_.dtype = *dtype;
  for (int i = 0; i < 4; ++i) {
    view_.shape[i] = buffer_.shape[i];
    view_.strides[i] = buffer_.strides[i];
  }
}

void ArrayArgument::ReadDLPack(nb::handle object, const char* name) {
  const nb::object capsule = ExportTensor(object);
  if (!nb::try_cast(capsule, tensor_)) {
    throw nb::type_error(
        (std::string(name) + ": __dlpack__ returned what is no tensor of DLPack").c_str());
  }
  const int device = tensor_.device_type();
  if (device != nb::device::cpu::value && device != nb::device::cuda_host::value) {
    throw ValueError("cache.device", name,
                     "is on a device (DLPack type " + std::to_string(device) +
                         "), must be in the memory of the CPU");
  }
  if (tensor_.ndim() != 4) ThrowRank(name, static_cast<int64_t>(tensor_.ndim()));
  const std::optional<DType> dtype = TypeOfTensor(tensor_.dtype());
  if (!dtype) ThrowDType(name, TypeText(object, "the DLPack type"), types_);
  view_.data = static_cast<const std::byte*>(tensor_.data());
  view_.dtype = *dtype;
  for (int i = 0; i < 4; ++i) {
    view_.shape[i] = static_cast<int64_t>(tensor_.shape(i));
    view_.strides[i] = tensor_.stride(i) * ElementSize(*dtype);
  }
}

double ArrayArgument::nbytes() const {
  double size = static_cast<double>(ElementSize(view_.dtype));
  for (int64_t dim : view_.shape) size *= static_cast<double>(dim);
  return size;
}

nb::object ReadOnlyArray(const ArrayView& rows, nb::handle owner) {
  return ArrayOf<nb::ro>(rows.data, rows, owner);
}

nb::object NewArray(BufferRef buffer, DType dtype, const std::array<int64_t, 4>& shape) {
  std::byte* data = buffer.mutable_data();
  return ArrayOf<>(data, ContiguousView(data, dtype, shape), Owner(std::move(buffer)));
}

nb::object PageArray(const PlacedPage& placed, Side side) {
  const Page& page = *placed.page;
  const CacheShape& shape = page.shape();
  const auto* dense = std::get_if<DensePayload>(&page.payload(side));
  if (dense == nullptr) {
    throw ValueError("cache.encoded", Name(side),
                     "the page is encoded, key_array() and value_array() of the cache decode it");
  }
  const DensePayload& payload = *dense;
  ArrayView rows = ContiguousView(payload.bytes.data, payload.dtype,
                                  {shape.batch, shape.heads, page.capacity(), shape.width(side)});
  return ReadOnlyArray(rows.Tokens(0, placed.length), Owner(placed.page));
}

nb::object ByteArray(const SharedBytes& bytes) {
  const size_t size = bytes.size;
  const nb::dlpack::dtype type{static_cast<uint8_t>(nb::dlpack::dtype_code::UInt), 8, 1};
  return nb::cast(
      nb::ndarray<nb::numpy, nb::ro>(bytes.data, 1, &size, Owner(bytes), nullptr, type));
}

nb::object CacheArray(const PagedCache& cache, Side side, std::optional<DType> dtype) {
  const DType type = dtype.value_or(cache.CommonDType(side).value_or(DType::kFloat32));
  const CacheShape& cached = cache.shape();
  const std::array<int64_t, 4> shape{cached.batch, cached.heads, cache.length(),
                                     cached.width(side)};
  const ArrayView rows = ContiguousView(nullptr, type, shape);
  BufferRef buffer = BufferRef::Allocate(static_cast<uint64_t>(shape[0] * rows.strides[0]));
  {
    const nb::gil_scoped_release others;
    cache.ToArray(side, type, buffer.mutable_data(), buffer.size());
  }
  return NewArray(std::move(buffer), type, shape);
}

std::optional<DType> ToDType(nb::handle dtype) {
  if (dtype.is_none()) return std::nullopt;
  std::string name;
  if (nb::isinstance<nb::str>(dtype)) {
    name = nb::cast<std::string>(dtype);
    if (const auto known = ParseDType(name)) return known;
  }
  try {
    name = nb::cast<std::string>(nb::module_::import_("numpy").attr("dtype")(dtype).attr("name"));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    ThrowDType("dtype", Text(PyObject_Repr, dtype));
  }
  if (const auto known = ParseDType(name)) return known;
  ThrowDType("dtype", name);
}

nb::object NumpyArray(nb::handle object, const char* name) {
  const nb::object numpy = nb::module_::import_("numpy");
  if (!nb::isinstance(object, numpy.attr("ndarray")) && nb::hasattr(object, "__dlpack__")) {
    return numpy.attr("from_dlpack")(object);
  }
  nb::object array = numpy.attr("asarray")(object);
  if (nb::cast<std::string>(array.attr("dtype").attr("kind")) == "O") {
    throw nb::type_error(
        (std::string(name) + ": an array is needed, not " + Py_TYPE(object.ptr())->tp_name)
            .c_str());
  }
  const nb::object dtype = array.attr("dtype");
  if (nb::cast<bool>(dtype.attr("isnative"))) return array;
  return array.attr("astype")(dtype.attr("newbyteorder")("="));
}

const std::byte* DataOf(const nb::object& array) {
  const nb::object interface = array.attr("__array_interface__");
  return reinterpret_cast<const std::byte*>(nb::cast<uintptr_t>(interface["data"][nb::int_(0)]));
}

}  // namespace onnx_light::python
