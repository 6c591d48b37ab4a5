// Validation of models and tensors.
#include "onnx_light/check.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "core/bind.h"
#include "core/message_argument.h"
#include "onnx/tensor_layout.h"
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
  m.def("tensor_layout", &LayoutOf, "tensor"_a,
        nb::sig("def tensor_layout(tensor: onnx_light.onnx_py._onnxpyprotoop.TensorProto) -> "
                "tuple[str, int]"),
        "The field that holds a tensor's elements, and their number.\n\n"
        "Raises:\n"
        "    CodedError: `tensor.*`, `external.inline`, with the path of the field.");
}

}  // namespace onnx_light::python
