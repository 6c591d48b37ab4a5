#include <string>
#include <unordered_map>

#include "base/quote.h"
#include "check/context.h"
#include "onnx_light/check.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_file.h"
#include "onnx_light/message_ops.h"
#include "quant/catalogue.h"

namespace onnx_light {
namespace check {
namespace {

constexpr int64_t kVersionWithOpsets = 3;

void CheckCatalogue(const GraphProto& graph, const Context& context) {
  std::unordered_map<std::string_view, size_t> names;
  for (size_t i = 0; i < graph.quantization_annotation().size(); ++i) {
    const TensorAnnotation& annotation = *graph.quantization_annotation()[i];
    if (!annotation.tensor_name().starts_with(kCataloguePrefix)) continue;
    const std::string place = "graph.quantization_annotation[" + std::to_string(i) + "]";
    const auto [other, is_new] = names.emplace(annotation.tensor_name(), i);
    if (!is_new) {
      context.Fail("check.duplicate", place,
                   "'" + Escaped(annotation.tensor_name()) +
                       "' is the tensor_name of quantization_annotation[" +
                       std::to_string(other->second) + "], too");
    }
    ReadCatalogueEntry(annotation, graph, place);
  }
}

void CheckRoot(const ModelProto& model, const Context& context) {
  context.Require(model.has_ir_version(), "ir_version");
  context.Require(model.has_graph(), "graph");
  if (model.ir_version() >= kVersionWithOpsets && !model.has_opset_import()) {
    context.Fail("check.missing", "opset_import", "must name the operator sets in use");
  }
  Names keys(context);
  for (size_t i = 0; i < model.metadata_props().size(); ++i) {
    keys.Add(model.metadata_props()[i]->key(), "metadata_props", i);
  }
  Names functions(context);
  for (size_t i = 0; i < model.functions().size(); ++i) {
    const FunctionProto& function = *model.functions()[i];
    std::string name(function.domain());
    name.append(":").append(function.name()).append(":").append(function.overload());
    functions.Add(name, "functions", i);
  }
  CheckStructTypes(model, context);
  CheckCatalogue(model.graph(), context);
}

void CheckOperatorSet(const OperatorSetIdProto& set, const Context& context) {
  context.Require(set.has_version(), "version");
}

void CheckValueInfo(const ValueInfoProto& value, const Context& context) {
  context.RequireText(value.has_name(), value.name(), "name");
}

using Rule = void (*)(const Message&, const Context&);

template <typename M, void (*rule)(const M&, const Context&)>
void Apply(const Message& message, const Context& context) {
  rule(static_cast<const M&>(message), context);
}

template <typename M, void (*rule)(const M&, const Context&)>
std::pair<const MessageInfo*, Rule> For() {
  return {&M::kInfo, &Apply<M, rule>};
}

const std::unordered_map<const MessageInfo*, Rule>& Rules() {
  static const std::unordered_map<const MessageInfo*, Rule> rules{
      For<ModelProto, CheckRoot>(),
      For<GraphProto, CheckGraph>(),
      For<FunctionProto, CheckFunction>(),
      For<NodeProto, CheckNode>(),
      For<AttributeProto, CheckAttribute>(),
      For<TensorProto, CheckTensor>(),
      For<SparseTensorProto, CheckSparseTensor>(),
      For<EncodedValueProto, CheckEncodedPayload>(),
      For<OperatorSetIdProto, CheckOperatorSet>(),
      For<ValueInfoProto, CheckValueInfo>(),
      For<TypeProto, CheckType>(),
      For<StructTypeProto, CheckStructType>(),
      For<StructTypeProto_Array, CheckArray>(),
      For<StructTypeProto_Structure, CheckStructure>(),
      For<StructTypeProto_Structure_Field, CheckField>(),
      For<StructTypeProto_BitPacking_Component, CheckComponent>(),
  };
  return rules;
}

}  // namespace
}  // namespace check

void CheckModel(const ModelProto& model) {
  const auto& rules = check::Rules();
  VisitMessages(
      ModelProto::kInfo, static_cast<const Message&>(model),
      [&](const MessageInfo& info, const Message& message, const check::Context::Path& path) {
        const auto rule = rules.find(&info);
        if (rule != rules.end()) rule->second(message, check::Context(model, path));
      });
}

void CheckModel(const ModelProto& model, const std::string& folder) {
  Owned<ModelProto> whole;
  Merge(whole.arena(), ModelProto::kInfo, *whole, model);
  ParseOptions options;
  options.no_copy = true;  // most of the bytes are not looked at
  LoadExternalData(whole.arena(), ModelProto::kInfo, *whole, folder, options);
  CheckModel(*whole);
}

}  // namespace onnx_light
