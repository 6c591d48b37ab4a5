#include "check/types.h"

#include <bit>
#include <unordered_map>
#include <vector>

#include "base/quote.h"
#include "check/cache_type.h"
#include "check/context.h"
#include "onnx/tensor_layout.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "quant/struct_layout.h"

namespace onnx_light {
namespace {

std::string Both(const char* what, const std::string& a, const std::string& b) {
  return std::string(what) + " " + a + " and " + b;
}

// The member that is set, or null.
const FieldInfo* MemberOf(const MessageInfo& info, const Message& message) {
  const uint32_t set = message.presence & info.oneofs[0].mask;
  return set == 0 ? nullptr : &info.fields[static_cast<size_t>(std::countr_zero(set))];
}

std::string KindDifference(const MessageInfo& info, const Message& a, const Message& b) {
  const FieldInfo *left = MemberOf(info, a), *right = MemberOf(info, b);
  if (left == right) return "";
  const auto name = [](const FieldInfo* field) { return field == nullptr ? "none" : field->name; };
  return Both("kinds", name(left), name(right));
}

std::string ShapeDifference(const TensorShapeProto& a, const TensorShapeProto& b) {
  if (a.dim().size() != b.dim().size()) {
    return Both("ranks", std::to_string(a.dim().size()), std::to_string(b.dim().size()));
  }
  for (size_t i = 0; i < a.dim().size(); ++i) {
    const auto &left = *a.dim()[i], &right = *b.dim()[i];
    if (!left.has_dim_value() || !right.has_dim_value()) continue;
    if (left.dim_value() == right.dim_value()) continue;
    return Both(("sizes of axis " + std::to_string(i)).c_str(), std::to_string(left.dim_value()),
                std::to_string(right.dim_value()));
  }
  return "";
}

// Of dense or sparse tensors.
template <typename T>
std::string TensorDifference(const T& a, const T& b) {
  if (a.elem_type() != b.elem_type()) {
    return Both("element types", DataTypeName(a.elem_type()), DataTypeName(b.elem_type()));
  }
  return a.has_shape() && b.has_shape() ? ShapeDifference(a.shape(), b.shape()) : "";
}

std::string StructureDifference(const StructTypeProto_Structure& a,
                                const StructTypeProto_Structure& b) {
  if (a.field().size() != b.field().size()) {
    return Both("numbers of fields", std::to_string(a.field().size()),
                std::to_string(b.field().size()));
  }
  for (size_t i = 0; i < a.field().size(); ++i) {
    const auto &left = *a.field()[i], &right = *b.field()[i];
    if (left.name() != right.name()) {
      return Both("fields", Escaped(left.name()), Escaped(right.name()));
    }
    if (left.has_constant() != right.has_constant() ||
        !Equal(TensorProto::kInfo, left.constant(), right.constant())) {
      return "constants of field " + Escaped(left.name());
    }
    std::string text = Difference(left.type(), right.type());
    if (!text.empty()) return text + " of field " + Escaped(left.name());
  }
  return "";
}

std::string StructDifference(const StructTypeProto& a, const StructTypeProto& b) {
  if (a.name() != b.name()) return Both("names", Escaped(a.name()), Escaped(b.name()));
  if (IsCacheType(a)) return Difference(ReadCacheType(a, ""), ReadCacheType(b, ""));
  std::string kinds = KindDifference(StructTypeProto::kInfo, a, b);
  if (!kinds.empty()) return kinds;
  if (a.array().dimension() != b.array().dimension()) {
    return Both("sizes of the array", std::to_string(a.array().dimension()),
                std::to_string(b.array().dimension()));
  }
  if (!Equal(StructTypeProto_BitPacking::kInfo, a.bit_packing(), b.bit_packing())) {
    return "bit packings";
  }
  if (a.has_array()) return Difference(a.array().element_type(), b.array().element_type());
  return StructureDifference(a.structure(), b.structure());
}

}  // namespace

std::shared_ptr<const Owned<TypeProto>> Resolved(const TypeProto& type, const ModelProto& model,
                                                 const std::string& path) {
  auto copy = std::make_shared<Owned<TypeProto>>();
  Merge(copy->arena(), TypeProto::kInfo, **copy, type);
  ResolveTypes(copy->arena(), **copy, &model, path);
  return copy;
}

std::string Difference(const TypeProto& a, const TypeProto& b) {
  std::string kinds = KindDifference(TypeProto::kInfo, a, b);
  if (!kinds.empty()) return kinds;
  if (a.has_tensor_type()) return TensorDifference(a.tensor_type(), b.tensor_type());
  if (a.has_sparse_tensor_type()) {
    return TensorDifference(a.sparse_tensor_type(), b.sparse_tensor_type());
  }
  if (a.has_sequence_type()) {
    return Difference(a.sequence_type().elem_type(), b.sequence_type().elem_type());
  }
  if (a.has_optional_type()) {
    return Difference(a.optional_type().elem_type(), b.optional_type().elem_type());
  }
  if (a.has_map_type()) {
    if (a.map_type().key_type() != b.map_type().key_type()) {
      return Both("key types", DataTypeName(a.map_type().key_type()),
                  DataTypeName(b.map_type().key_type()));
    }
    return Difference(a.map_type().value_type(), b.map_type().value_type());
  }
  if (a.has_struct_type()) return StructDifference(a.struct_type(), b.struct_type());
  return Equal(TypeProto_Opaque::kInfo, a.opaque_type(), b.opaque_type()) ? "" : "opaque types";
}

namespace check {
namespace {

// The types that a type refers to; not those of its decoder and encoder, whose values they may be.
std::vector<uint64_t> ReferencesOf(const StructTypeProto& type) {
  std::vector<uint64_t> references;
  VisitMessages(StructTypeProto::kInfo, static_cast<const Message&>(type),
                [&](const MessageInfo& info, const Message& message, const Context::Path& path) {
                  if (&info != &StructTypeProto::kInfo) return;
                  const auto& inner = static_cast<const StructTypeProto&>(message);
                  if (!inner.has_type_ref()) return;
                  for (size_t i = 0; path.Field(i) != nullptr; ++i) {
                    if (path.Field(i)->message == &FunctionProto::kInfo) return;
                  }
                  references.push_back(inner.type_ref());
                });
  return references;
}

// A type on the way from the one that the search began with.
struct Step {
  size_t type;
  std::vector<uint64_t> references;
  size_t next = 0;
};

// Follows references depth first. A type that is met again on the way contains itself.
class CycleSearch {
 public:
  CycleSearch(const ModelProto& model, const Context& context)
      : types_(model.struct_types()), states_(types_.size()), context_(context) {
    for (size_t i = 0; i < types_.size(); ++i) {
      if (types_[i]->has_type_id()) indices_.emplace(types_[i]->type_id(), i);
    }
  }

