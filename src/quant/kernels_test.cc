#include "quant/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/convert.h"

namespace onnx_light {
namespace {

std::vector<Isa> OtherIsas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= WidestIsa()) isas.push_back(isa);
  }
  return isas;
}

std::vector<float> Random(size_t count, std::mt19937& random, double scale = 1) {
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

TEST(QuantKernels, EncodeRoundsHalfToEvenAndSaturates) {
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    std::array<float, 16> row{0.5f,  1.5f,   2.5f,    -0.5f, -1.5f,    -2.5f,     126.5f, 127.5f,
                              1e30f, -1e30f, -128.5f, 3,     INFINITY, -INFINITY, NAN,    -0.0f};
    std::array<float, 16> divisor, least, most, zero_point{};
    divisor.fill(1);
    divisor[11] = INFINITY;
    least.fill(-128);
    most.fill(127);
    std::array<uint8_t, 16> codes{};
    const CodeParameters parameters{divisor.data(), least.data(), most.data(), zero_point.data(),
                                    false};
    QuantKernelsFor(isa).encode_rows({row.data(), 16, 1, 16}, parameters, codes.data());
    const int expected[] = {0, 2, 2, 0, -2, -2, 126, 127, 127, -128, -128, 0, 127, -128, -128, 0};
    for (int i = 0; i < 16; ++i) EXPECT_EQ(static_cast<int8_t>(codes[i]), expected[i]) << i;
  }
}

// Codes of numbers close to the middle between two levels, and of scales of any size: a product
// with a reciprocal must not show.
TEST(QuantKernels, CodesAreThoseOfQuotients) {
  std::mt19937 random(11);
  constexpr int64_t kTokens = 64, kRowWidth = 48;
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    for (const bool per_token : {false, true}) {
      for (const float size : {1.0f, 1e-3f, 1e38f, 1e-39f, -7.0f}) {
        std::vector<float> divisor = Random(kTokens, random, 0.3);
        for (float& scale : divisor) scale = size * std::exp(scale);
        const std::vector<float> least(kTokens, -100), most(kTokens, 155), zero_point(kTokens, 100);
        const auto scale_of = [&](int64_t i) {
          return divisor[per_token ? i / kRowWidth : i % kRowWidth];
        };
        std::vector<float> rows(kTokens * kRowWidth);
        std::vector<uint8_t> expected(rows.size()), actual(rows.size());
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto level = static_cast<float>(static_cast<int>(random() % 300) - 120);
          rows[i] = (level + 0.5f) * scale_of(i);
          const int steps = static_cast<int>(random() % 9) - 4;
          for (int k = 0; k < std::abs(steps); ++k) {
            rows[i] = std::nextafter(rows[i], steps < 0 ? -INFINITY : INFINITY);
          }
          if (!std::isfinite(rows[i])) rows[i] = 0;
          const float quotient = rows[i] / scale_of(i);
          expected[i] =
              static_cast<uint8_t>(std::nearbyint(std::clamp(quotient, -100.0f, 155.0f)) + 100);
        }
        QuantKernelsFor(isa).encode_rows(
            {rows.data(), kRowWidth, kTokens, kRowWidth},
            {divisor.data(), least.data(), most.data(), zero_point.data(), per_token},
            actual.data());
        EXPECT_EQ(actual, expected) << per_token << " " << size;
      }
    }
  }
}

TEST(QuantKernels, EqualBitsOnEveryInstructionSet) {
  std::mt19937 random(3);
  constexpr int64_t kTokens = 5;
  const QuantKernels& scalar = QuantKernelsFor(Isa::kScalar);
  for (Isa isa : OtherIsas()) {
    const QuantKernels& kernels = QuantKernelsFor(isa);
    for (int64_t width : {16, 48, 128}) {
      for (const bool per_token : {false, true}) {
        const int64_t stride = width + 3, count = kTokens * width;
        const auto rows = Random(kTokens * stride, random, 20), divisor = Random(width, random),
                   zero_points = Random(width, random);
        const std::vector<float> least(width, -8), most(width, 7), zero_point(width, 8);
        const CodeParameters parameters{divisor.data(), least.data(), most.data(),
                                        zero_point.data(), per_token};
        const FloatBlock block{rows.data(), stride, kTokens, width};
        std::vector<uint8_t> expected(count), actual(count);
        scalar.encode_rows(block, parameters, expected.data());
        kernels.encode_rows(block, parameters, actual.data());
        EXPECT_EQ(actual, expected);
        for (bool is_signed : {false, true}) {
          std::vector<float> floats(count), wide(count);
          scalar.decode_rows(actual.data(), is_signed, kTokens, width, divisor.data(),
                             zero_points.data(), per_token, floats.data());
          kernels.decode_rows(actual.data(), is_signed, kTokens, width, divisor.data(),
                              zero_points.data(), per_token, wide.data());
          EXPECT_EQ(wide, floats);
        }
      }
    }
  }
}

