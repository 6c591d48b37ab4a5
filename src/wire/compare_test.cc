#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/messages.h"

namespace onnx_light {
namespace {

template <typename M>
std::optional<std::string> Difference(const M& a, const M& b) {
  const std::optional<std::string> path = FirstDifference(M::kInfo, a, b);
  EXPECT_EQ(Equal(M::kInfo, a, b), !path);
  EXPECT_EQ(FirstDifference(M::kInfo, b, a), path);
  return path;
}

std::optional<std::string> UnknownDifference(std::string_view a, std::string_view b) {
  Owned<NodeProto> first, second;
  AppendUnknownFields(first.arena(), *first, a);
  AppendUnknownFields(second.arena(), *second, b);
  return Difference(*first, *second);
}

TEST(Compare, EqualMessagesHaveNoDifference) {
  Owned<GraphProto> a, b;
  EXPECT_EQ(Difference(*a, *b), std::nullopt);
  for (Owned<GraphProto>* graph : {&a, &b}) {
    Arena& arena = graph->arena();
    AttributeProto* attribute = (*graph)->add_node(arena)->add_attribute(arena);
    attribute->set_name(arena, "alpha");
    attribute->set_type(arena, AttributeProto::INT);
    internal::Append(arena, attribute->mutable_floats(arena), 1.5F);
    attribute->mutable_t(arena)->set_raw_data(arena, std::string(5000, 'x'));
  }
  EXPECT_EQ(Difference(*a, *b), std::nullopt);
  EXPECT_EQ(Difference(*static_cast<const GraphProto*>(EmptyMessage()), *Owned<GraphProto>()),
            std::nullopt);
}

TEST(Compare, SaysWhereTheFirstDifferenceIs) {
  Owned<ModelProto> a, b;
  for (Owned<ModelProto>* model : {&a, &b}) {
    Arena& arena = model->arena();
    GraphProto* graph = (*model)->mutable_graph(arena);
    for (int i = 0; i < 4; ++i) graph->add_node(arena);
    AttributeProto* attribute = graph->node()[3]->add_attribute(arena);
    for (int64_t i = 0; i < 4; ++i) {
      internal::Append(arena, attribute->mutable_ints(arena), i == 2 && model == &a ? 7 : i);
    }
    (*model)->set_model_version(arena, 1);
  }
  EXPECT_EQ(Difference(*a, *b), "graph.node[3].attribute[0].ints[2]");
  a->mutable_graph(a.arena())->node()[1]->set_name(a.arena(), "n");
  EXPECT_EQ(Difference(*a, *b), "graph.node[1].name");
  b->set_model_version(b.arena(), 2);  // number 5, before graph
  EXPECT_EQ(Difference(*a, *b), "model_version");
}

TEST(Compare, AShorterListDiffersWhereItEnds) {
  Owned<NodeProto> a, b;
  for (const std::string_view name : {"x", "y"}) {
    internal::AppendString(a.arena(), a->mutable_input(a.arena()), name);
  }
  EXPECT_EQ(Difference(*a, *b), "input[0]");
  internal::AppendString(b.arena(), b->mutable_input(b.arena()), "x");
  EXPECT_EQ(Difference(*a, *b), "input[1]");
  a->add_attribute(a.arena());
  internal::AppendString(b.arena(), b->mutable_input(b.arena()), "y");
  EXPECT_EQ(Difference(*a, *b), "attribute[0]");
}

TEST(Compare, PresenceCountsButAnEmptyListIsAbsent) {
  Owned<AttributeProto> a, b;
  a->mutable_ints(a.arena());
  a->mutable_strings(a.arena());
  a->mutable_tensors(a.arena());
  EXPECT_EQ(Difference(*a, *b), std::nullopt);
  a->set_i(a.arena(), 0);
  EXPECT_EQ(Difference(*a, *b), "i");
  b->set_i(b.arena(), 0);
  a->set_s(a.arena(), "");
  EXPECT_EQ(Difference(*a, *b), "s");
  b->set_s(b.arena(), "");
  b->mutable_t(b.arena());
  EXPECT_EQ(Difference(*a, *b), "t");
}

TEST(Compare, FloatsCompareAsNumbers) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Owned<AttributeProto> a, b;
  a->set_f(a.arena(), 0.0F);
  b->set_f(b.arena(), -0.0F);
  for (Owned<AttributeProto>* attribute : {&a, &b}) {
    internal::Append(attribute->arena(), (*attribute)->mutable_floats(attribute->arena()),
                     attribute == &a ? 0.0F : -0.0F);
  }
  EXPECT_EQ(Difference(*a, *b), std::nullopt);
  internal::Append(a.arena(), a->mutable_floats(a.arena()), kNan);
  EXPECT_EQ(Difference(*a, *a), "floats[1]");
  a->set_f(a.arena(), kNan);
  EXPECT_EQ(Difference(*a, *a), "f");

