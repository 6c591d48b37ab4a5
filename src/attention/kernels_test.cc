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
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
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

// Scores and sums of every format against those of its widened rows.
TEST(AttentionKernels, EveryFormatComputesWhatItsWidenedRowsDo) {
  constexpr int64_t kWidth = 128, kTokens = 21;
  std::mt19937 random(4);
  std::vector<uint8_t> bytes(kWidth * 4 * kTokens);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 100);  // finite in any type
  std::vector<float> zero(kWidth * kTokens), scale(kWidth * kTokens), queries(8 * kWidth);
  std::normal_distribution<float> normal;
  for (float& number : zero) number = static_cast<float>(random() % 16);
  for (float& number : scale) number = normal(random);
  for (float& number : queries) number = normal(random);
  for (const AttentionKernels* kernels : AllKernels()) {
    for (int format = 0; format < kRowFormats; ++format) {
      if (kernels->scores[format] == nullptr) continue;
      RowTile tile;
      tile.format = RowFormat(format);
      tile.data = reinterpret_cast<const std::byte*>(bytes.data());
      tile.row_size = 4 * kWidth;
      tile.width = kWidth;
      tile.zero = zero.data();
      const bool groups = tile.format >= RowFormat::kI8Group && tile.format <= RowFormat::kU4Group;
      if (groups) {
        tile.group_scale = scale.data();
        tile.groups = 2;
      }
      std::vector<float> wide(kTokens * kWidth), paired(queries.size());
      kernels->widen[format](tile, kTokens, wide.data(), kWidth);
      kernels->pair(queries.data(), static_cast<int64_t>(queries.size()), paired.data());
      for (int rows = 1; rows <= kernels->max_rows; ++rows) {
        std::vector<float> scores(rows * kTileTokens), sums(rows * kWidth, 1);
        const float* order = kernels->pairs[format] ? paired.data() : queries.data();
        kernels->scores[format](tile, kTokens, {order, kWidth, rows}, scores.data());
        std::vector<float> weights(scores.size());
        for (float& weight : weights) weight = std::fabs(normal(random));
        kernels->mix[format](tile, kTokens, {weights.data(), nullptr, sums.data(), kWidth, rows});
        for (int row = 0; row < rows; ++row) {
          for (int64_t token = 0; token < kTokens; ++token) {
            double expected = 0, size = 0;
            for (int64_t i = 0; i < kWidth; ++i) {
              const double product = static_cast<double>(queries[row * kWidth + i]) *
                                     static_cast<double>(wide[token * kWidth + i]);
              expected += product;
              size += std::fabs(product);
            }
            EXPECT_NEAR(scores[row * kTileTokens + token], expected, size * kWidth * 0x1p-24)
                << format << " " << rows;
          }
          for (int64_t i = 0; i < kWidth; ++i) {
            double expected = 1, size = 1;
            for (int64_t token = 0; token < kTokens; ++token) {
              const double product = static_cast<double>(weights[row * kTileTokens + token]) *
                                     static_cast<double>(wide[token * kWidth + i]);
              expected += product;
              size += std::fabs(product);
            }
            EXPECT_NEAR(sums[row * kWidth + i], expected, size * 2 * kTokens * 0x1p-24) << format;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace onnx_light
