// Rules for the pairs of an input and the output that becomes its value in the next run.
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/quote.h"
#include "check/context.h"
#include "check/types.h"
#include "onnx_light/errors.h"

namespace onnx_light::check {
namespace {

using Values = std::unordered_map<std::string_view, size_t>;

Values IndicesOf(std::span<ValueInfoProto* const> values) {
  Values indices;
  for (size_t i = 0; i < values.size(); ++i) indices.emplace(values[i]->name(), i);
  return indices;
}

size_t FindValue(const Values& values, std::string_view name, const char* kind,
                 const std::string& place, const Context& context) {
  const auto found = values.find(name);
  if (found != values.end()) return found->second;
  context.Fail("check.binding", place,
               "the graph has no " + std::string(kind) + " '" + Escaped(name) + "'");
}

void CheckTypes(const ValueInfoProto& input, const ValueInfoProto& output, const std::string& place,
                const Context& context) {
  if (!input.has_type() || !output.has_type()) return;
  try {
    const auto past = Resolved(input.type(), context.model(), "");
    const auto present = Resolved(output.type(), context.model(), "");
    const std::string difference = Difference(**past, **present);
    if (difference.empty()) return;
    throw ValueError("check.binding", "",
                     "input '" + Escaped(input.name()) + "' and output '" + Escaped(output.name()) +
                         "' do not have one type: " + difference);
  } catch (const ValueError& error) {
    context.Fail(error.code().c_str(), place, error.message());
  }
}

}  // namespace

void CheckBindings(const GraphProto& graph, const Context& context) {
  if (!graph.has_persistent_bindings()) return;
  const Values inputs = IndicesOf(graph.input()), outputs = IndicesOf(graph.output());
  Names bound(context);
  for (size_t i = 0; i < graph.persistent_bindings().size(); ++i) {
    const PersistentBindingProto& binding = *graph.persistent_bindings()[i];
    const std::string place = "persistent_bindings[" + std::to_string(i) + "]";
    context.RequireText(binding.has_input_name(), binding.input_name(), place + ".input_name");
    context.RequireText(binding.has_output_name(), binding.output_name(), place + ".output_name");
    bound.Add(binding.input_name(), "persistent_bindings", i);
    const size_t input =
        FindValue(inputs, binding.input_name(), "input", place + ".input_name", context);
    const size_t output =
        FindValue(outputs, binding.output_name(), "output", place + ".output_name", context);
    CheckTypes(*graph.input()[input], *graph.output()[output], place, context);
  }
}

}  // namespace onnx_light::check
