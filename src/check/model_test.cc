#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_light/check.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"

namespace onnx_light {
namespace {

using Model = Owned<ModelProto>;

void SetDims(Arena& arena, std::initializer_list<int64_t> dims, TypeProto& type) {
  type.mutable_tensor_type(arena)->set_elem_type(arena, TensorProto::FLOAT);
  TensorShapeProto* shape = type.mutable_tensor_type(arena)->mutable_shape(arena);
  for (int64_t dim : dims) shape->add_dim(arena)->set_dim_value(arena, dim);
}

void SetBytes(Arena& arena, uint64_t size, TensorProto& tensor) {
  tensor.set_raw_data(arena, std::string_view(std::string(size, '\1')));
}

// Two blocks, [1, 2, 4, 8] float16 keys and int8 values with one scale.
void AddCache(Arena& arena, GraphProto& graph) {
  PagedCacheProto& cache = *graph.add_paged_cache_initializer(arena);
  cache.set_name(arena, "layers.0");
  for (int64_t start : {0, 4}) {
    PagedCacheBlockProto& block = *cache.add_blocks(arena);
    block.set_start(arena, start);
    block.set_length(arena, 4);
    TensorProto& key = *block.mutable_key(arena);
    for (int64_t dim : {1, 2, 4, 8}) key.add_dims(arena, dim);
    key.set_data_type(arena, TensorProto::FLOAT16);
    SetBytes(arena, 2 * 64, key);
    EncodedValueProto& value = *block.mutable_encoded_value(arena);
    SetDims(arena, {1, 2, 4, 8}, *value.mutable_logical_type(arena));
    value.set_raw_data(arena, std::string_view(std::string(64, '\1')));
    value.mutable_affine(arena)->set_storage_type(arena, TensorProto::INT8);
    value.set_parameter_ref(arena, "p");
  }
}

void AddValue(Arena& arena, std::string_view name, ValueInfoProto& value) {
  value.set_name(arena, name);
  SetDims(arena, {2, 3}, *value.mutable_type(arena));
}

void Build(Model& model) {
  Arena& arena = model.arena();
  model->set_ir_version(arena, 10);
  model->add_opset_import(arena)->set_version(arena, 21);
  GraphProto& graph = *model->mutable_graph(arena);
  graph.set_name(arena, "g");
  TensorProto& scale = *graph.add_initializer(arena);
  scale.set_name(arena, "scale");
  scale.set_data_type(arena, TensorProto::FLOAT);
  SetBytes(arena, 4, scale);
  TensorAnnotation& note = *graph.add_quantization_annotation(arena);
  note.set_tensor_name(arena, "onnx_light.quantization.parameters:p");
  StringStringEntryProto& entry = *note.add_quant_parameter_tensor_names(arena);
  entry.set_key(arena, "scale");
  entry.set_value(arena, "scale");
  AddCache(arena, graph);
  AddValue(arena, "x", *graph.add_input(arena));
  AddValue(arena, "y", *graph.add_output(arena));
  PersistentBindingProto& binding = *graph.add_persistent_bindings(arena);
  binding.set_input_name(arena, "x");
  binding.set_output_name(arena, "y");
  for (uint64_t id : {1, 2}) {
    StructTypeProto& type = *model->add_struct_types(arena);
    type.set_type_id(arena, id);
    StructTypeProto_Array& array = *type.mutable_array(arena);
    array.set_dimension(arena, 2);
    SetDims(arena, {}, *array.mutable_element_type(arena));
  }
}

PagedCacheBlockProto& Block(Model& model, size_t index) {
  return *model->graph().paged_cache_initializer()[0]->blocks()[index];
}

struct Case {
  const char* code;
  const char* path;
  std::function<void(Model&, Arena&)> change;
};

std::vector<Case> Cases() {
  return {
      {"check.missing", "graph.name",
       [](Model& m, Arena& a) { m->mutable_graph(a)->clear_name(a); }},
      {"check.missing", "opset_import", [](Model& m, Arena& a) { m->clear_opset_import(a); }},
      {"check.missing", "graph.node[0].op_type",
       [](Model& m, Arena& a) { m->mutable_graph(a)->add_node(a); }},
      {"tensor.size", "graph.initializer[1].raw_data",
       [](Model& m, Arena& a) {
         TensorProto& tensor = *m->mutable_graph(a)->add_initializer(a);
         tensor.set_name(a, "t");
         tensor.set_data_type(a, TensorProto::INT4);
         tensor.add_dims(a, 3);
         SetBytes(a, 1, tensor);
       }},
      {"cache.reference", "graph.quantization_annotation[0]",
       [](Model& m, Arena& a) { m->graph().initializer()[0]->set_name(a, "other"); }},
      {"cache.missing", "graph.paged_cache_initializer[0].blocks[1]",
       [](Model& m, Arena& a) { Block(m, 1).clear_start(a); }},
      {"cache.start", "graph.paged_cache_initializer[0].blocks[1].start",
       [](Model& m, Arena& a) { Block(m, 1).set_start(a, 5); }},
      {"cache.length", "graph.paged_cache_initializer[0].blocks[1].length",
       [](Model& m, Arena& a) { Block(m, 1).set_length(a, 5); }},
      {"cache.too_large", "graph.paged_cache_initializer[0].blocks[0].start",
       [](Model& m, Arena& a) { Block(m, 0).set_start(a, INT64_MAX - 3); }},
      {"cache.payload_size", "graph.paged_cache_initializer[0].blocks[0].key",
       [](Model& m, Arena& a) { SetBytes(a, 127, *Block(m, 0).mutable_key(a)); }},
      {"cache.payload_size", "graph.paged_cache_initializer[0].blocks[0].encoded_value.raw_data",
       [](Model& m, Arena& a) {
         Block(m, 0).mutable_encoded_value(a)->set_raw_data(a, std::string_view("123"));
       }},
      {"external.inline", "graph.paged_cache_initializer[0].blocks[0].encoded_value.external_data",
       [](Model& m, Arena& a) {
         Block(m, 0).mutable_encoded_value(a)->set_data_location(a, TensorProto::EXTERNAL);
       }},
      {"check.duplicate", "graph.paged_cache_initializer[0]",
       [](Model& m, Arena& a) { m->graph().paged_cache_initializer()[0]->set_name(a, "scale"); }},
      {"check.cache_input", "graph.input[0].type",
       [](Model& m, Arena& a) { m->graph().paged_cache_initializer()[0]->set_name(a, "x"); }},
      {"check.binding", "graph.persistent_bindings[0].input_name",
       [](Model& m, Arena& a) { m->graph().persistent_bindings()[0]->set_input_name(a, "scale"); }},
      {"check.binding", "graph.persistent_bindings[0]",
       [](Model& m, Arena& a) { SetDims(a, {1}, *m->graph().output()[0]->mutable_type(a)); }},
      {"check.duplicate", "struct_types[1].type_id",
       [](Model& m, Arena& a) { m->struct_types()[1]->set_type_id(a, 1); }},
      {"cache.reference", "struct_types[1]",
       [](Model& m, Arena& a) { m->struct_types()[1]->set_type_ref(a, 3); }},
      {"check.cycle", "struct_types[0]",
       [](Model& m, Arena& a) {
         m->struct_types()[1]->set_type_ref(a, 1);
         m->struct_types()[0]->set_type_ref(a, 2);
       }},
  };
}

TEST(CheckModel, AcceptsAValidModel) {
  Model model;
  Build(model);
  CheckModel(*model);
  CheckModel(*model, "/");
}

TEST(CheckModel, NamesTheRuleThatIsBroken) {
  for (const Case& broken : Cases()) {
    Model model;
    Build(model);
    broken.change(model, model.arena());
    try {
      CheckModel(*model);
      ADD_FAILURE() << broken.code << " " << broken.path;
    } catch (const ValueError& error) {
      EXPECT_EQ(error.code(), broken.code) << broken.path;
      EXPECT_EQ(error.path(), broken.path);
    }
  }
}

TEST(CheckModel, ModelsMayBeDeep) {
  Model model;
  Build(model);
  Arena& arena = model.arena();
  GraphProto* graph = model->mutable_graph(arena);
  for (int i = 0; i < 100'000; ++i) {
    NodeProto* node = graph->add_node(arena);
    node->set_op_type(arena, "Loop");
    AttributeProto* attribute = node->add_attribute(arena);
    attribute->set_name(arena, "body");
    attribute->set_type(arena, AttributeProto::GRAPH);
    graph = attribute->mutable_g(arena);
    graph->set_name(arena, "body");
  }
  CheckModel(*model);
  graph->clear_name(arena);
  EXPECT_THROW(CheckModel(*model), ValueError);
}

TEST(KeepStandardPart, HasNothingOfOurs) {
  Model model;
  Build(model);
  Arena& arena = model.arena();
  ValueInfoProto& input = *model->mutable_graph(arena)->add_input(arena);
  input.set_name(arena, "layers.0");
  input.mutable_type(arena)->mutable_struct_type(arena)->set_type_ref(arena, 1);
  TensorProto& large = *model->mutable_graph(arena)->add_initializer(arena);
  large.set_name(arena, "large");
  SetBytes(arena, 5000, large);
  TensorProto& elsewhere = *model->mutable_graph(arena)->add_initializer(arena);
  elsewhere.set_name(arena, "elsewhere");
  elsewhere.set_data_location(arena, TensorProto::EXTERNAL);
  elsewhere.add_external_data(arena);
  KeepStandardPart(arena, *model);
  const GraphProto& graph = model->graph();
  EXPECT_FALSE(model->has_struct_types());
  EXPECT_FALSE(graph.has_encoded_initializer());
  EXPECT_FALSE(graph.has_paged_cache_initializer());
  EXPECT_FALSE(graph.has_persistent_bindings());
  EXPECT_EQ(graph.input()[1]->type().tensor_type().elem_type(), TensorProto::INT64);
  ASSERT_EQ(graph.initializer().size(), 4u);
  EXPECT_EQ(graph.initializer()[1]->raw_data().size(), 1u);
  EXPECT_EQ(graph.initializer()[2]->raw_data().size(), 1u);
  EXPECT_FALSE(graph.initializer()[2]->has_external_data());
  EXPECT_EQ(graph.initializer()[3]->name(), "layers.0");
  CheckModel(*model);
}

}  // namespace
}  // namespace onnx_light
