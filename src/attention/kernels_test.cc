#include "attention/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/convert.h"

namespace onnx_light {
namespace {

std::vector<const AttentionKernels*> AllKernels() {
  std::vector<const AttentionKernels*> all;
  for (Isa isa : kIsas) {
    if (isa <= WidestIsa()) all.push_back(&AttentionKernelsFor(isa));
  }
  return all;
}

double UlpsBetween(float actual, double expected) {
  const auto rounded = static_cast<float>(expected);
  const double ulp = std::nextafter(rounded, INFINITY) - static_cast<double>(rounded);
  return std::fabs(static_cast<double>(actual) - expected) / ulp;
}

TEST(AttentionKernels, ExpIsWithinTwoUlps) {
  for (const AttentionKernels* kernels : AllKernels()) {
    double worst = 0;
    for (float x = 0; x > -44.36f; x -= 0.00037f) {
      worst = std::max(worst, UlpsBetween(kernels->exp(x), std::exp(static_cast<double>(x))));
    }
    EXPECT_LE(worst, 2);
    EXPECT_EQ(kernels->exp(0), 1);
    EXPECT_EQ(kernels->exp(-44.37f), 0);
    EXPECT_EQ(kernels->exp(-1e30f), 0);
    EXPECT_EQ(kernels->exp(-INFINITY), 0);
    EXPECT_TRUE(std::isnan(kernels->exp(NAN)));
  }
}

// All numbers of the types of 8 and 16 bits.
TEST(AttentionKernels, WideningIsExact) {
  const std::pair<RowFormat, DType> formats[] = {{RowFormat::kF16, DType::kFloat16},
                                                 {RowFormat::kBF16, DType::kBFloat16},
                                                 {RowFormat::kF8E4M3FN, DType::kFloat8E4M3FN},
                                                 {RowFormat::kF8E5M2, DType::kFloat8E5M2}};
  for (const AttentionKernels* kernels : AllKernels()) {
    for (const auto& [format, dtype] : formats) {
      const auto widen = kernels->widen[static_cast<int>(format)];
      if (widen == nullptr) continue;
      const int64_t item = ElementSize(dtype), count = item == 1 ? 256 : 65536;
      std::vector<uint8_t> numbers(count * item);
      for (int64_t i = 0; i < count; ++i) {
        numbers[i * item] = static_cast<uint8_t>(i);
        if (item == 2) numbers[i * item + 1] = static_cast<uint8_t>(i >> 8);
      }
      std::vector<float> expected(count), actual(count);
      ConvertElements(dtype, numbers.data(), DType::kFloat32, expected.data(), count);
      RowTile tile;
      tile.data = reinterpret_cast<const std::byte*>(numbers.data());
      tile.width = count;
      widen(tile, 1, actual.data(), count);
      for (int64_t i = 0; i < count; ++i) {
        if (std::isnan(expected[i])) {
          EXPECT_TRUE(std::isnan(actual[i])) << i;
        } else {
          EXPECT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i])) << i;
        }
      }
    }
  }
}

TEST(AttentionKernels, FiniteSeesEveryPlace) {
  for (const AttentionKernels* kernels : AllKernels()) {
    std::vector<float> numbers(48, -std::numeric_limits<float>::max());
    EXPECT_TRUE(kernels->finite(numbers.data(), 48));
    for (size_t i = 0; i < numbers.size(); ++i) {
      for (float bad : {INFINITY, -INFINITY, NAN}) {
        std::vector<float> copy = numbers;
        copy[i] = bad;
        EXPECT_FALSE(kernels->finite(copy.data(), 48)) << i;
      }
    }
  }
}