  Owned<TensorProto> tensor;
  internal::Append(tensor.arena(), tensor->mutable_double_data(tensor.arena()), double{kNan});
  EXPECT_EQ(Difference(*tensor, *tensor), "double_data[0]");
}

// Field 100: a varint, 32 bits, bytes, a group; field 101 in the same way. Tags are (100 << 3) | w
// and (101 << 3) | w as varints.
constexpr std::string_view kOne100("\xa0\x06\x01"), kTwo100("\xa0\x06\x02");
constexpr std::string_view kOne101("\xa8\x06\x01");
constexpr std::string_view kText100("\xa2\x06\x01x"), kFixed101("\xad\x06zzzz");
constexpr std::string_view kBegin100("\xa3\x06"), kEnd100("\xa4\x06");

std::string Join(std::initializer_list<std::string_view> parts) {
  std::string joined;
  for (const std::string_view part : parts) joined += part;
  return joined;
}

TEST(CompareUnknown, NumbersMayComeInAnyOrderValuesOfOneNumberNot) {
  EXPECT_EQ(UnknownDifference(kOne100, kOne100), std::nullopt);
  EXPECT_EQ(
      UnknownDifference(Join({kOne100, kTwo100, kFixed101}), Join({kFixed101, kOne100, kTwo100})),
      std::nullopt);
  EXPECT_EQ(
      UnknownDifference(Join({kOne100, kFixed101, kTwo100}), Join({kOne100, kTwo100, kFixed101})),
      std::nullopt);
  EXPECT_EQ(UnknownDifference(Join({kOne100, kTwo100}), Join({kTwo100, kOne100})),
            "(unknown fields)");
  EXPECT_EQ(UnknownDifference(Join({kOne100, kText100}), Join({kText100, kOne100})),
            "(unknown fields)");
}

TEST(CompareUnknown, ValuesAndNumbersAndWireTypesCount) {
  EXPECT_EQ(UnknownDifference(kOne100, ""), "(unknown fields)");
  EXPECT_EQ(UnknownDifference(kOne100, kTwo100), "(unknown fields)");
  EXPECT_EQ(UnknownDifference(kOne100, kOne101), "(unknown fields)");
  EXPECT_EQ(UnknownDifference(kOne100, kText100), "(unknown fields)");
  EXPECT_EQ(UnknownDifference(kOne100, Join({kOne100, kOne100})), "(unknown fields)");
}

TEST(CompareUnknown, PaddingDoesNotCount) {
  EXPECT_EQ(UnknownDifference(kOne100, std::string_view("\xa0\x86\x00\x81\x80\x00", 6)),
            std::nullopt);
  EXPECT_EQ(UnknownDifference(kText100, std::string_view("\xa2\x06\x81\x00x", 5)), std::nullopt);
}

TEST(CompareUnknown, GroupsFollowTheSameRules) {
  const auto group = [](std::string_view inside) { return Join({kBegin100, inside, kEnd100}); };
  EXPECT_EQ(UnknownDifference(group(Join({kOne100, kOne101})), group(Join({kOne101, kOne100}))),
            std::nullopt);
  EXPECT_EQ(UnknownDifference(group(group(Join({kOne100, kOne101}))),
                              group(group(Join({kOne101, kOne100})))),
            std::nullopt);
  EXPECT_EQ(UnknownDifference(group(kOne100), group(kTwo100)), "(unknown fields)");
  EXPECT_EQ(UnknownDifference(group(""), group(group(""))), "(unknown fields)");
  EXPECT_EQ(UnknownDifference(Join({group(kOne100), kOne101}), group(Join({kOne100, kOne101}))),
            "(unknown fields)");
}

TEST(CompareUnknown, BytesThatAreNoFieldsDifferFromAllOthers) {
  for (const std::string_view bad : {"\xa0", "\xa2\x06\x05x", "\xa3\x06", "\xa4\x06", "\xad\x06z",
                                     "\xa7\x06", "\xa3\x06\xac\x06"}) {
    EXPECT_EQ(UnknownDifference(bad, bad), std::nullopt);
    EXPECT_EQ(UnknownDifference(bad, kOne100), "(unknown fields)");
  }
}

TEST(Compare, RefusesTreesThatAreTooDeep) {
  Owned<TypeProto> deep, flat;
  TypeProto* level = &*deep;
  for (int i = 0; i < kMaxDepth / 2; ++i) {
    level = level->mutable_sequence_type(deep.arena())->mutable_elem_type(deep.arena());
  }
  EXPECT_TRUE(Equal(TypeProto::kInfo, *deep, *deep));
  level->mutable_sequence_type(deep.arena());
  EXPECT_THROW(Equal(TypeProto::kInfo, *deep, *flat), ValueError);
  EXPECT_THROW(FirstDifference(TypeProto::kInfo, *flat, *deep), ValueError);

  const auto nested = [](int levels, std::string_view inside) {
    std::string text;
    for (int i = 0; i < levels; ++i) text += kBegin100;
    text += inside;
    for (int i = 0; i < levels; ++i) text += kEnd100;
    return text;
  };
  const std::string one = Join({kOne100, kOne101}), other = Join({kOne101, kOne100});
  EXPECT_EQ(UnknownDifference(nested(kMaxDepth, one), nested(kMaxDepth, other)), std::nullopt);
  for (const int levels : {kMaxDepth + 1, 500'000}) {
    Owned<NodeProto> a, b;
    AppendUnknownFields(a.arena(), *a, nested(levels, one));
    AppendUnknownFields(b.arena(), *b, nested(levels, other));
    EXPECT_THROW(Equal(NodeProto::kInfo, *a, *b), ValueError);
  }
}

}  // namespace
}  // namespace onnx_light