TEST(QuantKernels, NumbersOutsideABoundAreFound) {
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    const auto are_within = QuantKernelsFor(isa).are_within;
    for (int place = 0; place < 48; ++place) {
      std::vector<float> row(48, -3);
      EXPECT_TRUE(are_within({row.data(), 16, 3, 16}, 3));
      for (float wrong : {3.5f, -3.5f, INFINITY, -INFINITY, NAN}) {
        row[place] = wrong;
        EXPECT_FALSE(are_within({row.data(), 16, 3, 16}, 3));
      }
    }
  }
}

TEST(QuantKernels, RangesOfAnyLength) {
  std::mt19937 random(5);
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    const QuantKernels& kernels = QuantKernelsFor(isa);
    for (int64_t width : {1, 2, 15, 16, 17, 31, 32, 48, 64, 100, 128}) {
      for (int64_t group : {1, 5, 16, 32, 64, 128}) {
        const int64_t padded = (width + 15) / 16 * 16;
        auto values = Random(3 * padded, random);
        group = std::min(group, width);
        const int64_t groups = (width + group - 1) / group;
        std::vector<float> low(3 * groups), high(3 * groups);
        const FloatBlock block{values.data(), padded, 3, padded};
        EXPECT_TRUE(kernels.find_ranges(block, width, group, low.data(), high.data()));
        for (int64_t i = 0; i < 3 * groups; ++i) {
          const float* begin = &values[i / groups * padded + i % groups * group];
          const float* end = begin + std::min(group, width - i % groups * group);
          EXPECT_EQ(low[i], *std::min_element(begin, end));
          EXPECT_EQ(high[i], *std::max_element(begin, end));
        }
        for (float special : {INFINITY, -INFINITY, NAN}) {
          auto wrong = values;
          wrong[random() % 3 * padded + random() % width] = special;
          EXPECT_FALSE(kernels.find_ranges({wrong.data(), padded, 3, padded}, width, group,
                                           low.data(), high.data()));
        }
      }
    }
    for (int64_t width : {16, 32, 48, 128, 176, 288}) {
      std::vector<float> low(width, 0), high(width, 0);
      auto row = Random(2 * width, random);
      EXPECT_TRUE(kernels.widen_ranges({row.data(), width, 2, width}, low.data(), high.data()));
      for (int i = 0; i < width; ++i) {
        EXPECT_EQ(low[i], std::min({row[i], row[i + width], 0.0f}));
        EXPECT_EQ(high[i], std::max({row[i], row[i + width], 0.0f}));
      }
      for (float special : {INFINITY, -INFINITY, NAN}) {
        auto wrong = row;
        wrong[random() % wrong.size()] = special;
        EXPECT_FALSE(
            kernels.widen_ranges({wrong.data(), width, 2, width}, low.data(), high.data()));
      }
    }
  }
}

