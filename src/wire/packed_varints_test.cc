// Runs of varints of all lengths, at all places relative to the blocks that are decoded at once.
#include "wire/packed_varints.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "wire/varint.h"

namespace onnx_light {
namespace {

// A varint written by the definition: seven bits a byte, padded with empty groups to `size` bytes.
void Append(std::vector<uint8_t>& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) {
    const uint64_t group = i == 9 ? value >> 63 : value >> (7 * i) & 0x7f;
    bytes.push_back(static_cast<uint8_t>(group | (i + 1 < size ? 0x80 : 0)));
  }
}

template <typename T>
void ExpectDecoded(const std::vector<uint8_t>& bytes, const std::vector<uint64_t>& values) {
  const uint8_t* const begin = bytes.data();
  const uint8_t* const end = begin + bytes.size();
  ASSERT_EQ(CountVarints(begin, end), values.size());
  const auto decoded = std::make_unique<T[]>(values.size() + 1);
  EXPECT_EQ(DecodeVarints(begin, end, decoded.get(), decoded.get() + values.size()), end);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(decoded[i], static_cast<T>(values[i])) << i;
  }
}

TEST(PackedVarints, DecodesRunsOfAnyLengths) {
  std::mt19937_64 random(7);
  for (int most = 1; most <= 64; most += 3) {
    for (int round = 0; round < 20; ++round) {
      std::vector<uint8_t> bytes;
      std::vector<uint64_t> values;
      for (int i = static_cast<int>(random() % 400); i > 0; --i) {
        values.push_back(random() >> (64 - 1 - random() % static_cast<uint64_t>(most)));
        const int needed = VarintSize(values.back());
        const bool padded = random() % 8 == 0;
        Append(bytes, values.back(),
               padded ? needed + static_cast<int>(random() % (11 - needed)) : needed);
      }
      ExpectDecoded<uint64_t>(bytes, values);
      ExpectDecoded<uint32_t>(bytes, values);
      ExpectDecoded<bool>(bytes, values);
    }
  }
}

TEST(PackedVarints, StopsAtABadVarintWhereverItIs) {
  for (int before = 0; before < 200; ++before) {
    for (const int bad : {10, 11, 80, 200}) {
      std::vector<uint8_t> bytes(static_cast<size_t>(before), 1);
      bytes.insert(bytes.end(), static_cast<size_t>(bad), 0xff);
      const bool ends = bad != 10;  // too long, or cut off
      if (ends) bytes.insert(bytes.end(), 100, 1);
      std::vector<uint64_t> decoded(bytes.size());
      const uint8_t* stop = DecodeVarints(bytes.data(), bytes.data() + bytes.size(), decoded.data(),
                                          decoded.data() + decoded.size());
      ASSERT_EQ(stop - bytes.data(), before);
    }
  }
}

TEST(PackedVarints, NeverWritesBeyondItsRoom) {
  const std::vector<uint8_t> bytes(500, 3);
  for (size_t room = 0; room <= bytes.size(); ++room) {
    std::vector<uint32_t> decoded(room);  // the sanitizer watches its end
    const uint8_t* stop = DecodeVarints(bytes.data(), bytes.data() + bytes.size(), decoded.data(),
                                        decoded.data() + room);
    ASSERT_EQ(static_cast<size_t>(stop - bytes.data()), room);
    for (const uint32_t value : decoded) ASSERT_EQ(value, 3u);
  }
}

}  // namespace
}  // namespace onnx_light
