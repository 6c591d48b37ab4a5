#include "core/attention.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/arrays.h"
#include "onnx_light/attention.h"
#include "onnx_light/errors.h"

namespace nb = nanobind;

namespace onnx_light::python {
namespace {

// Anything that numpy takes, as an array of numpy.
nb::object AsArray(nb::handle object, const char* name) {
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
  return array;
}

const std::byte* DataOf(const nb::object& array) {
  const nb::object interface = array.attr("__array_interface__");
  return reinterpret_cast<const std::byte*>(nb::cast<uintptr_t>(interface["data"][nb::int_(0)]));
}

// A mask, and the array that it looks at.
struct MaskArgument {
  explicit MaskArgument(nb::handle mask) : array(AsArray(mask, "attn_mask")) {
    const auto type = nb::cast<std::string>(array.attr("dtype").attr("name"));
    if (type == "float64") {
      array = array.attr("astype")("float32");
      view.dtype = DType::kFloat32;
    } else if (type != "bool") {
      view.dtype = ParseDType(type);
      if (!view.dtype) {
        throw ValueError("attention.dtype", "attn_mask",
                         type + " is neither bool nor a floating-point type");
      }
    }
    const auto shape = nb::cast<std::vector<int64_t>>(array.attr("shape"));
    const auto strides = nb::cast<std::vector<int64_t>>(array.attr("strides"));
    if (shape.size() > 4) {
      throw ValueError("attention.shape", "attn_mask",
                       std::to_string(shape.size()) + " dims, can be broadcast to 4 at most: " +
                           "batch, query heads, query tokens, cached tokens");
    }
    view.data = DataOf(array);
    view.shape.fill(1);
    std::copy_backward(shape.begin(), shape.end(), view.shape.end());
    std::copy_backward(strides.begin(), strides.end(), view.strides.end());
  }

  nb::object array;
  MaskView view;
};

std::vector<float> Sinks(nb::handle sinks) {
  const nb::object array = AsArray(sinks, "sinks");
  const auto shape = nb::cast<std::vector<int64_t>>(array.attr("shape"));
  if (shape.size() != 1) {
    throw ValueError("attention.shape", "sinks",
                     std::to_string(shape.size()) + " dims, must be the 1 of [query heads]");
  }
  return nb::cast<std::vector<float>>(array.attr("astype")("float32").attr("tolist")());
}

}  // namespace

nb::object AttendArray(const PagedCache& cache, nb::handle query,
                       const AttendArguments& arguments) {
  const ArrayArgument queries(query, "query");
  AttentionOptions options;
  if (arguments.scale) options.scale = static_cast<float>(*arguments.scale);
  options.is_causal = arguments.is_causal;
  options.left_window_size = arguments.left_window_size;
  options.softcap = static_cast<float>(arguments.softcap);
  options.num_threads = arguments.num_threads;
  std::optional<MaskArgument> mask;
  if (!arguments.attn_mask.is_none()) {
    mask.emplace(arguments.attn_mask);
    options.mask = mask->view;
  }
  std::vector<float> sinks;
  if (!arguments.sinks.is_none()) {
    sinks = Sinks(arguments.sinks);
    // No heads at all are a wrong number of them, too.
    if (sinks.empty()) throw ValueError("attention.shape", "sinks", "is empty");
    options.sinks = sinks;
  }
  const auto shape = AttendShape(cache, queries.view());
  const DType dtype = queries.view().dtype;
  const ArrayView target = ContiguousView(nullptr, dtype, shape);
  BufferRef buffer = BufferRef::Allocate(static_cast<uint64_t>(shape[0] * target.strides[0]));
  {
    const nb::gil_scoped_release others;
    Attend(cache, queries.view(), options, buffer.mutable_data());
  }
  return NewArray(std::move(buffer), dtype, shape);
}

}  // namespace onnx_light::python
