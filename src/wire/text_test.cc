// The expected texts are those that protobuf's Python package prints.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/messages.h"

namespace onnx_light {
namespace {

template <typename M>
std::string Text(const M& message) {
  return ToText(M::kInfo, message);
}

std::string FloatText(float value) {
  Owned<AttributeProto> attribute;
  attribute->set_f(attribute.arena(), value);
  return Text(*attribute);
}

std::string DoubleText(double value) {
  Owned<TensorProto> tensor;
  internal::Append(tensor.arena(), tensor->mutable_double_data(tensor.arena()), value);
  return Text(*tensor);
}

TEST(ToText, PrintsFieldsInTheOrderOfTheirNumbers) {
  Owned<AttributeProto> attribute;
  Arena& arena = attribute.arena();
  EXPECT_EQ(Text(*attribute), "");
  attribute->set_ref_attr_name(arena, "r");  // declared second, number 21
  attribute->set_type(arena, AttributeProto::FLOAT);
  attribute->set_i(arena, -5);
  attribute->set_name(arena, "n");
  internal::Append(arena, attribute->mutable_ints(arena), std::numeric_limits<int64_t>::min());
  internal::Append(arena, attribute->mutable_ints(arena), int64_t{0});
  attribute->mutable_strings(arena);
  EXPECT_EQ(Text(*attribute),
            "name: \"n\"\ni: -5\nints: -9223372036854775808\nints: 0\ntype: FLOAT\n"
            "ref_attr_name: \"r\"\n");
}

TEST(ToText, IndentsMessages) {
  Owned<GraphProto> graph;
  Arena& arena = graph.arena();
  graph->add_node(arena)->add_attribute(arena)->mutable_t(arena);
  graph->add_node(arena);
  graph->set_name(arena, "g");
  AppendUnknownFields(arena, *graph, "\xa0\x06\x01");
  EXPECT_EQ(Text(*graph),
            "node {\n  attribute {\n    t {\n    }\n  }\n}\nnode {\n}\nname: \"g\"\n");
}

TEST(ToText, PrintsEnumsByNameAndOthersByNumber) {
  Owned<TensorProto> tensor;
  tensor->set_data_type(tensor.arena(), TensorProto::FLOAT);  // an int32 field
  tensor->set_data_location(tensor.arena(), TensorProto::EXTERNAL);
  EXPECT_EQ(Text(*tensor), "data_type: 1\ndata_location: EXTERNAL\n");
  tensor->set_data_location(tensor.arena(), static_cast<TensorProto::DataLocation>(77));
  EXPECT_EQ(Text(*tensor), "data_type: 1\ndata_location: 77\n");
}

TEST(ToText, PrintsTheShorterOfTwoPrecisions) {
  EXPECT_EQ(FloatText(1.5F), "f: 1.5\n");
  EXPECT_EQ(FloatText(0.1F), "f: 0.1\n");
  EXPECT_EQ(FloatText(-0.0F), "f: -0\n");
  EXPECT_EQ(FloatText(1e-45F), "f: 1.4013e-45\n");
  EXPECT_EQ(FloatText(std::numeric_limits<float>::max()), "f: 3.40282347e+38\n");
  EXPECT_EQ(FloatText(16777216.0F), "f: 16777216\n");
  EXPECT_EQ(FloatText(1e6F), "f: 1e+06\n");
  EXPECT_EQ(FloatText(100000.0F), "f: 100000\n");
  EXPECT_EQ(FloatText(1e-5F), "f: 1e-05\n");
  EXPECT_EQ(FloatText(std::numeric_limits<float>::infinity()), "f: inf\n");
  EXPECT_EQ(FloatText(-std::numeric_limits<float>::infinity()), "f: -inf\n");
  EXPECT_EQ(FloatText(-std::numeric_limits<float>::quiet_NaN()), "f: nan\n");

  EXPECT_EQ(DoubleText(0.1), "double_data: 0.1\n");
  EXPECT_EQ(DoubleText(1.0 / 3), "double_data: 0.33333333333333331\n");
  EXPECT_EQ(DoubleText(5e-324), "double_data: 4.94065645841247e-324\n");
  EXPECT_EQ(DoubleText(std::numeric_limits<double>::max()),
            "double_data: 1.7976931348623157e+308\n");
  EXPECT_EQ(DoubleText(9007199254740992.0), "double_data: 9007199254740992\n");
  EXPECT_EQ(DoubleText(1e15), "double_data: 1e+15\n");
}

TEST(ToText, EscapesBytes) {
  Owned<AttributeProto> attribute;
  attribute->set_s(attribute.arena(), std::string_view("\0\x01\t\n\r\"'\\ ~\x7f\x80\xc3\xa9", 14));
  EXPECT_EQ(Text(*attribute), R"(s: "\000\001\t\n\r\"\'\\ ~\177\200\303\251")"
                              "\n");
}

TEST(ToText, KeepsValidUtf8InStrings) {
  const auto text = [](std::string_view value) {
    Owned<AttributeProto> attribute;
    attribute->set_name(attribute.arena(), value);
    return Text(*attribute);
  };
  EXPECT_EQ(text("é漢𝄞\x7f\t\x01"), "name: \"é漢𝄞\\177\\t\\001\"\n");
  EXPECT_EQ(text("\xc3\xa9\xff\xc3\xa9"), "name: \"é\\377é\"\n");
  EXPECT_EQ(text("\xc3"), "name: \"\\303\"\n");                             // cut short
  EXPECT_EQ(text("a\xe6\xbcZ"), "name: \"a\\346\\274Z\"\n");                // cut short
  EXPECT_EQ(text("\xc0\x80"), "name: \"\\300\\200\"\n");                    // overlong
  EXPECT_EQ(text("\xe0\x80\x80"), "name: \"\\340\\200\\200\"\n");           // overlong
  EXPECT_EQ(text("\xed\xa0\x80"), "name: \"\\355\\240\\200\"\n");           // a surrogate
  EXPECT_EQ(text("\xf4\x90\x80\x80"), "name: \"\\364\\220\\200\\200\"\n");  // over U+10FFFF
}

TEST(ToText, RefusesTreesThatAreTooDeep) {
  Owned<TypeProto> deep;
  TypeProto* level = &*deep;
  for (int i = 0; i < kMaxDepth / 2; ++i) {
    level = level->mutable_sequence_type(deep.arena())->mutable_elem_type(deep.arena());
  }
  const std::string text = Text(*deep);
  EXPECT_EQ(text.substr(text.size() - 6), "  }\n}\n");
  level->mutable_sequence_type(deep.arena());
  EXPECT_THROW(Text(*deep), ValueError);
}

}  // namespace
}  // namespace onnx_light
