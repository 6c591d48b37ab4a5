// Validation of models and tensors.
#include "onnx_light/check.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "core/bind.h"
#include "core/message_argument.h"
#include "onnx/tensor_layout.h"
#include "onnx_light/cache_type.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/serialization.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnx_light::python {
namespace {

void Check(nb::handle model, const std::optional<std::string>& folder) {
  const MessageArgument<ModelProto> argument(model, "model");
  if (folder) {
    CheckModel(argument.message(), *folder);
  } else {
    CheckModel(argument.message());
  }
}

nb::bytes StandardPart(nb::handle model) {
  const MessageArgument<ModelProto> argument(model, "model");
  Owned<ModelProto> part;
  Merge(part.arena(), ModelProto::kInfo, *part, argument.message());
  KeepStandardPart(part.arena(), *part);
  const Serializer serializer(ModelProto::kInfo, *part);
  std::string bytes(serializer.size(), '\0');
  serializer.WriteTo(reinterpret_cast<std::byte*>(bytes.data()));
  return nb::bytes(bytes.data(), bytes.size());
}

using CacheTypeTuple = std::tuple<std::optional<int64_t>, std::optional<int64_t>,
                                  std::optional<int64_t>, std::optional<int64_t>>;

std::optional<CacheTypeTuple> ReadType(nb::handle type, nb::handle model, const std::string& path) {
  const MessageArgument<TypeProto> argument(type, "type");
  const MessageArgument<ModelProto> container(model, "model");
  const auto found = ReadCacheType(argument.message(), &container.message(), path);
  if (!found) return std::nullopt;
  return CacheTypeTuple(found->batch, found->heads, found->key_width, found->value_width);
}

nb::object MakeType(std::optional<int64_t> batch, std::optional<int64_t> heads,
                    std::optional<int64_t> key_width, std::optional<int64_t> value_width) {
  const std::pair<const char*, std::optional<int64_t>> sizes[] = {
      {"batch", batch}, {"heads", heads}, {"key_width", key_width}, {"value_width", value_width}};
  for (const auto& [name, size] : sizes) {
    if (!size || *size > 0) continue;
    throw ValueError("check.cache_type", name, std::to_string(*size) + ", must be positive");
  }
  nb::object type = nb::module_::import_("onnx_light.onnx_py._onnxpyprotoop").attr("TypeProto")();
  const MessageArgument<TypeProto> target(type, "type");
  WriteCacheType({batch, heads, key_width, value_width}, target.arena(), target.message());
  return type;
}

nb::tuple LayoutOf(nb::handle tensor) {
  const MessageArgument<TensorProto> argument(tensor, "tensor");
  const TensorLayout layout = ReadTensorLayout(argument.message(), "");
  return nb::make_tuple(layout.field->name, layout.count);
}

}  // namespace

void BindCheck(nb::module_& m) {
  m.def("check_model", &Check, "model"_a, "folder"_a = nb::none(),
        nb::sig("def check_model(model: onnx_light.onnx_py._onnxpyprotoop.ModelProto, "
                "folder: str | None = None) -> None"),
        "Checks a model; with a folder also the files of external data beneath it.\n\n"
        "Raises:\n"
        "    CodedError: the first thing that is wrong. OSError: a file cannot be opened.");
  m.def("standard_part", &StandardPart, "model"_a,
        nb::sig("def standard_part(model: onnx_light.onnx_py._onnxpyprotoop.ModelProto) -> bytes"),
        "The model without what standard ONNX does not have, and without large payloads, for\n"
        "other checkers.");
  m.attr("CACHE_TYPE_NAME") = std::string(kCacheTypeName);
  m.def("read_cache_type", &ReadType, "type"_a, "model"_a, "path"_a,
        nb::sig("def read_cache_type(type: onnx_light.onnx_py._onnxpyprotoop.TypeProto, "
                "model: onnx_light.onnx_py._onnxpyprotoop.ModelProto, path: str) -> "
                "tuple[int | None, int | None, int | None, int | None] | None"),
        "Batch, heads, key width and value width that the type of a cache gives; None for other\n"
        "types.\n\n"
        "Raises:\n"
        "    CodedError: `check.cache_type`: another version or structure; `cache.reference`,\n"
        "        `cache.layout`: references into the model's struct_types.");
  m.def("make_cache_type", &MakeType, "batch"_a.none(), "heads"_a.none(), "key_width"_a.none(),
        "value_width"_a.none(),
        nb::sig("def make_cache_type(batch: int | None, heads: int | None, "
                "key_width: int | None, value_width: int | None) -> "
                "onnx_light.onnx_py._onnxpyprotoop.TypeProto"),
        "The type of such caches.\n\n"
        "Raises:\n"
        "    CodedError: `check.cache_type`: a size is not positive.");
  m.def("tensor_layout", &LayoutOf, "tensor"_a,
        nb::sig("def tensor_layout(tensor: onnx_light.onnx_py._onnxpyprotoop.TensorProto) -> "
                "tuple[str, int]"),
        "The field that holds a tensor's elements, and their number.\n\n"
        "Raises:\n"
        "    CodedError: `tensor.*`, `external.inline`, with the path of the field.");
}

}  // namespace onnx_light::python
