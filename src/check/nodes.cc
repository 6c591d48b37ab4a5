// Rules for nodes, their attributes, and functions.
#include <string>
#include <utility>
#include <vector>

#include "check/context.h"

namespace onnx_light::check {
namespace {

constexpr int64_t kVersionWithAttributeTypes = 2;

constexpr std::pair<int32_t, const char*> kValueFields[] = {
    {AttributeProto::FLOAT, "f"},
    {AttributeProto::INT, "i"},
    {AttributeProto::STRING, "s"},
    {AttributeProto::TENSOR, "t"},
    {AttributeProto::GRAPH, "g"},
    {AttributeProto::FLOATS, "floats"},
    {AttributeProto::INTS, "ints"},
    {AttributeProto::STRINGS, "strings"},
    {AttributeProto::TENSORS, "tensors"},
    {AttributeProto::GRAPHS, "graphs"},
    {AttributeProto::TYPE_PROTO, "tp"},
    {AttributeProto::TYPE_PROTOS, "type_protos"},
    {AttributeProto::SPARSE_TENSOR, "sparse_tensor"},
    {AttributeProto::SPARSE_TENSORS, "sparse_tensors"},
};

bool IsUsed(const AttributeProto& attribute, const FieldInfo& field) {
  if (!Has(attribute, field)) return false;
  return !field.repeated || ViewList(attribute, field).size != 0;
}

std::string FieldOf(int32_t type) {
  for (const auto& [listed, name] : kValueFields) {
    if (listed == type) return name;
  }
  return "";
}

}  // namespace

void CheckNode(const NodeProto& node, const Context& context) {
  context.RequireText(node.has_op_type(), node.op_type(), "op_type");
  Names names(context);
  for (size_t i = 0; i < node.attribute().size(); ++i) {
    names.Add(node.attribute()[i]->name(), "attribute", i);
  }
}

void CheckAttribute(const AttributeProto& attribute, const Context& context) {
  context.RequireText(attribute.has_name(), attribute.name(), "name");
  std::vector<std::string> used;
  for (const auto& [type, name] : kValueFields) {
    if (IsUsed(attribute, *AttributeProto::kInfo.Find(name))) used.push_back(name);
  }
  std::string expected = FieldOf(attribute.type());
  if (expected.empty()) {
    if (context.model().ir_version() >= kVersionWithAttributeTypes) {
      context.Fail("check.missing", "type", "must say which field has the value");
    }
    if (!used.empty()) expected = used[0];
  }
  if (!attribute.ref_attr_name().empty()) expected.clear();
  for (const std::string& name : used) {
    if (name == expected) continue;
    context.Fail(
        "check.attribute", name,
        (expected.empty() ? "there must be no value" : "the value must be in " + expected) +
            ", by type and ref_attr_name");
  }
  // The others have a default or may be empty.
  for (const char* needed : {"t", "g", "sparse_tensor", "tp"}) {
    if (expected == needed) context.Require(!used.empty(), expected);
  }
}

void CheckFunction(const FunctionProto& function, const Context& context) {
  if (!context.IsIn("functions")) return;  // the decoder or encoder of a layout
  context.RequireText(function.has_name(), function.name(), "name");
}

}  // namespace onnx_light::check