// Scores and sums of a format against those of its widened rows.
void CompareWithWidened(const AttentionKernels& kernels, RowFormat format, int64_t width,
                        int64_t tokens, const std::vector<float>& queries) {
  std::mt19937 random(4);
  std::vector<uint8_t> bytes(width * 4 * tokens);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 100);  // finite in any type
  std::vector<float> zero(width * tokens), scale(width * tokens);
  std::normal_distribution<float> normal;
  for (float& number : zero) number = static_cast<float>(random() % 16);
  for (float& number : scale) number = normal(random);
  const int index = static_cast<int>(format);
  RowTile tile;
  tile.format = format;
  tile.data = reinterpret_cast<const std::byte*>(bytes.data());
  tile.row_size = 4 * width;
  tile.width = width;
  tile.zero = zero.data();
  if (format >= RowFormat::kI8Group && format <= RowFormat::kU4Group) {
    tile.group_scale = scale.data();
    tile.groups = 2;
  }
  std::vector<float> wide(tokens * width), paired(queries.size());
  kernels.widen[index](tile, tokens, wide.data(), width);
  kernels.pair(queries.data(), static_cast<int64_t>(queries.size()), paired.data());
  for (int rows = 1; rows <= kernels.max_rows; ++rows) {
    std::vector<float> scores(rows * kTileTokens, -1), sums(rows * width, 1);
    const float* order = kernels.pairs[index] ? paired.data() : queries.data();
    kernels.scores[index](tile, tokens, {order, width, rows}, scores.data());
    std::vector<float> weights(scores.size());
    for (float& weight : weights) weight = std::fabs(normal(random));
    kernels.mix[index](tile, tokens, {weights.data(), nullptr, sums.data(), width, rows});
    for (int row = 0; row < rows; ++row) {
      for (int64_t token = 0; token < kTileTokens; ++token) {
        if (token >= tokens) {  // what is behind the rows stays what it was
          EXPECT_EQ(scores[row * kTileTokens + token], -1) << index << " " << rows;
          continue;
        }
        double expected = 0, size = 0;
        for (int64_t i = 0; i < width; ++i) {
          const double product = static_cast<double>(queries[row * width + i]) *
                                 static_cast<double>(wide[token * width + i]);
          expected += product;
          size += std::fabs(product);
        }
        EXPECT_NEAR(scores[row * kTileTokens + token], expected, size * (width / 4 + 8) * 0x1p-24)
            << index << " " << rows << " " << width << " " << token;
      }
      for (int64_t i = 0; i < width; ++i) {
        double expected = 1, size = 1;
        for (int64_t token = 0; token < tokens; ++token) {
          const double product = static_cast<double>(weights[row * kTileTokens + token]) *
                                 static_cast<double>(wide[token * width + i]);
          expected += product;
          size += std::fabs(product);
        }
        EXPECT_NEAR(sums[row * width + i], expected, size * 2 * tokens * 0x1p-24) << index;
      }
    }
  }
}

TEST(AttentionKernels, EveryFormatComputesWhatItsWidenedRowsDo) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const AttentionKernels* kernels : AllKernels()) {
    for (int format = 0; format < kRowFormats; ++format) {
      if (kernels->scores[format] == nullptr) continue;
      for (const int64_t width : {64, 128, 192, 320}) {
        std::vector<float> queries(8 * width);
        for (float& number : queries) number = normal(random);
        for (const int64_t tokens : {3, 21, 64}) {
          CompareWithWidened(*kernels, RowFormat(format), width, tokens, queries);
        }
      }
    }
  }
}

// Numbers so unequal that whole numbers of 24 bits would lose the small ones.
TEST(AttentionKernels, UnequalQueriesLoseNothing) {
  for (const AttentionKernels* kernels : AllKernels()) {
    for (int format = 0; format < kRowFormats; ++format) {
      if (kernels->scores[format] == nullptr) continue;
      std::vector<float> queries(8 * 256);
      for (size_t i = 0; i < queries.size(); ++i) {
        queries[i] = i % 256 == 200 ? 0x1p30f : 0x1p-20f * static_cast<float>(i % 7);
      }
      CompareWithWidened(*kernels, RowFormat(format), 256, 32, queries);
      for (float& number : queries) number = 0;
      CompareWithWidened(*kernels, RowFormat(format), 256, 32, queries);
    }
  }
}

}  // namespace
}  // namespace onnx_light
