#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace onnx_light {
namespace {

struct Vector {
  size_t size;
  uint64_t checksum;
};

// From the Python package xxhash 4.1.0 (XXH3 of xxHash 0.8.4), xxh3_64_intdigest(data, seed=0) of
// Input(size). The sizes lie on both sides of every change of method inside XXH3.
constexpr Vector kVectors[] = {
    {0, 0x2d06800538d394c2},     {1, 0x4c5cca45d0f4811f},      {3, 0x6e3e2670e61106ac},
    {4, 0x5c4c63133443d03f},     {8, 0xf9fd4dd0b04d78f5},      {9, 0x7c20df9712c26edf},
    {16, 0x86abf6baccea0858},    {17, 0xb58bf5dc5022d071},     {128, 0x10d17f72c0ccba41},
    {129, 0x1648bdc3db49d1a2},   {240, 0xb6cfaf343fab81e6},    {241, 0x956cae592c67279e},
    {256, 0xb15e550733c5dfac},   {512, 0xa0e9790eb93990d7},    {1023, 0xa94ffcd2254368e4},
    {1024, 0x70bd377d9574f4bb},  {1025, 0x66c4487c41e127a7},   {4096, 0x9ddd66c14af0daff},
    {65536, 0x04404b28125b4786}, {100003, 0xd0a8e7c7a03ad008},
};

std::vector<std::byte> Input(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + 7) & 255);
  return bytes;
}

TEST(Checksum, AgreesWithXxhash) {
  for (const auto& [size, checksum] : kVectors) EXPECT_EQ(Checksum(Input(size)), checksum) << size;
}

TEST(Checksum, DoesNotDependOnTheAddress) {
  const std::vector<std::byte> input = Input(1025);
  std::vector<std::byte> moved(input.size() + 64);
  for (size_t shift = 0; shift < 64; ++shift) {
    std::copy(input.begin(), input.end(), moved.begin() + static_cast<ptrdiff_t>(shift));
    EXPECT_EQ(Checksum(std::span(moved).subspan(shift, input.size())), 0x66c4487c41e127a7);
  }
}

TEST(StreamingChecksum, AgreesHoweverThePiecesAreCut) {
  for (const auto& [size, checksum] : kVectors) {
    const std::vector<std::byte> input = Input(size);
    for (size_t piece : {size_t{1}, size_t{7}, size_t{64}, size_t{255}, size_t{1000}}) {
      StreamingChecksum stream;
      for (size_t at = 0; at < size; at += piece) {
        stream.Update(std::span(input).subspan(at, std::min(piece, size - at)));
      }
      EXPECT_EQ(stream.Digest(), checksum) << size << " bytes in pieces of " << piece;
    }
  }
}

TEST(StreamingChecksum, DigestMayBeTakenOnTheWay) {
  const std::vector<std::byte> input = Input(4096);
  StreamingChecksum stream;
  stream.Update(std::span(input).first(1024));
  EXPECT_EQ(stream.Digest(), 0x70bd377d9574f4bb);
  stream.Update({});
  stream.Update(std::span(input).subspan(1024));
  EXPECT_EQ(stream.Digest(), 0x9ddd66c14af0daff);
  StreamingChecksum moved = std::move(stream);
  EXPECT_EQ(moved.Digest(), 0x9ddd66c14af0daff);
  moved.Reset();
  EXPECT_EQ(moved.Digest(), 0x2d06800538d394c2);
}

}  // namespace
}  // namespace onnx_light
