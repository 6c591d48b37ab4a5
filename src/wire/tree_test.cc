// Messages in memory: strings, presence, oneofs, lists, and who gives what back when.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_light/errors.h"
#include "onnx_light/messages.h"

namespace onnx_light {
namespace {

SharedBytes Counted(const std::string& text, int& released) {
  return SharedBytes(BufferRef::Wrap(text.data(), text.size(), [&released] { ++released; }));
}

// ---------------------------------------------------------------------------------------------
// Strings

TEST(String, IsReusedInPlaceWhereTheValueFits) {
  Arena arena;
  String string{};
  string.Set(arena, "a value of some length");
  const char* const place = string.data();
  for (const std::string_view value : {"short", "a value of some length", "x"}) {
    string.Set(arena, value);
    EXPECT_EQ(string.view(), value);
    EXPECT_EQ(string.data(), place);
  }
}

TEST(String, TakesAPartOfItself) {
  Arena arena;
  String string{};
  string.Set(arena, "0123456789");
  string.Set(arena, string.view().substr(3));
  EXPECT_EQ(string.view(), "3456789");
  const std::string large(String::kPayloadSize + 10, 'x');
  string.Set(arena, large + "tail");
  string.Set(arena, string.view().substr(5));
  EXPECT_EQ(string.view(), large.substr(5) + "tail");
  string.Set(arena, string.view().substr(string.size() - 6));
  EXPECT_EQ(string.view(), "xxtail");
}

TEST(String, AssignmentsInALoopStayBounded) {
  const std::string lengths[] = {std::string(3, 'a'),
                                 std::string(4095, 'b'),
                                 std::string(1500, 'c'),
                                 std::string(5000, 'd'),
                                 "",
                                 std::string(3001, 'e')};
  Arena arena;
  String string{};
  for (int i = 0; i < 10'000; ++i) {
    const std::string& value = lengths[i % 6];
    string.Set(arena, value);
    ASSERT_EQ(string.view(), value);
  }
  EXPECT_LE(arena.bytes_reserved(), 64 * 1024u);
}

TEST(String, DropsThePayloadThatItNoLongerHolds) {
  const std::string text(5000, 'p');
  const auto drops = [&text](auto&& change) {
    Arena arena;
    String string{};
    int released = 0;
    string.SetShared(arena, Counted(text, released));
    EXPECT_EQ(string.data(), text.data());
    EXPECT_EQ(released, 0);
    change(arena, string);
    return released == 1;
  };
  EXPECT_TRUE(drops([](Arena& arena, String& string) { string.Set(arena, ""); }));
  EXPECT_TRUE(drops([](Arena& arena, String& string) { string.Set(arena, "short"); }));
  EXPECT_TRUE(drops([](Arena& arena, String& string) { string.Release(arena); }));
  EXPECT_TRUE(drops([&](Arena& arena, String& string) { string.Set(arena, text); }));
  EXPECT_TRUE(drops([&](Arena& arena, String& string) {
    string.SetShared(arena, CopyBytes(text.data(), text.size()));
  }));
}

TEST(String, CopiesShareThePayloadAcrossArenas) {
  const std::string text(5000, 'p');
  int released = 0;
  Arena second_arena;
  String copy{};
  {
    Arena arena;
    String string{};
    string.SetShared(arena, Counted(text, released));
    copy.CopyFrom(second_arena, string);
    copy.CopyFrom(second_arena, copy);
  }
  EXPECT_EQ(released, 0);
  EXPECT_EQ(copy.data(), text.data());
  copy.Release(second_arena);
  EXPECT_EQ(released, 1);
}

TEST(String, ShareOutlivesTheMessage) {
  SharedBytes shared;
  {
    Arena arena;
    String string{};
    string.Set(arena, "short");
    shared = string.Share(arena);
    EXPECT_EQ(string.view(), "short");
    EXPECT_EQ(static_cast<const void*>(string.data()), shared.data);
  }
  EXPECT_EQ(shared.view(), "short");
}

TEST(String, BorrowedMemoryIsNeitherWrittenNorFreed) {
  const std::string input = "borrowed";
  Arena arena;
  String string{};
  string.SetBorrowed(arena, input.data(), input.size());
  EXPECT_EQ(string.data(), input.data());
  string.Set(arena, "new");
  EXPECT_EQ(string.view(), "new");
  EXPECT_EQ(input, "borrowed");
}

TEST(String, RefusesSizesOver48Bits) {
  Arena arena;
  String string{};
  string.Set(arena, "kept");
  EXPECT_THROW(string.SetShared(arena, SharedBytes("", String::kMaxSize + 1, BufferRef())),
               ValueError);
  EXPECT_EQ(string.view(), "kept");
}

// ---------------------------------------------------------------------------------------------
// Fields

TEST(Message, StartsEmptyAndTellsWhatIsSet) {
  Owned<TensorProto> tensor;
  EXPECT_FALSE(tensor->has_name());
  EXPECT_EQ(tensor->name(), "");
  EXPECT_EQ(tensor->segment().begin(), 0);
  EXPECT_TRUE(tensor->dims().empty());
  tensor->set_name(tensor.arena(), "");
  EXPECT_TRUE(tensor->has_name());
  tensor->mutable_segment(tensor.arena());
  EXPECT_TRUE(tensor->has_segment());
  tensor->clear_name(tensor.arena());
  tensor->clear_segment(tensor.arena());
  EXPECT_EQ(tensor->presence, 0u);
}

TEST(Message, AOneofHoldsOneMember) {
  Owned<TypeProto> type;
  Arena& arena = type.arena();
  type->mutable_tensor_type(arena)->set_elem_type(arena, 7);
  type->mutable_map_type(arena)->set_key_type(arena, 3);
  EXPECT_FALSE(type->has_tensor_type());
  EXPECT_EQ(type->map_type().key_type(), 3);
  EXPECT_EQ(type->mutable_tensor_type(arena)->elem_type(), 0);
  EXPECT_FALSE(type->has_map_type());

  Owned<TensorShapeProto_Dimension> dim;
  dim->set_dim_param(dim.arena(), "N");
  dim->set_dim_value(dim.arena(), 5);
  EXPECT_FALSE(dim->has_dim_param());
  EXPECT_EQ(dim->dim_param(), "");
}

TEST(Message, ClearDropsAllPayloads) {
  const std::string text(5000, 'p');
  int released = 0;
  Owned<GraphProto> graph;
  Arena& arena = graph.arena();
  graph->add_initializer(arena)->set_raw_data(arena, Counted(text, released));
  AttributeProto* attribute = graph->add_node(arena)->add_attribute(arena);
  attribute->set_s(arena, Counted(text, released));
  attribute->mutable_g(arena)->set_doc_string(arena, Counted(text, released));
  Clear(arena, GraphProto::kInfo, *graph);
  EXPECT_EQ(released, 3);
  EXPECT_EQ(graph->presence, 0u);
  EXPECT_TRUE(graph->initializer().empty());
}

TEST(Message, ChangesInALoopStayBounded) {
  Owned<GraphProto> graph;
  Arena& arena = graph.arena();
  uint64_t after_half = 0;
  for (int i = 0; i < 20'000; ++i) {
    NodeProto* node = graph->add_node(arena);
    node->set_name(arena, std::string(static_cast<size_t>(i) % 2500, 'n'));
    AttributeProto* attribute = node->add_attribute(arena);
    for (int64_t j = 0; j < 20; ++j) {
      internal::Append(arena, attribute->mutable_ints(arena), j);
    }
    AppendUnknownFields(arena, *node, std::string("\x98\x06\x01", 3));
    if (graph->node().size() == 8) {
      EraseElements(arena, *GraphProto::kInfo.Find("node"), graph->mutable_node(arena), 0, 4);
    }
    if (i == 10'000) after_half = arena.bytes_reserved();
  }
  EXPECT_EQ(arena.bytes_reserved(), after_half);
}

TEST(Message, UnknownFieldsAreAppendedAndCleared) {
  Owned<NodeProto> node;
  AppendUnknownFields(node.arena(), *node, "one");
  AppendUnknownFields(node.arena(), *node, "");
  AppendUnknownFields(node.arena(), *node, "two");
  EXPECT_EQ(UnknownFields(*node), "onetwo");
  ClearUnknownFields(node.arena(), *node);
  EXPECT_EQ(UnknownFields(*node), "");
}

// ---------------------------------------------------------------------------------------------
// Lists

TEST(Lists, InsertAndErase) {
  Owned<NodeProto> node;
  Arena& arena = node.arena();
  auto& input = node->mutable_input(arena);
  for (const std::string_view name : {"a", "b", "c", "d"}) {
    internal::AppendString(arena, input, name);
  }
  InsertElements(arena, input, 1, 2, Kind::kString);
  EXPECT_EQ(input.elements()[1].size(), 0u);
  input.elements()[2].Set(arena, "new");
  EraseElements(arena, *NodeProto::kInfo.Find("input"), input, 3, 2);
  std::vector<std::string> names;
  for (const String& name : node->input()) names.emplace_back(name.view());
  EXPECT_EQ(names, (std::vector<std::string>{"a", "", "new", "d"}));
}

TEST(Lists, ElementsDoNotMoveWhenAListGrows) {
  Owned<GraphProto> graph;
  NodeProto* first = graph->add_node(graph.arena());
  first->set_name(graph.arena(), "first");
  for (int i = 0; i < 1000; ++i) graph->add_node(graph.arena());
  EXPECT_EQ(graph->node()[0], first);
  EXPECT_EQ(graph->node()[0]->name(), "first");
}

TEST(Lists, CapacitiesThatCannotBeAreRefused) {
  Owned<AttributeProto> attribute;
  auto& ints = attribute->mutable_ints(attribute.arena());
  EXPECT_THROW(Reserve(attribute.arena(), ints, uint64_t{1} << 61, 8), std::bad_alloc);
  internal::Append(attribute.arena(), ints, int64_t{1});
  EXPECT_EQ(attribute->ints().size(), 1u);
}

// ---------------------------------------------------------------------------------------------
// Detached messages and lists

TEST(Detached, AMessageWithAHandleIsKept) {
  Owned<GraphProto> graph;
  Arena& arena = graph.arena();
  NodeProto* kept = graph->add_node(arena);
  AttributeProto* child = kept->add_attribute(arena);
  AttributeProto* inner = graph->add_node(arena)->add_attribute(arena);
  int object = 0;
  kept->handle = &object;
  inner->handle = &object;
  kept->set_name(arena, "kept");
  inner->set_name(arena, "inner");
  graph->clear_node(arena);
  EXPECT_TRUE(graph->node().empty());
  EXPECT_EQ(kept->flags, Message::kDetached);
  EXPECT_EQ(inner->flags, Message::kDetached);   // its parent is gone
  EXPECT_EQ(child->flags, 0u);                   // its parent is not
  graph->add_node(arena)->add_attribute(arena);  // does not take their memory
  EXPECT_EQ(kept->name(), "kept");
  EXPECT_EQ(inner->name(), "inner");
  kept->handle = inner->handle = nullptr;
  FreeMessage(arena, NodeProto::kInfo, kept);
  FreeMessage(arena, AttributeProto::kInfo, inner);
}

TEST(Detached, AListWithAHandleIsKept) {
  const std::string text(5000, 'p');
  int released = 0, object = 0;
  Owned<AttributeProto> attribute;
  Arena& arena = attribute.arena();
  auto& strings = attribute->mutable_strings(arena);
  InsertElements(arena, strings, 0, 1, Kind::kBytes);
  strings.elements()[0].SetShared(arena, Counted(text, released));
  strings.handle = &object;
  attribute->clear_strings(arena);
  EXPECT_TRUE(strings.detached);
  EXPECT_TRUE(attribute->strings().empty());
  EXPECT_NE(&attribute->mutable_strings(arena), &strings);
  EXPECT_EQ(strings.span()[0].view(), text);
  FreeRepeated(arena, *AttributeProto::kInfo.Find("strings"), &strings);
  EXPECT_EQ(released, 1);
}

// ---------------------------------------------------------------------------------------------
// Depth

TEST(Depth, ATreeOfAMillionLevelsIsFreed) {
  Owned<TypeProto> type;
  Arena& arena = type.arena();
  TypeProto* level = &*type;
  for (int i = 0; i < 500'000; ++i) {
    level = level->mutable_sequence_type(arena)->mutable_elem_type(arena);
  }
  level->set_denotation(arena, "deepest");
  const uint64_t before = arena.bytes_reserved();
  type->clear_sequence_type(arena);
  EXPECT_FALSE(type->has_sequence_type());
  // All of it is used again.
  level = &*type;
  for (int i = 0; i < 400'000; ++i) {
    level = level->mutable_sequence_type(arena)->mutable_elem_type(arena);
  }
  EXPECT_EQ(arena.bytes_reserved(), before);
}

}  // namespace
}  // namespace onnx_light
