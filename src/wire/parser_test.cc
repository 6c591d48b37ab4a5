// Parsing. Inputs are put together by hand, field by field; the wire format's own description is
// the oracle. Comparison with protobuf is left to the Python tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/messages.h"
#include "onnx_light/serialization.h"

namespace onnx_light {
namespace {

// ---------------------------------------------------------------------------------------------
// Input

std::string Varint(uint64_t value, size_t least_size = 1) {
  std::string bytes;
  while (value >= 0x80 || bytes.size() + 1 < least_size) {
    bytes += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  return bytes + static_cast<char>(value);
}

std::string Tag(uint32_t number, WireType type) {
  return Varint(uint64_t{number} << 3 | static_cast<uint64_t>(type));
}

std::string Delimited(uint32_t number, std::string_view value) {
  return Tag(number, WireType::kLengthDelimited) + Varint(value.size()) + std::string(value);
}

std::string Integer(uint32_t number, uint64_t value) {
  return Tag(number, WireType::kVarint) + Varint(value);
}

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// `levels` groups of field 100 in each other.
std::string Groups(int levels) {
  std::string begin, end;
  for (int i = 0; i < levels; ++i) {
    begin += Tag(100, WireType::kStartGroup);
    end += Tag(100, WireType::kEndGroup);
  }
  return begin + end;
}

// `levels` messages in each other below a TypeProto: sequence_type (4), elem_type (1), ...
std::string Levels(int levels) {
  std::string bytes;
  for (int i = levels; i > 0; --i) bytes = Delimited(i % 2 == 1 ? 4 : 1, bytes);
  return bytes;
}

// The bytes in memory of exactly their size, so that the sanitizer sees a read beyond them.
template <typename M>
void ParseExact(Owned<M>& message, std::string_view bytes, const ParseOptions& options = {}) {
  const BufferRef buffer = [bytes] {
    auto* copy = new std::byte[bytes.size()];
    if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
    return BufferRef::Wrap(copy, bytes.size(), [copy] { delete[] copy; });
  }();
  Parse(message.arena(), M::kInfo, *message, {{buffer.data(), bytes.size()}, buffer}, options);
}

template <typename M>
std::string Code(std::string_view bytes, const ParseOptions& options = {}) {
  Owned<M> message;
  try {
    ParseExact(message, bytes, options);
  } catch (const ParseError& error) {
    EXPECT_LE(error.offset(), bytes.size());
    return error.code();
  }
  return "";
}

template <typename M>
std::string ErrorOf(std::string_view bytes) {
  Owned<M> message;
  try {
    ParseExact(message, bytes);
  } catch (const ParseError& error) {
    return error.path() + " at " + std::to_string(error.offset());
  }
  return "";
}

template <typename T>
std::vector<T> ToVector(std::span<const T> list) {
  return {list.begin(), list.end()};
}

// ---------------------------------------------------------------------------------------------
// Values

TEST(Reader, ReadsEveryKindOfField) {
  Owned<AttributeProto> attribute;
  ParseExact(attribute, Delimited(1, "name") + Tag(2, WireType::kFixed32) + Raw(1.5F) +
                            Integer(3, static_cast<uint64_t>(-7)) + Delimited(4, "bytes") +
                            Delimited(5, Integer(2, 1)) + Integer(20, 6) + Delimited(21, ""));
  EXPECT_EQ(attribute->name(), "name");
  EXPECT_EQ(attribute->f(), 1.5F);
  EXPECT_EQ(attribute->i(), -7);
  EXPECT_EQ(attribute->s(), "bytes");
  EXPECT_EQ(attribute->t().data_type(), 1);
  EXPECT_EQ(attribute->type(), AttributeProto::FLOATS);
  EXPECT_TRUE(attribute->has_ref_attr_name());
  EXPECT_FALSE(attribute->has_g());
  EXPECT_EQ(UnknownFields(*attribute), "");
}

TEST(Reader, LaterValuesReplaceMessagesMerge) {
  Owned<TensorProto> tensor;
  ParseExact(tensor, Integer(2, 1) + Delimited(8, "first") + Delimited(3, Integer(1, 5)) +
                         Integer(2, 2) + Delimited(8, "second") + Delimited(3, Integer(2, 6)));
  EXPECT_EQ(tensor->data_type(), 2);
  EXPECT_EQ(tensor->name(), "second");
  EXPECT_EQ(tensor->segment().begin(), 5);
  EXPECT_EQ(tensor->segment().end(), 6);
  ParseExact(tensor, Delimited(8, ""));  // into what is there
  EXPECT_EQ(tensor->name(), "");
  EXPECT_EQ(tensor->data_type(), 2);

  Owned<TypeProto> type;
  ParseExact(type, Delimited(1, Integer(1, 1)) + Delimited(4, "") + Delimited(5, Integer(1, 9)));
  EXPECT_FALSE(type->has_tensor_type());
  EXPECT_EQ(type->map_type().key_type(), 9);
}

TEST(Reader, Varints) {
  const auto read = [](const std::string& bytes) {
    Owned<AttributeProto> attribute;
    ParseExact(attribute, Tag(3, WireType::kVarint) + bytes);
    return attribute->i();
  };
  EXPECT_EQ(read(Varint(0)), 0);
  EXPECT_EQ(read(Varint(0, 10)), 0);
  EXPECT_EQ(read(Varint(300, 9)), 300);
  EXPECT_EQ(read(Varint((uint64_t{1} << 63) - 1)), std::numeric_limits<int64_t>::max());  // 9 bytes
  EXPECT_EQ(read(Varint(uint64_t{1} << 63)), std::numeric_limits<int64_t>::min());        // 10
  EXPECT_EQ(read(std::string(9, '\xff') + '\x7f'), -1);  // bits over 64 are dropped
  EXPECT_EQ(read(std::string(9, '\x80') + '\x02'), 0);
  const std::string tag = Tag(3, WireType::kVarint);
  EXPECT_EQ(Code<AttributeProto>(tag + std::string(10, '\x80') + '\0'), "wire.varint");
  EXPECT_EQ(Code<AttributeProto>(tag + std::string(10, '\xff')), "wire.varint");
  EXPECT_EQ(Code<AttributeProto>(tag + std::string(9, '\xff')), "wire.truncated");
  EXPECT_EQ(Code<AttributeProto>(tag), "wire.truncated");

  Owned<TensorProto> tensor;  // an int32 takes the low half
  ParseExact(tensor, Integer(2, 0x1234'5678'9abc'def0));
  EXPECT_EQ(static_cast<uint32_t>(tensor->data_type()), 0x9abcdef0u);
}

TEST(Reader, EnumValuesThatAreNotListedAreUnknownFields) {
  Owned<TensorProto> tensor;
  const std::string padded = Tag(14, WireType::kVarint) + Varint(9, 4);
  ParseExact(tensor, Integer(14, 1) + padded);
  EXPECT_EQ(tensor->data_location(), TensorProto::EXTERNAL);
  EXPECT_EQ(UnknownFields(*tensor), padded);
  ParseExact(tensor, Integer(14, uint64_t{1} << 32));  // cut to 32 bits before the look-up
  EXPECT_EQ(tensor->data_location(), TensorProto::DEFAULT);
  Owned<TensorProto> negative;
  ParseExact(negative, Integer(14, static_cast<uint64_t>(-1)));
  EXPECT_FALSE(negative->has_data_location());
}

TEST(Reader, NanBitsSurvive) {
  Owned<TensorProto> tensor;
  ParseExact(tensor, Delimited(4, Raw(uint32_t{0x7fa12345}) + Raw(uint32_t{0xffc00001})));
  ASSERT_EQ(tensor->float_data().size(), 2u);
  EXPECT_EQ(std::bit_cast<uint32_t>(tensor->float_data()[0]), 0x7fa12345u);
  EXPECT_EQ(std::bit_cast<uint32_t>(tensor->float_data()[1]), 0xffc00001u);
}

// ---------------------------------------------------------------------------------------------
// Lists

TEST(Reader, PackedAndUnpackedMix) {
  Owned<TensorProto> tensor;
  ParseExact(tensor, Integer(1, 1) + Integer(1, 2) + Delimited(1, Varint(3) + Varint(400)) +
                         Delimited(1, "") + Integer(1, 5) + Tag(4, WireType::kFixed32) + Raw(1.0F) +
                         Delimited(4, Raw(2.0F) + Raw(3.0F)));
  EXPECT_EQ(ToVector(tensor->dims()), (std::vector<int64_t>{1, 2, 3, 400, 5}));
  EXPECT_EQ(ToVector(tensor->float_data()), (std::vector<float>{1, 2, 3}));
}

// Varints of all lengths, some padded, at every distance from the end of the input.
TEST(Reader, PackedVarintsAgainstOneByOne) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    std::string packed;
    std::vector<int64_t> wide;
    std::vector<int32_t> narrow;
    std::vector<uint64_t> unsigned_wide;
    const size_t count = random() % 40;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t value = random() >> random() % 64;
      const bool padded = random() % 8 == 0;
      packed += Varint(value, padded ? 1 + random() % 10 : 1);
      wide.push_back(static_cast<int64_t>(value));
      narrow.push_back(static_cast<int32_t>(static_cast<uint32_t>(value)));
      unsigned_wide.push_back(value);
    }
    Owned<TensorProto> tensor;
    ParseExact(tensor, Delimited(5, packed) + Delimited(11, packed) + Delimited(7, packed));
    ASSERT_EQ(ToVector(tensor->int64_data()), wide);
    ASSERT_EQ(ToVector(tensor->int32_data()), narrow);
    ASSERT_EQ(ToVector(tensor->uint64_data()), unsigned_wide);
  }
}

TEST(Reader, PackedFieldsThatEndInsideAValueAreRefused) {
  EXPECT_EQ(Code<TensorProto>(Delimited(7, "\x01\x80")), "wire.truncated");
  EXPECT_EQ(Code<TensorProto>(Delimited(7, std::string(11, '\x80') + "\x01")), "wire.varint");
  EXPECT_EQ(Code<TensorProto>(Delimited(7, std::string(11, '\x80') + std::string(20, 1))),
            "wire.varint");
  EXPECT_EQ(Code<TensorProto>(Delimited(4, "12345")), "wire.truncated");
  EXPECT_EQ(Code<TensorProto>(Delimited(10, "1234567")), "wire.truncated");
  EXPECT_EQ(ErrorOf<ModelProto>(Delimited(7, Delimited(5, Delimited(7, "\x01\x80")))),
            "graph.initializer[0].int64_data at 7");
}

// ---------------------------------------------------------------------------------------------
// Strings and payloads

TEST(Reader, StringsOfAllLengthsInCopiedAndBorrowedMode) {
  std::mt19937 random(4);
  std::string bytes;
  std::vector<std::string> values;
  for (int i = 0; i < 3000; ++i) {
    const size_t size = i % 50 == 0 ? 4000 + random() % 200 : random() % 60;
    values.emplace_back(size, static_cast<char>('a' + i % 26));
    bytes += Delimited(1, values.back());
    if (i % 7 == 0) bytes += Delimited(6, std::string(random() % 600, 'd'));
  }
  for (const bool no_copy : {false, true}) {
    Owned<NodeProto> node;
    ParseOptions options;
    options.no_copy = no_copy;
    ParseExact(node, bytes, options);  // the input is gone but for what the arena keeps
    ASSERT_EQ(node->input().size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(node->input()[i].view(), values[i]);
  }
}

TEST(Reader, CopiedStringsCanBeChangedApart) {
  Owned<NodeProto> node;
  ParseExact(node, Delimited(1, "12345678") + Delimited(1, "abcdefgh") + Delimited(1, "!"));
  auto* input = node->mutable_input(node.arena()).elements();
  input[0].Set(node.arena(), "xxxxxxxx");
  input[1].Release(node.arena());
  Owned<NodeProto>& same = node;
  same->set_name(node.arena(), "new text");  // may take the place of the second
  EXPECT_EQ(input[0].view(), "xxxxxxxx");
  EXPECT_EQ(input[2].view(), "!");
  EXPECT_EQ(node->name(), "new text");
}

TEST(Reader, PayloadsPointIntoABorrowedInput) {
  const std::string bytes = Delimited(9, std::string(10'000, 'p')) + Delimited(8, "name");
  int released = 0;
  const auto parse = [&](bool no_copy) {
    auto tensor = std::make_unique<Owned<TensorProto>>();
    ParseOptions options;
    options.no_copy = no_copy;
    const BufferRef owner = BufferRef::Wrap(bytes.data(), bytes.size(), [&] { ++released; });
    Parse(tensor->arena(), TensorProto::kInfo, **tensor, {{owner.data(), bytes.size()}, owner},
          options);
    return tensor;
  };
  const auto inside = [&](std::string_view view) {
    return view.data() >= bytes.data() && view.data() < bytes.data() + bytes.size();
  };
  auto copied = parse(false);
  EXPECT_EQ(released, 1);
  EXPECT_FALSE(inside((*copied)->raw_data()));
  auto borrowed = parse(true);
  EXPECT_EQ(released, 1);
  EXPECT_TRUE(inside((*borrowed)->raw_data()));
  EXPECT_TRUE(inside((*borrowed)->name()));
  EXPECT_EQ((*borrowed)->raw_data(), (*copied)->raw_data());
  borrowed.reset();
  EXPECT_EQ(released, 2);
}

TEST(Reader, ThreadsCopyPayloadsEvenThoseThatAreReplaced) {
  const auto payload = [](char c) {
    std::string text(5'000'000, c);
    for (size_t i = 0; i < text.size(); i += 997) text[i] = static_cast<char>(i / 997);
    return text;
  };
  ParseOptions options;
  options.num_threads = 2;
  Owned<TensorProto> tensor;
  ParseExact(tensor, Delimited(9, payload('a')) + Delimited(9, payload('b')), options);
  EXPECT_TRUE(tensor->raw_data() == payload('b'));

  Owned<PagedCacheBlockProto> block;  // key is replaced by encoded_key
  ParseExact(block, Delimited(3, Delimited(9, payload('a'))) + Delimited(5, ""), options);
  EXPECT_TRUE(block->has_encoded_key());
}

TEST(Reader, PayloadsCanBeLeftOutOrLimited) {
  ParseOptions options;
  options.skip_raw_data = true;
  options.raw_data_threshold = 10;
  Owned<TensorProto> big, small;
  ParseExact(big, Delimited(9, "0123456789") + Delimited(8, "n"), options);
  EXPECT_FALSE(big->has_raw_data());
  EXPECT_EQ(big->name(), "n");
  ParseExact(small, Delimited(9, "012345678"), options);
  EXPECT_EQ(small->raw_data(), "012345678");

  ParseOptions limited;
  limited.max_tensor_size_bytes = 5;
  EXPECT_EQ(Code<TensorProto>(Delimited(9, "12345"), limited), "");
  EXPECT_EQ(Code<TensorProto>(Delimited(9, "123456"), limited), "wire.payload_limit");
}

// ---------------------------------------------------------------------------------------------
// Bad input

TEST(Reader, EveryPrefixIsReadWholeOrRefused) {
  // Where a field ends, a prefix is a message; everywhere else the message ends too soon.
  const std::vector<std::string> fields = {
      Delimited(1, Delimited(1, "in") + Delimited(5, Delimited(8, Raw(uint64_t{1})))),
      Delimited(2, "graph"),
      Delimited(5, Delimited(7, Varint(300) + Varint(1)) + Delimited(9, "raw")),
      Tag(100, WireType::kFixed64) + Raw(uint64_t{5}),
      Tag(100, WireType::kFixed32) + Raw(uint32_t{5}),
      Tag(100, WireType::kStartGroup) + Integer(1, 500) + Tag(100, WireType::kEndGroup),
      Integer(1u << 28, 1u << 30)};
  std::string bytes;
  std::vector<size_t> ends = {0};
  for (const std::string& field : fields) {
    bytes += field;
    ends.push_back(bytes.size());
  }
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const bool whole = std::find(ends.begin(), ends.end(), size) != ends.end();
    EXPECT_EQ(Code<GraphProto>(std::string_view(bytes).substr(0, size)),
              whole ? "" : "wire.truncated")
        << size;
  }
}

TEST(Reader, Tags) {
  const auto code = [](const std::string& tag) { return Code<StringStringEntryProto>(tag + '\1'); };
  EXPECT_EQ(code(Varint(100 << 3, 5)), "");                // padded
  EXPECT_EQ(code(Varint(100 << 3, 6)), "wire.tag");        // beyond 5 bytes
  EXPECT_EQ(code(Varint(0xfffffff8)), "");                 // the largest number
  EXPECT_EQ(code(Varint(uint64_t{1} << 32)), "wire.tag");  // over 32 bits
  EXPECT_EQ(code(Varint(0)), "wire.tag");                  // number 0
  EXPECT_EQ(code(Varint(6)), "wire.tag");
  EXPECT_EQ(code(Varint(100 << 3 | 6)), "wire.tag");  // no such wire type
  EXPECT_EQ(code(Varint(100 << 3 | 7)), "wire.tag");
  EXPECT_EQ(code(Varint(100 << 3 | 4)), "wire.group");  // a stray end of a group
  EXPECT_EQ(code(Varint(1 << 3 | 4)), "wire.group");    // of a known field, too

  Owned<StringStringEntryProto> entry;  // a known field with a padded tag
  ParseExact(entry, Varint(1 << 3 | 2, 5) + Varint(1, 5) + "k");
  EXPECT_EQ(entry->key(), "k");
}

TEST(Reader, Lengths) {
  const std::string tag = Tag(1, WireType::kLengthDelimited);
  EXPECT_EQ(Code<StringStringEntryProto>(tag + Varint(1, 5) + "k"), "");
  EXPECT_EQ(Code<StringStringEntryProto>(tag + Varint(1, 6) + "k"), "wire.length");
  for (const uint64_t length : {uint64_t{2}, uint64_t{1} << 31, uint64_t{1} << 32,
                                uint64_t{1} << 63, std::numeric_limits<uint64_t>::max()}) {
    EXPECT_EQ(Code<StringStringEntryProto>(tag + Varint(length) + "k"), "wire.truncated");
    EXPECT_EQ(Code<GraphProto>(tag + Varint(length) + "k"), "wire.truncated");
    EXPECT_EQ(Code<TensorProto>(Tag(7, WireType::kLengthDelimited) + Varint(length) + "\1"),
              "wire.truncated");
  }
  // A submessage ends where its parent does.
  EXPECT_EQ(ErrorOf<ModelProto>(Delimited(7, Delimited(1, "\x1a\x05") + "") + Integer(1, 1)),
            "graph.node[0].name at 5");
}

TEST(Reader, UnknownFieldsAreKeptAsTheyWere) {
  const std::vector<std::string> fields = {
      Integer(100, 5),
      Tag(1, WireType::kFixed32) + Raw(1.0F),  // a known number with another wire type
      Tag(100, WireType::kStartGroup) + Varint(0) + Varint(1) +  // number 0 passes inside a group
          Groups(2) + Tag(100, WireType::kEndGroup),
      Varint(101 << 3, 5) + Varint(3, 10), Delimited(100, "text")};
  std::string bytes, unknown;
  for (const std::string& field : fields) {
    bytes += field + Delimited(1, "key");
    unknown += field;
  }
  Owned<StringStringEntryProto> entry;
  ParseExact(entry, bytes);
  EXPECT_EQ(UnknownFields(*entry), unknown);
  EXPECT_EQ(entry->key(), "key");
}

TEST(Reader, GroupsEndWithTheirOwnNumber) {
  const std::string begin = Tag(100, WireType::kStartGroup);
  EXPECT_EQ(Code<NodeProto>(begin + Tag(101, WireType::kEndGroup)), "wire.group");
  EXPECT_EQ(Code<NodeProto>(begin + Integer(1, 1)), "wire.truncated");
  EXPECT_EQ(Code<NodeProto>(begin), "wire.truncated");
}

TEST(Reader, DepthCountsMessagesAndGroups) {
  EXPECT_EQ(Code<TypeProto>(Levels(100)), "");
  EXPECT_EQ(Code<TypeProto>(Levels(101)), "wire.depth");
  EXPECT_EQ(Code<NodeProto>(Groups(100)), "");
  EXPECT_EQ(Code<NodeProto>(Groups(101)), "wire.depth");
  EXPECT_EQ(Code<NodeProto>(Groups(1'000'000)), "wire.depth");
  EXPECT_EQ(Code<TypeProto>(Delimited(1, Groups(99))), "");
  EXPECT_EQ(Code<TypeProto>(Delimited(1, Groups(100))), "wire.depth");
  ParseOptions options;
  options.max_recursion_depth = 3;
  EXPECT_EQ(Code<TypeProto>(Levels(3), options), "");
  EXPECT_EQ(Code<TypeProto>(Levels(4), options), "wire.depth");
  options.max_recursion_depth = 0;
  EXPECT_EQ(Code<TypeProto>("", options), "");
  EXPECT_EQ(Code<TypeProto>(Delimited(1, ""), options), "wire.depth");
}

// Parsed lists are bare elements until they are changed. The numbers are around the size of a run.
TEST(Reader, ListsOfAnyLengthCanBeChangedAfterwards) {
  for (const uint64_t count : {1, 2, 7, 8191, 8192, 8193, 70'000}) {
    std::string input;
    for (uint64_t i = 0; i < count; ++i) input += Integer(8, i);  // ints
    for (uint64_t i = 0; i < count; ++i) input += Tag(7, WireType::kFixed32) + Raw<float>(1.5F);
    for (uint64_t i = 0; i < count; ++i) input += Delimited(9, std::to_string(i));  // strings
    Arena arena;
    auto& attribute = static_cast<AttributeProto&>(*NewMessage(arena, AttributeProto::kInfo));
    Parse(arena, AttributeProto::kInfo, attribute, {std::as_bytes(std::span(input)), {}});
    attribute.add_ints(arena, 77);
    attribute.add_floats(arena, 2.5F);
    attribute.add_strings(arena, "last");
    ASSERT_EQ(attribute.ints().size(), count + 1);
    ASSERT_EQ(attribute.floats().size(), count + 1);
    ASSERT_EQ(attribute.strings().size(), count + 1);
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(attribute.ints()[i], static_cast<int64_t>(i));
      ASSERT_EQ(attribute.floats()[i], 1.5F);
      ASSERT_EQ(attribute.strings()[i].view(), std::to_string(i));
    }
    EXPECT_EQ(attribute.ints().back(), 77);
    EXPECT_EQ(attribute.floats().back(), 2.5F);
    EXPECT_EQ(attribute.strings().back().view(), "last");
  }
}

// What is given back is used again: clearing and merging in a loop takes no more memory.
TEST(Reader, BareListsAreGivenBack) {
  std::string input;
  for (int i = 0; i < 3; ++i) input += Integer(8, 5) + Delimited(9, "text") + Delimited(10, "");
  input += Integer(8, 6) + Integer(8, 7) + Tag(7, WireType::kFixed32) + Raw<float>(1.5F);
  Arena arena;
  auto& attribute = static_cast<AttributeProto&>(*NewMessage(arena, AttributeProto::kInfo));
  AttributeProto& source = *static_cast<AttributeProto*>(NewMessage(arena, AttributeProto::kInfo));
  Parse(arena, AttributeProto::kInfo, source, {std::as_bytes(std::span(input)), {}});
  uint64_t after_half = 0;
  for (int i = 0; i < 2000; ++i) {
    Merge(arena, AttributeProto::kInfo, attribute, source);
    ASSERT_TRUE(Equal(AttributeProto::kInfo, attribute, source));
    Clear(arena, AttributeProto::kInfo, attribute);
    if (i == 1000) after_half = arena.bytes_reserved();
  }
  EXPECT_EQ(arena.bytes_reserved(), after_half);
  Clear(arena, AttributeProto::kInfo, source);
  Merge(arena, AttributeProto::kInfo, attribute, source);
  EXPECT_EQ(arena.bytes_reserved(), after_half);
}

TEST(Reader, ErrorsSayWhere) {
  const std::string node = Delimited(5, Delimited(1, "a")) + Delimited(5, Integer(3, 1) + "\x1b");
  EXPECT_EQ(ErrorOf<ModelProto>(Delimited(7, Delimited(1, "") + Delimited(1, node))),
            "graph.node[1].attribute[1] at 16");
}

// Anything may come in; the sanitizers watch.
TEST(Reader, RandomBytesAreReadOrRefused) {
  std::mt19937 random(5);
  const std::string model = Delimited(
      7, Delimited(1, Delimited(1, "x") + Delimited(5, Delimited(8, Varint(1) + Varint(1000)))) +
             Delimited(5, Delimited(4, Raw(1.0F)) + Delimited(9, std::string(300, 'r'))));
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = model;
    for (size_t changes = 1 + random() % 4; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(bytes.size() - random() % 3);
    ParseOptions options;
    options.no_copy = round % 2 == 0;
    if (!Code<ModelProto>(bytes, options).empty()) ++refused;
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 20'000);
}

}  // namespace
}  // namespace onnx_light
