#include "quant/struct_layout.h"

#include "onnx_light/encoded_payload.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"

namespace onnx_light {
namespace {

constexpr int kMaxNesting = 32;
constexpr int kMaxReferences = 1000;  // types that refer to others twice grow exponentially

class TypeResolver {
 public:
  TypeResolver(Arena& arena, const ModelProto* model, const std::string& path)
      : arena_(arena), model_(model), path_(path) {}

  void Resolve(StructTypeProto& type, int depth) {
    CheckNesting(depth);
    if (type.has_type_ref()) {
      if (++references_ > kMaxReferences) {
        throw ValueError("cache.layout", path_,
                         "has more than " + std::to_string(kMaxReferences) +
                             " references to types, those inside types included");
      }
      const StructTypeProto& target = FindStructType(model_, type.type_ref(), path_);
      type.clear_type_ref(arena_);
      Merge(arena_, StructTypeProto::kInfo, type, target);
      type.clear_type_id(arena_);
      Resolve(type, depth + 1);
    } else if (type.has_array()) {
      ResolveElement(*type.mutable_array(arena_)->mutable_element_type(arena_), depth);
    } else if (type.has_structure()) {
      for (StructTypeProto_Structure_Field* field : type.structure().field()) {
        if (field->has_type()) ResolveElement(*field->mutable_type(arena_), depth);
      }
    }
  }

  void ResolveElement(TypeProto& type, int depth) {
    CheckNesting(depth);
    if (type.has_struct_type()) {
      Resolve(*type.mutable_struct_type(arena_), depth + 1);
    } else if (type.has_sequence_type() && type.sequence_type().has_elem_type()) {
      ResolveElement(*type.mutable_sequence_type(arena_)->mutable_elem_type(arena_), depth + 1);
    } else if (type.has_optional_type() && type.optional_type().has_elem_type()) {
      ResolveElement(*type.mutable_optional_type(arena_)->mutable_elem_type(arena_), depth + 1);
    } else if (type.has_map_type() && type.map_type().has_value_type()) {
      ResolveElement(*type.mutable_map_type(arena_)->mutable_value_type(arena_), depth + 1);
    }
  }

 private:
  void CheckNesting(int depth) const {
    if (depth <= kMaxNesting) return;
    throw ValueError("cache.layout", path_,
                     "types lie more than " + std::to_string(kMaxNesting) +
                         " deep in each other, or one contains itself");
  }

  Arena& arena_;
  const ModelProto* model_;
  const std::string& path_;
  int references_ = 0;
};

const char* RecordName(PageType records) {
  return records == PageType::kQ8_0 ? "ggml.q8_0" : "ggml.q4_0";
}

void WriteScalar(Arena& arena, int32_t data_type, TypeProto& type) {
  TypeProto_Tensor* tensor = type.mutable_tensor_type(arena);
  tensor->set_elem_type(arena, data_type);
  tensor->mutable_shape(arena);
}

const StructTypeProto& RecordType(PageType records) {
  const auto make = [](PageType of) {
    auto* type = new Owned<StructTypeProto>();  // lives as long as the program
    WriteRecordType(of, type->arena(), **type);
    return type;
  };
  static const auto* q8 = make(PageType::kQ8_0);
  static const auto* q4 = make(PageType::kQ4_0);
  return records == PageType::kQ8_0 ? **q8 : **q4;
}

}  // namespace

const StructTypeProto& FindStructType(const ModelProto* model, uint64_t id,
                                      const std::string& path) {
  if (model != nullptr) {
    for (const StructTypeProto* type : model->struct_types()) {
      if (type->has_type_id() && type->type_id() == id) return *type;
    }
  }
  throw ValueError("cache.reference", path,
                   "type_ref " + std::to_string(id) +
                       (model == nullptr ? " needs the model whose struct_types it refers to"
                                         : " is the type_id of no struct type of the model"));
}

void ResolveTypes(Arena& arena, StructTypeProto& type, const ModelProto* model,
                  const std::string& path) {
  TypeResolver(arena, model, path).Resolve(type, 0);
}

void ResolveTypes(Arena& arena, TypeProto& type, const ModelProto* model, const std::string& path) {
  TypeResolver(arena, model, path).ResolveElement(type, 0);
}

std::optional<PageType> KnownRecords(const StructTypeProto& type) {
  for (PageType records : {PageType::kQ8_0, PageType::kQ4_0}) {
    if (type.name() != RecordName(records) || !type.has_structure()) continue;
    const StructTypeProto& known = RecordType(records);
    if (Equal(StructTypeProto_Structure::kInfo, type.structure(), known.structure())) {
      return records;
    }
  }
  return std::nullopt;
}

void WriteRecordType(PageType records, Arena& arena, StructTypeProto& type) {
  const bool is_q8 = records == PageType::kQ8_0;
  type.set_name(arena, RecordName(records));
  StructTypeProto_Structure* structure = type.mutable_structure(arena);
  StructTypeProto_Structure_Field* scale = structure->add_field(arena);
  scale->set_name(arena, "scale");
  WriteScalar(arena, TensorProto::FLOAT16, *scale->mutable_type(arena));
  StructTypeProto_Structure_Field* codes = structure->add_field(arena);
  codes->set_name(arena, "codes");
  StructTypeProto_Array* array =
      codes->mutable_type(arena)->mutable_struct_type(arena)->mutable_array(arena);
  WriteScalar(arena, is_q8 ? TensorProto::INT8 : TensorProto::UINT8,
              *array->mutable_element_type(arena));
  array->set_dimension(arena, is_q8 ? kRecordValues : kRecordValues / 2);
}

}  // namespace onnx_light