// Largest magnitudes instead of ranges, but the number itself where a group has only one.
TEST(QuantKernels, SizesOfAnyLength) {
  std::mt19937 random(6);
  const auto expect = [](const std::vector<float>& group, float low, float high) {
    const auto [least, most] = std::minmax_element(group.begin(), group.end());
    EXPECT_EQ(std::max(-low, high), std::max(-*least, *most));
    EXPECT_EQ(low == high, *least == *most);
    if (*least == *most) {
      EXPECT_EQ(low, *least);
    }
  };
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    const QuantKernels& kernels = QuantKernelsFor(isa);
    for (int64_t width : {1, 16, 31, 32, 48, 128, 176, 288}) {
      for (int64_t tokens : {1, 2, 5}) {
        const int64_t padded = (width + 15) / 16 * 16;
        auto values = Random(tokens * padded, random);
        for (int64_t t = 0; t < tokens; ++t) values[t * padded + width / 2] = -2.5f;  // a constant
        if (tokens == 5) std::fill_n(values.begin() + padded, padded, 0.0f);
        const FloatBlock block{values.data(), padded, tokens, padded};
        std::vector<float> low(padded), high(padded);
        EXPECT_TRUE(kernels.find_column_sizes(block, low.data(), high.data()));
        for (int64_t i = 0; i < padded; ++i) {
          std::vector<float> column;
          for (int64_t t = 0; t < tokens; ++t) column.push_back(values[t * padded + i]);
          expect(column, low[i], high[i]);
        }
        for (int64_t group : {int64_t{1}, int64_t{5}, int64_t{16}, width}) {
          group = std::min(group, width);
          const int64_t groups = (width + group - 1) / group;
          std::vector<float> least(tokens * groups), most(tokens * groups);
          EXPECT_TRUE(kernels.find_sizes(block, width, group, least.data(), most.data()));
          for (int64_t i = 0; i < tokens * groups; ++i) {
            const float* begin = &values[i / groups * padded + i % groups * group];
            const float* end = begin + std::min(group, width - i % groups * group);
            expect({begin, end}, least[i], most[i]);
          }
          for (float special : {INFINITY, -INFINITY, NAN}) {
            auto wrong = values;
            wrong[random() % tokens * padded + random() % width] = special;
            const FloatBlock bad{wrong.data(), padded, tokens, padded};
            EXPECT_FALSE(kernels.find_sizes(bad, width, group, least.data(), most.data()));
            EXPECT_FALSE(kernels.find_column_sizes(bad, low.data(), high.data()));
          }
        }
      }
    }
  }
}

TEST(QuantKernels, ScalesAndZeroPointsOfRanges) {
  constexpr float kMost = std::numeric_limits<float>::max();
  std::mt19937 random(21);
  std::vector<float> low = Random(240, random, 3), high = Random(240, random, 3);
  for (size_t i = 0; i < low.size(); ++i) {
    if (low[i] > high[i]) std::swap(low[i], high[i]);
  }
  const std::pair<float, float> edges[] = {{0, 0},
                                           {-0.0f, 0},
                                           {2, 2},
                                           {-2, -2},
                                           {-kMost, kMost},
                                           {0, kMost},
                                           {-kMost, -kMost},
                                           {-1e-45f, 0},
                                           {-1e-44f, 1e-45f},
                                           {-1e-39f, 0},
                                           {1, 3},
                                           {-3, -1},
                                           {-127.5f, 127.5f},
                                           {-7.5f, 7.5f},
                                           {-1.5f, 1.5f},
                                           {-1, 1e-30f}};
  for (const auto& [least, most] : edges) {
    low.push_back(least);
    high.push_back(most);
  }
  const auto count = static_cast<int64_t>(low.size());
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    for (float levels : {255.0f, 15.0f, 3.0f}) {
      std::vector<float> scale(count), zero_point(count);
      const QuantKernels& kernels = QuantKernelsFor(isa);
      kernels.unsigned_scales(low.data(), high.data(), count, levels, scale.data());
      kernels.zero_points(low.data(), scale.data(), count, levels, zero_point.data());
      for (int64_t i = 0; i < count; ++i) {
        const double below = std::min<double>(low[i], 0), above = std::max<double>(high[i], 0);
        const auto wanted =
            static_cast<float>(low[i] == high[i] ? std::fabs(low[i]) : (above - below) / levels);
        EXPECT_EQ(scale[i], wanted) << low[i] << " " << high[i];
        const float place = wanted == 0 ? 0 : static_cast<float>(-below) / wanted;
        EXPECT_EQ(zero_point[i], std::min(std::nearbyint(place), levels)) << i;
      }
    }
  }
}

