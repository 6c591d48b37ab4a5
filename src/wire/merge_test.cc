#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/messages.h"

namespace onnx_light {
namespace {

template <typename M>
void MergeInto(Owned<M>& into, const M& from) {
  Merge(into.arena(), M::kInfo, *into, from);
}

std::vector<std::string> Strings(std::span<const String> list) {
  std::vector<std::string> strings;
  for (const String& string : list) strings.emplace_back(string.view());
  return strings;
}

// `levels` submessages below the root.
TypeProto* Deep(Owned<TypeProto>& root, int levels) {
  TypeProto* level = &*root;
  for (int i = 0; i < levels / 2; ++i) {
    level = level->mutable_sequence_type(root.arena())->mutable_elem_type(root.arena());
  }
  if (levels % 2 == 1) level->mutable_sequence_type(root.arena());
  return level;
}

TEST(Merge, ReplacesScalarsAppendsListsMergesMessages) {
  Owned<TensorProto> into, from;
  into->set_name(into.arena(), "old");
  into->set_doc_string(into.arena(), "stays");
  into->mutable_segment(into.arena())->set_begin(into.arena(), 1);
  internal::Append(into.arena(), into->mutable_dims(into.arena()), int64_t{1});
  internal::AppendString(into.arena(), into->mutable_string_data(into.arena()), "a");
  into->add_metadata_props(into.arena())->set_key(into.arena(), "k1");
  from->set_name(from.arena(), "");
  from->mutable_segment(from.arena())->set_end(from.arena(), 2);
  for (const int64_t dim : {2, 3}) {
    internal::Append(from.arena(), from->mutable_dims(from.arena()), dim);
  }
  internal::AppendString(from.arena(), from->mutable_string_data(from.arena()), "b");
  from->add_metadata_props(from.arena())->set_key(from.arena(), "k2");

  MergeInto(into, *from);
  EXPECT_TRUE(into->has_name());
  EXPECT_EQ(into->name(), "");
  EXPECT_EQ(into->doc_string(), "stays");
  EXPECT_EQ(into->segment().begin(), 1);
  EXPECT_EQ(into->segment().end(), 2);
  EXPECT_EQ(std::vector<int64_t>(into->dims().begin(), into->dims().end()),
            (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(Strings(into->string_data()), (std::vector<std::string>{"a", "b"}));
  ASSERT_EQ(into->metadata_props().size(), 2u);
  EXPECT_EQ(into->metadata_props()[1]->key(), "k2");
  EXPECT_NE(into->metadata_props()[1], from->metadata_props()[0]);
}

TEST(Merge, AOneofMemberClearsTheOthersAndMergesIntoItself) {
  Owned<TypeProto> into, tensor, more, sequence;
  tensor->mutable_tensor_type(tensor.arena())->set_elem_type(tensor.arena(), 1);
  more->mutable_tensor_type(more.arena())->mutable_shape(more.arena())->add_dim(more.arena());
  sequence->mutable_sequence_type(sequence.arena());
  MergeInto(into, *tensor);
  MergeInto(into, *more);
  EXPECT_EQ(into->tensor_type().elem_type(), 1);
  EXPECT_EQ(into->tensor_type().shape().dim().size(), 1u);
  MergeInto(into, *sequence);
  EXPECT_FALSE(into->has_tensor_type());
  EXPECT_TRUE(into->has_sequence_type());
}

TEST(Merge, SharesPayloadsThatOutliveTheSource) {
  Owned<TensorProto> into;
  const std::string text(10'000, 'p');
  int released = 0;
  {
    Owned<TensorProto> from;
    from->set_raw_data(from.arena(), SharedBytes(BufferRef::Wrap(text.data(), text.size(),
                                                                 [&released] { ++released; })));
    MergeInto(into, *from);
  }
  EXPECT_EQ(released, 0);
  EXPECT_EQ(into->raw_data().data(), text.data());
  into->clear_raw_data(into.arena());
  EXPECT_EQ(released, 1);
}

TEST(Merge, AppendsUnknownFields) {
  Owned<NodeProto> into, from;
  MergeInto(into, *from);
  EXPECT_EQ(into->unknown, nullptr);
  AppendUnknownFields(from.arena(), *from, "from");
  MergeInto(into, *from);
  MergeInto(into, *from);
  EXPECT_EQ(UnknownFields(*into), "fromfrom");
}

TEST(Merge, OfAMessageIntoItselfDoublesItsLists) {
  Owned<GraphProto> graph;
  Arena& arena = graph.arena();
  graph->set_name(arena, "g");
  for (const std::string_view name : {"a", "b"}) {
    NodeProto* node = graph->add_node(arena);
    node->set_name(arena, name);
    internal::AppendString(arena, node->mutable_input(arena), std::string(5000, name[0]));
  }
  AppendUnknownFields(arena, *graph, std::string(40, 'u') + "end");
  MergeInto(graph, *graph);
  ASSERT_EQ(graph->node().size(), 4u);
  EXPECT_EQ(graph->node()[2]->name(), "a");
  EXPECT_EQ(graph->node()[3]->name(), "b");
  EXPECT_EQ(Strings(graph->node()[3]->input()), std::vector<std::string>{std::string(5000, 'b')});
  EXPECT_EQ(Strings(graph->node()[1]->input()), std::vector<std::string>{std::string(5000, 'b')});
  const std::string unknown = std::string(40, 'u') + "end";
  EXPECT_EQ(UnknownFields(*graph), unknown + unknown);

  Owned<AttributeProto> attribute;
  for (int64_t i = 0; i < 100; ++i) {
    internal::Append(attribute.arena(), attribute->mutable_ints(attribute.arena()), i);
  }
  internal::AppendString(attribute.arena(), attribute->mutable_strings(attribute.arena()), "s");
  MergeInto(attribute, *attribute);
  ASSERT_EQ(attribute->ints().size(), 200u);
  for (size_t i = 0; i < 200; ++i) EXPECT_EQ(attribute->ints()[i], static_cast<int64_t>(i % 100));
  EXPECT_EQ(Strings(attribute->strings()), (std::vector<std::string>{"s", "s"}));
}

TEST(Merge, AnEmptyListIsNoList) {
  Owned<NodeProto> into, from;
  from->mutable_input(from.arena());
  MergeInto(into, *from);
  EXPECT_EQ(into->presence, 0u);
}

TEST(Merge, RefusesTreesThatAreTooDeepBeforeChangingAnything) {
  Owned<TypeProto> limit, beyond, into;
  Deep(limit, kMaxDepth)->set_denotation(limit.arena(), "deepest");
  MergeInto(into, *limit);
  EXPECT_TRUE(Equal(TypeProto::kInfo, *into, *limit));

  Deep(beyond, kMaxDepth + 1);
  beyond->set_denotation(beyond.arena(), "new");
  try {
    MergeInto(into, *beyond);
    ADD_FAILURE() << "accepted";
  } catch (const ValueError& error) {
    EXPECT_EQ(error.code(), "message.depth");
  }
  EXPECT_FALSE(into->has_denotation());
}

TEST(CheckDepth, CountsLevelsBelowTheRoot) {
  Owned<TypeProto> root;
  CheckDepth(TypeProto::kInfo, *root);
  Deep(root, kMaxDepth);
  CheckDepth(TypeProto::kInfo, *root);
  Deep(root, kMaxDepth + 1);
  EXPECT_THROW(CheckDepth(TypeProto::kInfo, *root), ValueError);
  Deep(root, 400'000);
  EXPECT_THROW(CheckDepth(TypeProto::kInfo, *root), ValueError);

  // Through lists as well.
  Owned<GraphProto> graph;
  GraphProto* level = &*graph;
  for (int i = 0; i < kMaxDepth / 3 + 1; ++i) {
    level = level->add_node(graph.arena())->add_attribute(graph.arena())->add_graphs(graph.arena());
  }
  EXPECT_THROW(CheckDepth(GraphProto::kInfo, *graph), ValueError);
}

}  // namespace
}  // namespace onnx_light
