#include "wire/visit.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "onnx_light/messages.h"

namespace onnx_light {
namespace {

TEST(Visit, FindsPayloadsInTheOrderOfWriting) {
  Owned<ModelProto> model;
  Arena& arena = model.arena();
  GraphProto& graph = *model->mutable_graph(arena);
  graph.add_initializer(arena);
  graph.add_initializer(arena);
  graph.add_node(arena);
  graph.add_node(arena)->add_attribute(arena)->mutable_t(arena);
  graph.add_paged_cache_initializer(arena)
      ->add_blocks(arena)
      ->mutable_encoded_key(arena)
      ->mutable_affine(arena)
      ->mutable_scale(arena);
  std::vector<std::string> paths;
  VisitPayloads(ModelProto::kInfo, static_cast<const Message&>(*model),
                [&](const MessageInfo& info, const Message&, const auto& path) {
                  paths.push_back(std::string(info.name) + " " + path.ToString());
                });
  EXPECT_EQ(paths, (std::vector<std::string>{
                       "TensorProto graph.node[1].attribute[0].t",
                       "TensorProto graph.initializer[0]", "TensorProto graph.initializer[1]",
                       "EncodedValueProto "
                       "graph.paged_cache_initializer[0].blocks[0].encoded_key",
                       "TensorProto graph.paged_cache_initializer[0].blocks[0].encoded_key."
                       "affine.scale"}));
}

TEST(Visit, VisitsTheRoot) {
  Owned<TensorProto> tensor;
  int count = 0;
  VisitPayloads(TensorProto::kInfo, static_cast<Message&>(*tensor),
                [&](const MessageInfo&, Message& message, const auto& path) {
                  EXPECT_EQ(&message, &*tensor);
                  EXPECT_EQ(path.ToString(), "");
                  ++count;
                });
  EXPECT_EQ(count, 1);
}

TEST(Visit, GoesAsDeepAsTheTree) {
  Owned<GraphProto> root;
  GraphProto* graph = &*root;
  for (int i = 0; i < 100'000; ++i) {
    graph = graph->add_node(root.arena())->add_attribute(root.arena())->mutable_g(root.arena());
  }
  graph->add_initializer(root.arena());
  int count = 0;
  VisitPayloads(GraphProto::kInfo, static_cast<const Message&>(*root),
                [&](const MessageInfo&, const Message&, const auto&) { ++count; });
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace onnx_light