// One record after ggml's reference encoders, value by value: its scale, and its codes with those
// of the high nibbles last.
struct PlainRecord {
  float scale = 0;
  std::array<int, 32> codes{};
};
PlainRecord PlainQ8(const float* values) {
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(values[i]));
  PlainRecord record{most / 127};
  const float inverse = std::isfinite(1 / record.scale) ? 1 / record.scale : 0;
  for (int i = 0; i < 32; ++i) record.codes[i] = static_cast<int>(std::round(values[i] * inverse));
  return record;
}
PlainRecord PlainQ4(const float* values) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(values[i]) > std::fabs(largest)) largest = values[i];
  }
  PlainRecord record{largest / -8};
  const float inverse = std::isfinite(1 / record.scale) ? 1 / record.scale : 0;
  for (int i = 0; i < 32; ++i) {
    const float shifted = values[i] * inverse + 8.5f;
    record.codes[i] = std::min(15, static_cast<int>(shifted));
  }
  return record;
}

// Random records, then those where something is on an edge.
std::vector<float> RecordValues() {
  std::mt19937 random(13);
  std::vector<float> values = Random(200 * 32, random, 3);
  const auto add = [&](auto value_at) {
    for (int i = 0; i < 32; ++i) values.push_back(static_cast<float>(value_at(i)));
  };
  add([](int) { return 0.0; });
  add([](int) { return -0.0; });
  add([](int i) { return i == 5 ? -127 : i == 20 ? 127 : i - 15.5; });  // halves, equal magnitudes
  add([](int i) { return i == 30 ? -8 : i == 9 ? 8 : i % 8 - 3.5; });
  add([](int i) { return i == 9 ? -8 : i == 30 ? 8 : i % 8 - 3.5; });
  add([](int i) { return i * 1e-42; });  // scales without a reciprocal
  add([](int i) { return (i - 16) * 1e30; });
  add([](int i) { return i == 31 ? -3e-5 : 0; });
  return values;
}

uint16_t HalfOf(float value) {
  uint16_t half;
  ConvertElements(DType::kFloat32, &value, DType::kFloat16, &half, 1);
  return half;
}
uint16_t HalfAt(const uint8_t* bytes) { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }

TEST(QuantKernels, RecordsAreThoseOfPlainLoops) {
  const std::vector<float> values = RecordValues();
  const auto records = static_cast<int64_t>(values.size() / 32);
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    std::vector<uint8_t> bytes8(records * 34 + 1, 0xaa), bytes4(records * 18 + 1, 0xaa);
    const QuantKernels& kernels = QuantKernelsFor(isa);
    EXPECT_TRUE(kernels.encode_q8_0(values.data(), records, INFINITY, bytes8.data()));
    EXPECT_TRUE(kernels.encode_q4_0(values.data(), records, INFINITY, bytes4.data()));
    for (int64_t i = 0; i < records; ++i) {
      const PlainRecord plain8 = PlainQ8(&values[i * 32]), plain4 = PlainQ4(&values[i * 32]);
      EXPECT_EQ(HalfAt(&bytes8[i * 34]), HalfOf(plain8.scale)) << i;
      EXPECT_EQ(HalfAt(&bytes4[i * 18]), HalfOf(plain4.scale)) << i;
      for (int j = 0; j < 32; ++j) {
        EXPECT_EQ(static_cast<int8_t>(bytes8[i * 34 + 2 + j]), plain8.codes[j]) << i << " " << j;
        const int nibble = bytes4[i * 18 + 2 + j % 16] >> (j / 16 * 4) & 15;
        EXPECT_EQ(nibble, plain4.codes[j]) << i << " " << j;
      }
    }
    EXPECT_EQ(bytes8.back(), 0xaa);
    EXPECT_EQ(bytes4.back(), 0xaa);
  }
}

// Scales of all sizes: subnormal in float16, halves between two of them, infinite.
TEST(QuantKernels, ScalesOfRecordsAreRoundedToFloat16) {
  std::mt19937 random(17);
  std::vector<float> values;
  for (int i = 0; i < 4000; ++i) {
    uint16_t half = static_cast<uint16_t>(i * 16);
    if ((half & 0x7fff) >= 0x7c00) half &= 0x83ff;
    float scale;
    ConvertElements(DType::kFloat16, &half, DType::kFloat32, &scale, 1);
    if (i % 3 == 0) scale *= 1 + 0x1p-11f;  // often the middle between two
    if (i % 7 == 0) scale = std::nextafter(scale, INFINITY);
    values.resize(values.size() + 32);
    values[values.size() - 1 - random() % 32] = scale * -8;
  }
  const auto records = static_cast<int64_t>(values.size() / 32);
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    std::vector<uint8_t> bytes(records * 18);
    EXPECT_TRUE(QuantKernelsFor(isa).encode_q4_0(values.data(), records, INFINITY, bytes.data()));
    for (int64_t i = 0; i < records; ++i) {
      EXPECT_EQ(HalfAt(&bytes[i * 18]), HalfOf(PlainQ4(&values[i * 32]).scale)) << i;
    }
  }
}

