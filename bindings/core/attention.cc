#include "core/attention.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/arrays.h"
#include "core/policy.h"
#include "onnx_light/attention.h"
#include "onnx_light/errors.h"
#include "onnx_light/paged_attention.h"

namespace nb = nanobind;

namespace onnx_light::python {
namespace {

constexpr std::array kQueryTypes{DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// A mask, and the array that it looks at.
struct MaskArgument {
  explicit MaskArgument(nb::handle mask) : array(NumpyArray(mask, "attn_mask")) {
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
  const nb::object array = NumpyArray(sinks, "sinks");
  const auto shape = nb::cast<std::vector<int64_t>>(array.attr("shape"));
  if (shape.size() != 1) {
    throw ValueError("attention.shape", "sinks",
                     std::to_string(shape.size()) + " dims, must be the 1 of [query heads]");
  }
  return nb::cast<std::vector<float>>(array.attr("astype")("float32").attr("tolist")());
}

// The options, and what they look at.
struct Options {
  Options(const AttendArguments& arguments, AttentionOptions& options) {
    if (arguments.scale) options.scale = static_cast<float>(*arguments.scale);
    options.is_causal = arguments.is_causal;
    options.left_window_size = arguments.left_window_size;
    options.softcap = static_cast<float>(arguments.softcap);
    options.num_threads = arguments.num_threads;
    if (!arguments.attn_mask.is_none()) {
      mask.emplace(arguments.attn_mask);
      options.mask = mask->view;
    }
    if (!arguments.sinks.is_none()) {
      sinks = Sinks(arguments.sinks);
      // No heads at all are a wrong number of them, too.
      if (sinks.empty()) throw ValueError("attention.shape", "sinks", "is empty");
      options.sinks = sinks;
    }
  }

  std::optional<MaskArgument> mask;
  std::vector<float> sinks;
};

BufferRef BufferFor(DType dtype, const std::array<int64_t, 4>& shape) {
  const ArrayView array = ContiguousView(nullptr, dtype, shape);
  return BufferRef::Allocate(static_cast<uint64_t>(shape[0] * array.strides[0]));
}

}  // namespace

nb::object AttendArray(const PagedCache& cache, nb::handle query,
                       const AttendArguments& arguments) {
  const ArrayArgument queries(query, "query", kQueryTypes);
  AttentionOptions options;
  const Options held(arguments, options);
  const auto shape = AttendShape(cache, queries.view());
  const DType dtype = queries.view().dtype;
  BufferRef buffer = BufferFor(dtype, shape);
  {
    const nb::gil_scoped_release others;
    Attend(cache, queries.view(), options, buffer.mutable_data());
  }
  return NewArray(std::move(buffer), dtype, shape);
}

nb::object PagedAttentionResult(const PagedCache& past, nb::handle query, nb::handle key,
                                nb::handle value, const AttendArguments& arguments,
                                const PagedAttentionArguments& more) {
  const ArrayArgument queries(query, "query", kQueryTypes), keys(key, "key"),
      values(value, "value");
  PagedAttentionOptions options;
  const Options held(arguments, options.attention);
  options.block_size = more.block_size;
  options.max_tokens = more.max_tokens;
  if (!more.policy.is_none()) options.policy = ToPolicy(more.policy);
  const DType dtype = queries.view().dtype;
  std::array<int64_t, 4> shape = queries.view().shape;
  shape[3] = values.view().width();
  BufferRef buffer = BufferFor(dtype, shape);
  PagedCache present;
  {
    const nb::gil_scoped_release others;
    present = PagedAttention(past, queries.view(), keys.view(), values.view(), options,
                             buffer.mutable_data());
  }
  return nb::make_tuple(NewArray(std::move(buffer), dtype, shape), std::move(present));
}

}  // namespace onnx_light::python