  void Run() {
    for (size_t i = 0; i < types_.size(); ++i) {
      if (states_[i] == State::kNew) RunFrom(i);
    }
  }

 private:
  enum class State : uint8_t { kNew, kOnTheWay, kDone };

  void RunFrom(size_t first) {
    Enter(first);
    while (!way_.empty()) {
      Step& step = way_.back();
      if (step.next == step.references.size()) {
        states_[step.type] = State::kDone;
        way_.pop_back();
        continue;
      }
      const auto found = indices_.find(step.references[step.next++]);
      if (found == indices_.end()) continue;  // said where the reference is
      const size_t target = found->second;
      if (states_[target] == State::kOnTheWay) {
        context_.Fail(
            "check.cycle", "struct_types[" + std::to_string(target) + "]",
            "contains itself, by a reference in struct_types[" + std::to_string(step.type) + "]");
      }
      if (states_[target] == State::kNew) Enter(target);
    }
  }

  void Enter(size_t type) {
    states_[type] = State::kOnTheWay;
    way_.push_back({type, ReferencesOf(*types_[type])});
  }

  std::span<StructTypeProto* const> types_;
  std::vector<State> states_;
  const Context& context_;
  std::unordered_map<uint64_t, size_t> indices_;
  std::vector<Step> way_;
};

}  // namespace

void CheckStructTypes(const ModelProto& model, const Context& context) {
  std::unordered_map<uint64_t, size_t> indices;
  for (size_t i = 0; i < model.struct_types().size(); ++i) {
    const StructTypeProto& type = *model.struct_types()[i];
    if (!type.has_type_id()) continue;
    const auto [other, is_new] = indices.emplace(type.type_id(), i);
    if (is_new) continue;
    context.Fail("check.duplicate", "struct_types[" + std::to_string(i) + "].type_id",
                 std::to_string(type.type_id()) + " is that of struct_types[" +
                     std::to_string(other->second) + "], too");
  }
  CycleSearch(model, context).Run();
}

void CheckType(const TypeProto& type, const Context& context) {
  if (context.IsIn("value_info", 1)) return;  // that may say no more than a name
  context.Require(MemberOf(TypeProto::kInfo, type) != nullptr, "value");
}

void CheckStructType(const StructTypeProto& type, const Context& context) {
  context.Require(MemberOf(StructTypeProto::kInfo, type) != nullptr, "kind");
  if (type.has_type_ref()) {
    FindStructType(&context.model(), type.type_ref(), context.Place());
  } else if (IsCacheType(type)) {
    Owned<StructTypeProto> copy;
    Merge(copy.arena(), StructTypeProto::kInfo, *copy, type);
    ResolveTypes(copy.arena(), *copy, &context.model(), context.Place());
    ReadCacheType(*copy, context.Place());
  }
}

void CheckArray(const StructTypeProto_Array& array, const Context& context) {
  context.Require(array.has_element_type(), "element_type");
  context.Require(array.has_dimension(), "dimension");
}

void CheckStructure(const StructTypeProto_Structure& structure, const Context& context) {
  Names names(context);
  for (size_t i = 0; i < structure.field().size(); ++i) {
    names.Add(structure.field()[i]->name(), "field", i);
  }
}

void CheckField(const StructTypeProto_Structure_Field& field, const Context& context) {
  context.Require(field.has_type() || field.has_constant(), "content");
}

void CheckComponent(const StructTypeProto_BitPacking_Component& component, const Context& context) {
  context.Require(component.has_bit_width(), "bit_width");
}

}  // namespace check
}  // namespace onnx_light