TEST(QuantKernels, RecordsThatExceedABoundAreFound) {
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    for (const auto encode : {QuantKernelsFor(isa).encode_q8_0, QuantKernelsFor(isa).encode_q4_0}) {
      for (int place = 0; place < 32 * 19; place += 7) {
        std::vector<float> values(32 * 19, -3);
        std::vector<uint8_t> bytes(34 * 19);
        EXPECT_TRUE(encode(values.data(), 19, 3, bytes.data()));
        for (float wrong : {3.5f, -3.5f, INFINITY, -INFINITY, NAN}) {
          values[place] = wrong;
          EXPECT_FALSE(encode(values.data(), 19, 3, bytes.data()));
        }
      }
    }
  }
}

// Every float16 as a scale, every code.
TEST(QuantKernels, RecordsAreDecodedAsTheRuleSays) {
  constexpr int64_t kScales = 65536;
  std::vector<uint8_t> bytes8(kScales * 34), bytes4(kScales * 18);
  for (int64_t i = 0; i < kScales; ++i) {
    for (auto [bytes, size] : {std::pair(&bytes8, 34), std::pair(&bytes4, 18)}) {
      uint8_t* record = bytes->data() + i * size;
      record[0] = static_cast<uint8_t>(i);
      record[1] = static_cast<uint8_t>(i >> 8);
      for (int j = 2; j < size; ++j) record[j] = static_cast<uint8_t>(i * 5 + j * 37);
    }
  }
  std::vector<float> values(kScales * 32);
  const auto expect = [&](int64_t i, int j, int code) {
    const auto half = static_cast<uint16_t>(i);
    float scale;
    ConvertElements(DType::kFloat16, &half, DType::kFloat32, &scale, 1);
    const float expected = static_cast<float>(code) * scale, actual = values[i * 32 + j];
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(expected)) << i;
    }
  };
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    QuantKernelsFor(isa).decode_q8_0(bytes8.data(), kScales, values.data());
    for (int64_t i = 0; i < kScales; ++i) {
      for (int j = 0; j < 32; ++j) expect(i, j, static_cast<int8_t>(bytes8[i * 34 + 2 + j]));
    }
    QuantKernelsFor(isa).decode_q4_0(bytes4.data(), kScales, values.data());
    for (int64_t i = 0; i < kScales; ++i) {
      for (int j = 0; j < 32; ++j) {
        expect(i, j, (bytes4[i * 18 + 2 + j % 16] >> (j / 16 * 4) & 15) - 8);
      }
    }
  }
}

TEST(QuantKernels, PackedCodesAreLowBitsFirst) {
  std::mt19937 random(19);
  for (Isa isa : kIsas) {
    if (isa > WidestIsa()) continue;
    const QuantKernels& kernels = QuantKernelsFor(isa);
    for (int bits : {4, 2}) {
      const int in_byte = 8 / bits, mask = (1 << bits) - 1;
      for (int64_t count : {0, 15, 16, 40, 64}) {
        std::vector<uint8_t> packed(count), codes(count * in_byte), again(count, 0xaa);
        for (uint8_t& byte : packed) byte = static_cast<uint8_t>(random());
        for (bool is_signed : {false, true}) {
          const int64_t done =
              kernels.unpack_bytes(packed.data(), count, bits, is_signed, codes.data());
          EXPECT_EQ(done, count / 16 * 16);
          for (int64_t i = 0; i < done * in_byte; ++i) {
            int code = packed[i / in_byte] >> (i % in_byte * bits) & mask;
            if (is_signed && code > mask / 2) code -= mask + 1;
            EXPECT_EQ(codes[i], static_cast<uint8_t>(code));
          }
          EXPECT_EQ(kernels.pack_bytes(codes.data(), count, bits, again.data()), done);
          for (int64_t i = 0; i < count; ++i) EXPECT_EQ(again[i], i < done ? packed[i] : 0xaa);
        }
      }
    }
  }
}

