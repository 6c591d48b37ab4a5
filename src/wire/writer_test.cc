// What a serializer's calls say about one message agrees, and reading gives the message back. That
// the bytes are protobuf's is left to the Python tests.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/messages.h"
#include "onnx_light/serialization.h"

namespace onnx_light {
namespace {

// Bytes on both sides of what is referred to instead of copied, in all kinds of places.
void Fill(Arena& arena, ModelProto& model, uint64_t size) {
  const std::string text(size, 't');
  GraphProto& graph = *model.mutable_graph(arena);
  for (int i = 0; i < 40; ++i) {
    NodeProto& node = *graph.add_node(arena);
    node.set_name(arena, "node" + std::to_string(i));
    node.add_input(arena, "");
    node.add_input(arena, text);
    AttributeProto& attribute = *node.add_attribute(arena);
    for (int64_t value : {int64_t{-1}, int64_t{1} << 40, int64_t{0}, int64_t{127}, int64_t{128}}) {
      attribute.add_ints(arena, value);
    }
    attribute.set_s(arena, text);
    attribute.set_type(arena, AttributeProto::INTS);
  }
  TensorProto& tensor = *graph.add_initializer(arena);
  for (uint64_t i = 0; i < size; ++i) {
    tensor.add_float_data(arena, static_cast<float>(i));
    tensor.add_int64_data(arena, static_cast<int64_t>(i * i * i));
    tensor.add_int32_data(arena, -static_cast<int32_t>(i));
  }
  tensor.set_raw_data(arena, text);
  // Field 15 of no tensor, as bytes.
  std::string unknown = "\x7a";
  for (uint64_t left = size;; left >>= 7) {
    unknown += static_cast<char>((left & 0x7f) | (left >= 0x80 ? 0x80 : 0));
    if (left < 0x80) break;
  }
  AppendUnknownFields(arena, tensor, unknown + text);
}

std::string Written(const Serializer& serializer) {
  std::string bytes(serializer.size(), '\0');
  serializer.WriteTo(reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

std::string Copied(const Serializer::Segments& segments, uint64_t size, int threads) {
  std::string bytes(size, '\0');
  segments.CopyTo(reinterpret_cast<std::byte*>(bytes.data()), threads);
  return bytes;
}

TEST(Serializer, ItsCallsAgree) {
  for (const uint64_t size : {0, 1, 100, 1023, 1024, 1025, 4095, 4096, 4097, 300'000}) {
    Owned<ModelProto> model;
    Fill(model.arena(), *model, size);
    const Serializer serializer(ModelProto::kInfo, *model);
    const std::string bytes = Written(serializer);
    const SerializeSizeResult sizes = MeasureSize(ModelProto::kInfo, *model);
    EXPECT_EQ(sizes.size(), bytes.size());
    EXPECT_EQ(sizes.proto_size, serializer.sizes().proto_size);
    EXPECT_EQ(sizes.big_data_size, serializer.sizes().big_data_size);
    EXPECT_EQ(sizes.small_data_size, serializer.sizes().small_data_size);
    EXPECT_EQ(sizes.big_data_size + sizes.small_data_size, size);
    EXPECT_EQ(serializer.shared_size(), size >= String::kPayloadSize ? 81 * size : 0);
    const Serializer::Segments segments = serializer.Gather();
    EXPECT_EQ(Copied(segments, bytes.size(), 2), bytes);
    Owned<ModelProto> again;
    Parse(again.arena(), ModelProto::kInfo, *again, {std::as_bytes(std::span(bytes)), {}});
    EXPECT_EQ(FirstDifference(ModelProto::kInfo, *model, *again), std::nullopt);
    EXPECT_EQ(Written(Serializer(ModelProto::kInfo, *again)), bytes);
    // What was gathered does not depend on the message.
    Clear(model.arena(), ModelProto::kInfo, *model);
    model->set_producer_name(model.arena(), std::string(5000, 'x'));
    EXPECT_EQ(Copied(segments, bytes.size(), 1), bytes);
  }
}

// Pieces of the output end before and inside all kinds of values, and where many messages end.
TEST(Serializer, PiecesEndAnywhere) {
  for (uint64_t size = 0; size <= 200; ++size) {
    Owned<GraphProto> root;
    Arena& arena = root.arena();
    GraphProto* graph = &*root;
    for (int level = 0; level < 30; ++level) {
      graph->set_name(arena, std::string(size, 'g'));
      NodeProto& node = *graph->add_node(arena);
      for (uint64_t i = 0; i < size % 23; ++i) node.add_input(arena, std::string(i, 'i'));
      AttributeProto& attribute = *node.add_attribute(arena);
      for (uint64_t bits = 0; bits < 64; bits += 1 + size % 7) {
        attribute.add_ints(arena, static_cast<int64_t>(uint64_t{1} << bits));
        attribute.add_floats(arena, static_cast<float>(bits));
      }
      graph = attribute.mutable_g(arena);
    }
    const std::string bytes = Written(Serializer(GraphProto::kInfo, *root));
    EXPECT_EQ(MeasureSize(GraphProto::kInfo, *root).size(), bytes.size());
    Owned<GraphProto> again;
    Parse(again.arena(), GraphProto::kInfo, *again, {std::as_bytes(std::span(bytes)), {}});
    EXPECT_EQ(FirstDifference(GraphProto::kInfo, *root, *again), std::nullopt);
  }
}

// Lists that are there and empty: of every packed kind, by parsing a length of zero, and emptied.
TEST(Serializer, EmptyListsTakeNothing) {
  Owned<TensorProto> tensor;
  const std::string lists("\x0a\0\x22\0\x2a\0\x3a\0\x52\0\x5a\0", 12);
  Parse(tensor.arena(), TensorProto::kInfo, *tensor, {std::as_bytes(std::span(lists)), {}});
  EXPECT_EQ(Written(Serializer(TensorProto::kInfo, *tensor)), "");
  EXPECT_EQ(MeasureSize(TensorProto::kInfo, *tensor).size(), 0u);
  for (const FieldInfo& field : TensorProto::kInfo.fields) {
    if (field.repeated) MutableRepeated(tensor.arena(), *tensor, field);
  }
  EXPECT_EQ(Written(Serializer(TensorProto::kInfo, *tensor)), "");
}

TEST(Serializer, RefusesWhatIsOverTheLimit) {
  Owned<ModelProto> model;
  Fill(model.arena(), *model, 5000);
  SerializeOptions options;
  options.max_serialized_size_bytes = MeasureSize(ModelProto::kInfo, *model).size();
  EXPECT_NO_THROW(Serializer(ModelProto::kInfo, *model, options));
  --options.max_serialized_size_bytes;
  EXPECT_THROW(Serializer(ModelProto::kInfo, *model, options), ValueError);
  EXPECT_THROW(MeasureSize(ModelProto::kInfo, *model, options), ValueError);
}

TEST(Serializer, AnEmptyMessageTakesNothing) {
  Owned<ModelProto> model;
  const Serializer serializer(ModelProto::kInfo, *model);
  EXPECT_EQ(serializer.size(), 0u);
  EXPECT_EQ(Written(serializer), "");
  EXPECT_TRUE(serializer.Gather().runs().empty());
}

}  // namespace
}  // namespace onnx_light
