#include "check/cache_type.h"

#include <array>
#include <initializer_list>
#include <span>
#include <string_view>

#include "base/quote.h"
#include "onnx/tensor_layout.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "quant/struct_layout.h"

namespace onnx_light {
namespace {

constexpr std::string_view kVersionKey = "onnx_light.type_version";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kPagesField[] = {"blocks"};
constexpr std::string_view kPageFields[] = {"start", "length", "key", "value"};

using Dims = std::array<std::optional<int64_t>, 4>;

[[noreturn]] void Throw(const std::string& path, const std::string& message) {
  throw ValueError("check.cache_type", path, message);
}

void CheckVersion(const StructTypeProto& type, const std::string& path) {
  std::string_view version;
  for (const StringStringEntryProto* entry : type.metadata_props()) {
    if (entry->key() == kVersionKey) version = entry->value();
  }
  if (version == kVersion) return;
  Throw(path, "metadata_props must have " + std::string(kVersionKey) + " = \"" +
                  std::string(kVersion) + "\"" +
                  (version.empty() ? "" : ", has \"" + Escaped(version) + "\""));
}

// The fields of a structure that must have exactly these.
std::span<StructTypeProto_Structure_Field* const> Fields(const StructTypeProto& type,
                                                         std::span<const std::string_view> names,
                                                         const std::string& path) {
  const auto fields = type.structure().field();
  bool matches = fields.size() == names.size();
  for (size_t i = 0; matches && i < names.size(); ++i) {
    matches = fields[i]->name() == names[i] && fields[i]->has_type();
  }
  if (matches) return fields;
  std::string wanted;
  for (std::string_view name : names) wanted += (wanted.empty() ? "" : ", ") + std::string(name);
  Throw(path, "must be a structure with the typed fields " + wanted);
}

void CheckTensor(const TypeProto& type, int32_t element, size_t rank, const std::string& path) {
  const TypeProto_Tensor& tensor = type.tensor_type();
  if (tensor.elem_type() != element) Throw(path, "must be a tensor of " + DataTypeName(element));
  if (!tensor.has_shape() || tensor.shape().dim().size() == rank) return;
  Throw(path,
        std::to_string(tensor.shape().dim().size()) + " dims, must be " + std::to_string(rank));
}

// [batch, heads, tokens, width].
Dims ReadDims(const TypeProto& type, const std::string& path) {
  CheckTensor(type, TensorProto::FLOAT, 4, path);
  Dims dims;
  if (!type.tensor_type().has_shape()) return dims;
  for (size_t i = 0; i < 4; ++i) {
    const TensorShapeProto_Dimension& dim = *type.tensor_type().shape().dim()[i];
    if (!dim.has_dim_value()) continue;
    if (dim.dim_value() <= 0) {
      Throw(path, "dim " + std::to_string(i) + " is " + std::to_string(dim.dim_value()) +
                      ", must be positive");
    }
    dims[i] = dim.dim_value();
  }
  return dims;
}

std::optional<int64_t> Common(std::optional<int64_t> key, std::optional<int64_t> value,
                              const char* name, const std::string& path) {
  if (!key) return value;
  if (!value || *key == *value) return key;
  Throw(path, std::string(name) + " is " + std::to_string(*key) + " of key and " +
                  std::to_string(*value) + " of value");
}

using Sizes = std::initializer_list<std::optional<int64_t>>;

void WriteTensor(int32_t element, Sizes sizes, Arena& arena, TypeProto& type) {
  TypeProto_Tensor* tensor = type.mutable_tensor_type(arena);
  tensor->set_elem_type(arena, element);
  TensorShapeProto* shape = tensor->mutable_shape(arena);
  for (const std::optional<int64_t>& size : sizes) {
    TensorShapeProto_Dimension* dim = shape->add_dim(arena);
    if (size) dim->set_dim_value(arena, *size);
  }
}

}  // namespace

bool IsCacheType(const StructTypeProto& type) { return type.name() == kCacheTypeName; }

CacheType ReadCacheType(const StructTypeProto& type, const std::string& path) {
  CheckVersion(type, path);
  const std::string blocks_path = path + ".structure.field[0].type";
  const TypeProto& blocks = Fields(type, kPagesField, path)[0]->type();
  const TypeProto& element = blocks.sequence_type().elem_type();
  if (!element.has_struct_type()) Throw(blocks_path, "must be a sequence of a structure");
  const std::string page_path = blocks_path + ".sequence_type.elem_type.struct_type";
  const auto page = Fields(element.struct_type(), kPageFields, page_path);
  const auto place = [&](int i) {
    return page_path + ".structure.field[" + std::to_string(i) + "].type";
  };
  CheckTensor(page[0]->type(), TensorProto::INT64, 0, place(0));
  CheckTensor(page[1]->type(), TensorProto::INT64, 0, place(1));
  const Dims key = ReadDims(page[2]->type(), place(2));
  const Dims value = ReadDims(page[3]->type(), place(3));
  return {Common(key[0], value[0], "batch", page_path),
          Common(key[1], value[1], "heads", page_path), key[3], value[3]};
}

std::optional<CacheType> ReadCacheType(const TypeProto& type, const ModelProto* model,
                                       const std::string& path) {
  if (!type.has_struct_type()) return std::nullopt;
  Owned<TypeProto> copy;
  Merge(copy.arena(), TypeProto::kInfo, *copy, type);
  ResolveTypes(copy.arena(), *copy, model, path);
  if (!IsCacheType(copy->struct_type())) return std::nullopt;
  return ReadCacheType(copy->struct_type(), path + ".struct_type");
}

void WriteCacheType(const CacheType& caches, Arena& arena, TypeProto& type) {
  StructTypeProto* whole = type.mutable_struct_type(arena);
  whole->set_name(arena, kCacheTypeName);
  StringStringEntryProto* version = whole->add_metadata_props(arena);
  version->set_key(arena, kVersionKey);
  version->set_value(arena, kVersion);
  StructTypeProto_Structure_Field* pages = whole->mutable_structure(arena)->add_field(arena);
  pages->set_name(arena, kPagesField[0]);
  StructTypeProto_Structure* page = pages->mutable_type(arena)
                                        ->mutable_sequence_type(arena)
                                        ->mutable_elem_type(arena)
                                        ->mutable_struct_type(arena)
                                        ->mutable_structure(arena);
  const auto add = [&](std::string_view name, int32_t element, Sizes sizes) {
    StructTypeProto_Structure_Field* field = page->add_field(arena);
    field->set_name(arena, name);
    WriteTensor(element, sizes, arena, *field->mutable_type(arena));
  };
  add(kPageFields[0], TensorProto::INT64, {});
  add(kPageFields[1], TensorProto::INT64, {});
  add(kPageFields[2], TensorProto::FLOAT,
      {caches.batch, caches.heads, std::nullopt, caches.key_width});
  add(kPageFields[3], TensorProto::FLOAT,
      {caches.batch, caches.heads, std::nullopt, caches.value_width});
}

std::string Difference(const CacheType& a, const CacheType& b) {
  const auto differ = [](const char* name, std::optional<int64_t> left,
                         std::optional<int64_t> right) -> std::string {
    if (!left || !right || *left == *right) return "";
    return std::string(name) + " " + std::to_string(*left) + " and " + std::to_string(*right);
  };
  for (const std::string& text :
       {differ("batch", a.batch, b.batch), differ("heads", a.heads, b.heads),
        differ("key width", a.key_width, b.key_width),
        differ("value width", a.value_width, b.value_width)}) {
    if (!text.empty()) return text;
  }
  return "";
}

CacheType TypeOf(const CacheShape& shape) {
  if (shape == CacheShape()) return {};
  return {shape.batch, shape.heads, shape.key_width, shape.value_width};
}

}  // namespace onnx_light
