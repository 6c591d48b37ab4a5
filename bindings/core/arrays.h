// Arrays that come from Python, and arrays that go there.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "onnx_light/array_view.h"
#include "onnx_light/cache.h"

namespace onnx_light::python {

// What the docstrings call an array: an object with the buffer protocol or `__dlpack__`. It is
// looked at where it lies, with any strides, and kept as it is while this lives.
class ArrayArgument {
 public:
  // `name` is the argument's, and the path of errors. ValueError `cache.shape` unless it has four
  // dims, `cache.dtype` unless its type is one of DType's, `cache.device` if it is not in the
  // memory of the CPU; TypeError if it is no array; what the object itself raises. `types` are what
  // an error says that can be taken.
  ArrayArgument(nanobind::handle object, const char* name, std::span<const DType> types = kDTypes);
  ~ArrayArgument();
  ArrayArgument(const ArrayArgument&) = delete;
  ArrayArgument& operator=(const ArrayArgument&) = delete;

  const ArrayView& view() const { return view_; }
  // Bytes of all elements; a rough figure, since an array of stride 0 can have any shape.
  double nbytes() const;

 private:
  void ReadBuffer(nanobind::handle object, std::optional<DType> known, const char* name);
  void ReadDLPack(nanobind::handle object, const char* name);

  std::span<const DType> types_;
  ArrayView view_;
  Py_buffer buffer_{};
  nanobind::ndarray<nanobind::ro> tensor_;
};

// Anything that numpy takes, as an array of numpy. TypeError for objects that are no numbers.
nanobind::object NumpyArray(nanobind::handle object, const char* name);

// Where the elements of an array of numpy begin.
const std::byte* DataOf(const nanobind::object& array);

// A numpy array that shows `rows` without a copy and cannot be written. `owner` keeps them alive.
nanobind::object ReadOnlyArray(const ArrayView& rows, nanobind::handle owner);

// A numpy array that shows the bytes of a new buffer in C order, and may be written.
nanobind::object NewArray(BufferRef buffer, DType dtype, const std::array<int64_t, 4>& shape);

// The visible rows of a dense page, read-only and without a copy; they live as long as any array of
// them. ValueError `cache.encoded` where the side is encoded.
nanobind::object PageArray(const PlacedPage& placed, Side side);

// Bytes that are kept alive as a flat read-only numpy array of uint8.
nanobind::object ByteArray(const SharedBytes& bytes);

// One side of the cache in a new numpy array. Lets other threads run.
nanobind::object CacheArray(const PagedCache& cache, Side side, std::optional<DType> dtype);

// The type that a Python argument names: None, a name, or anything that numpy takes for a dtype.
// ValueError `cache.dtype` for any other type.
std::optional<DType> ToDType(nanobind::handle dtype);

}  // namespace onnx_light::python
