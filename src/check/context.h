// What the rules for a model's messages share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "onnx_light/messages.h"
#include "quant/encoded_proto.h"
#include "wire/visit.h"

namespace onnx_light::check {

// The model, and where in it the message lies that a rule looks at.
class Context {
 public:
  using Path = VisitPath<const Message>;
  Context(const ModelProto& model, const Path& path) : model_(model), path_(path) {}

  const ModelProto& model() const { return model_; }
  // Data in other files are checked as far as the message tells.
  References references() const { return {&model_, OtherFiles::kSkip}; }

  // "graph.node[3].op_type" for a field of the message; without one the message itself.
  std::string Place(std::string_view field = {}) const;
  // Whether the field that holds the message `levels` above this one has that name.
  bool IsIn(std::string_view field, size_t levels = 0) const;
  [[noreturn]] void Fail(const char* code, std::string_view field,
                         const std::string& message) const;

  // `check.missing` unless the field is set, or the text is set and not empty.
  void Require(bool is_set, std::string_view field) const;
  void RequireText(bool is_set, std::string_view text, std::string_view field) const;

 private:
  const ModelProto& model_;
  const Path& path_;
};

// Names that must differ from each other.
class Names {
 public:
  explicit Names(const Context& context) : context_(context) {}
  // The name of element `index` of a field. `check.missing` if it is empty, `check.duplicate`.
  void Add(std::string_view name, const char* field, size_t index);

 private:
  const Context& context_;
  std::unordered_map<std::string, std::string> places_;
};

// The rules, one function for each class that has any. All throw ValueError.
void CheckGraph(const GraphProto& graph, const Context& context);             // graph.cc
void CheckBindings(const GraphProto& graph, const Context& context);          // bindings.cc
void CheckStructTypes(const ModelProto& model, const Context& context);       // types.cc
void CheckType(const TypeProto& type, const Context& context);                // types.cc
void CheckStructType(const StructTypeProto& type, const Context& context);    // types.cc
void CheckArray(const StructTypeProto_Array& array, const Context& context);  // types.cc
void CheckStructure(const StructTypeProto_Structure& structure, const Context& context);
void CheckField(const StructTypeProto_Structure_Field& field, const Context& context);
void CheckComponent(const StructTypeProto_BitPacking_Component& component, const Context& context);
void CheckNode(const NodeProto& node, const Context& context);                 // nodes.cc
void CheckAttribute(const AttributeProto& attribute, const Context& context);  // nodes.cc
void CheckFunction(const FunctionProto& function, const Context& context);     // nodes.cc
void CheckTensor(const TensorProto& tensor, const Context& context);           // tensors.cc
void CheckSparseTensor(const SparseTensorProto& sparse, const Context& context);
void CheckEncodedPayload(const EncodedValueProto& value, const Context& context);

}  // namespace onnx_light::check
