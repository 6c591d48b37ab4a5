// The function quantize_paged_cache(), whose scales and zero points are arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/arrays.h"
#include "core/bind.h"
#include "onnx_light/cache.h"
#include "onnx_light/encoded_payload.h"
#include "onnx_light/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnx_light::python {
namespace {

std::string TypeOf(const nb::object& array) {
  return nb::cast<std::string>(array.attr("dtype").attr("name"));
}

nb::object ContiguousArray(nb::handle object, const char* name) {
  // Not numpy.ascontiguousarray, which gives a scalar a dim.
  return NumpyArray(object, name).attr("copy")("C");
}

std::vector<int64_t> ShapeOf(const nb::object& array) {
  return nb::cast<std::vector<int64_t>>(array.attr("shape"));
}

std::optional<PageType> CodeType(const nb::object& zero_points, const char* name) {
  const std::string type = TypeOf(zero_points);
  if (type == "float32") return std::nullopt;
  for (const PageType code : {PageType::kInt8, PageType::kUInt8, PageType::kInt4, PageType::kUInt4,
                              PageType::kInt2, PageType::kUInt2}) {
    if (type == Name(code)) return code;
  }
  throw ValueError("quant.zero_point", name,
                   type +
                       ", must be int8, uint8, int4, uint4, int2 or uint2, whose codes the "
                       "pages get, or float32 for pages without codes");
}

// Codes below 8 bits have a byte each in numpy.
std::vector<std::byte> Packed(const nb::object& codes, int bits) {
  const auto size = nb::cast<int64_t>(codes.attr("size")), in_byte = int64_t{8 / bits};
  const std::byte* source = DataOf(codes);
  std::vector<std::byte> packed((size + in_byte - 1) / in_byte);
  for (int64_t i = 0; i < size; ++i) {
    const std::byte code = source[i] & static_cast<std::byte>((1 << bits) - 1);
    packed[i / in_byte] |= code << (i % in_byte * bits);
  }
  return packed;
}

// Parameters and what they look at.
class ParametersArgument {
 public:
  ParametersArgument(nb::handle scale, const char* scale_name, nb::handle zero_point,
                     const char* zero_point_name)
      : scales_(ContiguousArray(scale, scale_name)),
        zero_points_(ContiguousArray(zero_point, zero_point_name)),
        shape_(ShapeOf(scales_)) {
    const std::optional<DType> type = ParseDType(TypeOf(scales_));
    if (!type || ElementSize(*type) < 2) {
      throw ValueError("quant.scale", scale_name,
                       TypeOf(scales_) + ", must be float32, float16 or bfloat16");
    }
    view_.scale_type = *type;
    view_.code_type = CodeType(zero_points_, zero_point_name);
    if (ShapeOf(zero_points_) != shape_) {
      throw ValueError("quant.zero_point", zero_point_name,
                       std::string("its shape is not that of ") + scale_name);
    }
    view_.shape = shape_;
    view_.scales = DataOf(scales_);
    view_.zero_points = DataOf(zero_points_);
    if (view_.code_type && CodeBits(*view_.code_type) < 8) {
      packed_ = Packed(zero_points_, CodeBits(*view_.code_type));
      view_.zero_points = packed_.data();
    }
  }
  ParametersArgument(const ParametersArgument&) = delete;
  ParametersArgument& operator=(const ParametersArgument&) = delete;

  const QuantizationParameters& view() const { return view_; }

 private:
  const nb::object scales_, zero_points_;
  const std::vector<int64_t> shape_;
  std::vector<std::byte> packed_;
  QuantizationParameters view_;
};

PagedCache QuantizePagedCache(const PagedCache& cache, const std::vector<int64_t>& indices,
                              nb::handle key_scale, nb::handle key_zero_point,
                              nb::handle value_scale, nb::handle value_zero_point) {
  const ParametersArgument key(key_scale, "key_scale", key_zero_point, "key_zero_point");
  const ParametersArgument value(value_scale, "value_scale", value_zero_point, "value_zero_point");
  const nb::gil_scoped_release others;
  return cache.QuantizePagesWith(indices, key.view(), value.view());
}

}  // namespace

void BindQuantizePagedCache(nb::module_& m) {
  m.def(
      "quantize_paged_cache", &QuantizePagedCache, "cache"_a, "block_indices"_a,
      "key_scale"_a.none(), "key_zero_point"_a.none(), "value_scale"_a.none(),
      "value_zero_point"_a.none(),
      nb::sig("def quantize_paged_cache(cache: PagedCache, block_indices: "
              "collections.abc.Sequence[int], key_scale: object, key_zero_point: object, "
              "value_scale: object, value_zero_point: object) -> PagedCache"),
      "The operator ai.rt::QuantizePagedCache: stores the chosen pages, whatever their formats,\n"
      "with these scales and zero points, the same for each page. The policy stays.\n\n"
      "Args:\n"
      "    block_indices: of pages, in any order, each once.\n"
      "    key_scale, value_scale: float32, float16 or bfloat16; a scalar, or [batch, heads,\n"
      "        tokens, width] with each dim 1 or the page's divided by the length of a block,\n"
      "        rounded up.\n"
      "    key_zero_point, value_zero_point: of the same shape. Their type is that of the codes:\n"
      "        int8, uint8, or int4, uint4, int2, uint2 of ml_dtypes; float32: no codes, plain\n"
      "        float32 numbers.\n\n"
      "Raises:\n"
      "    CodedError: `cache.page_index` for an index outside or given twice; `quant.scale` and\n"
      "        `quant.zero_point` where types or shapes do not fit; `quant.not_finite`;\n"
      "        `quant.unknown_layout` for pages whose values are not known. Nothing is changed.\n"
      "    TypeError: no array.");
}

}  // namespace onnx_light::python
