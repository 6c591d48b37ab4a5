#include <string>
#include <string_view>
#include <vector>

#include "onnx/external_data.h"
#include "onnx_light/check.h"
#include "wire/visit.h"

namespace onnx_light {
namespace {

// Below, tensors are kept: they may be shapes, axes and the like.
constexpr uint64_t kLargePayload = 4096;

void AddScalar(Arena& arena, std::string_view name, GraphProto& graph) {
  constexpr std::string_view kZero("\0\0\0\0\0\0\0\0", 8);
  TensorProto* tensor = graph.add_initializer(arena);
  tensor->set_name(arena, name);
  tensor->set_data_type(arena, TensorProto::INT64);
  tensor->set_raw_data(arena, kZero);
}

void KeepOfGraph(Arena& arena, GraphProto& graph) {
  std::vector<std::string> names;
  for (const EncodedValueProto* value : graph.encoded_initializer()) {
    names.emplace_back(value->name());
  }
  for (const PagedCacheProto* cache : graph.paged_cache_initializer()) {
    names.emplace_back(cache->name());
  }
  for (size_t i = graph.sparse_initializer().size(); i > 0; --i) {
    const SparseTensorProto& sparse = *graph.sparse_initializer()[i - 1];
    if (!IsExternal(TensorProto::kInfo, sparse.values()) &&
        !IsExternal(TensorProto::kInfo, sparse.indices())) {
      continue;
    }
    names.emplace_back(sparse.values().name());
    const FieldInfo& field = *GraphProto::kInfo.Find("sparse_initializer");
    EraseElements(arena, field, graph.mutable_sparse_initializer(arena), i - 1, 1);
  }
  graph.clear_encoded_initializer(arena);
  graph.clear_paged_cache_initializer(arena);
  graph.clear_persistent_bindings(arena);
  for (const std::string& name : names) AddScalar(arena, name, graph);
}

void KeepOfTensor(Arena& arena, TensorProto& tensor) {
  const bool is_external = IsExternal(TensorProto::kInfo, tensor);
  if (!is_external && tensor.raw_data().size() < kLargePayload) return;
  tensor.clear_external_data(arena);
  tensor.clear_data_location(arena);
  tensor.clear_dims(arena);
  tensor.set_data_type(arena, TensorProto::UINT8);
  tensor.set_raw_data(arena, std::string_view("\0", 1));
}

// Its dims and type matter.
bool IsPartOfSparse(const VisitPath<Message>& path) {
  const std::string_view field = path.Field()->name;
  return field == "values" || field == "indices";
}

void KeepOfType(Arena& arena, TypeProto& type) {
  if (!type.has_struct_type()) return;
  TypeProto_Tensor* tensor = type.mutable_tensor_type(arena);
  tensor->set_elem_type(arena, TensorProto::INT64);
  tensor->mutable_shape(arena);
}

}  // namespace

void KeepStandardPart(Arena& arena, ModelProto& model) {
  VisitMessages(ModelProto::kInfo, static_cast<Message&>(model),
                [&](const MessageInfo& info, Message& message, const VisitPath<Message>& path) {
                  if (&info == &ModelProto::kInfo) {
                    static_cast<ModelProto&>(message).clear_struct_types(arena);
                  } else if (&info == &GraphProto::kInfo) {
                    KeepOfGraph(arena, static_cast<GraphProto&>(message));
                  } else if (&info == &TypeProto::kInfo) {
                    KeepOfType(arena, static_cast<TypeProto&>(message));
                  } else if (&info == &TensorProto::kInfo && !IsPartOfSparse(path)) {
                    KeepOfTensor(arena, static_cast<TensorProto&>(message));
                  }
                });
}

}  // namespace onnx_light