// The squared error of a lane in double.
double ErrorOf(const SearchGroups& groups, int lane, double scale, double zero_point) {
  double error = 0;
  for (int64_t i = 0; i < groups.count; ++i) {
    const double value = groups.values[i * groups.stride + lane];
    const double level =
        std::clamp<double>(std::nearbyint(value / scale), groups.least - zero_point,
                           groups.least + groups.levels - zero_point);
    error += std::pow(value - level * scale, 2);
  }
  return error;
}

struct SearchCase {
  explicit SearchCase(std::mt19937& random, float top, bool has_zero_points, bool one_group)
      : values(Random(40 * 16, random)) {
    for (int lane = 0; lane < 16; ++lane) {
      for (int i = 0; i < 40; ++i) {
        low[lane] = std::min(low[lane], values[i * 16 + lane]);
        high[lane] = std::max(high[lane], values[i * 16 + lane]);
      }
    }
    if (one_group) low.fill(*std::min_element(low.begin(), low.end()));
    if (one_group) high.fill(*std::max_element(high.begin(), high.end()));
    for (int lane = 0; lane < 16; ++lane) {
      scale[lane] = has_zero_points ? (high[lane] - low[lane]) / top
                                    : std::max(-low[lane], high[lane]) / std::floor(top / 2);
      zero_point[lane] = has_zero_points ? std::nearbyint(-low[lane] / scale[lane]) : 0;
    }
    groups = {values.data(),
              16,
              40,
              low.data(),
              high.data(),
              top,
              has_zero_points ? 0 : -std::ceil(top / 2),
              has_zero_points,
              one_group,
              {0, 1e-45f, std::numeric_limits<float>::max()},
              scale.data(),
              zero_point.data()};
  }
  std::vector<float> values;
  std::array<float, 16> low{}, high{}, scale{}, zero_point{};
  SearchGroups groups;
};

TEST(QuantKernels, TheSearchLowersTheErrorAndGivesEqualBits) {
  for (float levels : {3.0f, 15.0f}) {
    for (int kind = 0; kind < 4; ++kind) {
      const bool has_zero_points = kind % 2 == 0, one_group = kind >= 2;
      std::mt19937 random(7);
      SearchCase plain(random, levels, has_zero_points, one_group);
      const SearchCase before = plain;
      QuantKernelsFor(Isa::kScalar).search_scales(plain.groups);
      double by_range = 0, found = 0;
      for (int lane = 0; lane < 16; ++lane) {
        const double range =
            ErrorOf(plain.groups, lane, before.scale[lane], before.zero_point[lane]);
        const double best = ErrorOf(plain.groups, lane, plain.scale[lane], plain.zero_point[lane]);
        if (!one_group) {
          EXPECT_LE(best, range);
        }
        by_range += range;
        found += best;
      }
      EXPECT_LT(found, by_range * (levels == 3 ? 0.9 : 0.99)) << levels << " " << kind;
      for (Isa isa : OtherIsas()) {
        std::mt19937 again(7);
        SearchCase wide(again, levels, has_zero_points, one_group);
        QuantKernelsFor(isa).search_scales(wide.groups);
        EXPECT_EQ(wide.scale, plain.scale);
        EXPECT_EQ(wide.zero_point, plain.zero_point);
      }
    }
  }
}

// What the scale by range keeps exactly, or nearly so, no product by a reciprocal may change.
TEST(QuantKernels, TheSearchLeavesScalesThatFit) {
  std::mt19937 random(11);
  for (int kind = 0; kind < 4; ++kind) {
    const bool has_zero_points = kind % 2 == 0, one_group = kind >= 2;
    SearchCase fitting(random, 15, has_zero_points, one_group);
    for (int i = 0; i < 40 * 16; ++i) {
      const int lane = i % 16;
      const float code = std::nearbyint(fitting.values[i] / fitting.scale[lane]);
      fitting.values[i] = fitting.scale[lane] * code;
    }
    const SearchCase before = fitting;
    for (Isa isa : kIsas) {
      if (isa > WidestIsa()) continue;
      QuantKernelsFor(isa).search_scales(fitting.groups);
      EXPECT_EQ(fitting.scale, before.scale) << kind;
      EXPECT_EQ(fitting.zero_point, before.zero_point) << kind;
    }
  }
}

}  // namespace
}  // namespace onnx_light
