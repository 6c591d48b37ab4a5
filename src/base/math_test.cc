#include "base/math.h"

#include <gtest/gtest.h>

#include <limits>

namespace onnx_light {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
constexpr int64_t kSignedMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kSignedMin = std::numeric_limits<int64_t>::min();

TEST(CheckedProduct, OverflowsUnlessAFactorIsZero) {
  constexpr int64_t kBig = int64_t{1} << 62;
  EXPECT_EQ(CheckedProduct({}), 1);
  EXPECT_EQ(CheckedProduct({2, 3, 5}), 30);
  EXPECT_EQ(CheckedProduct({kBig, 2}), std::nullopt);
  EXPECT_EQ(CheckedProduct({kBig, kBig, 0}), 0);
  EXPECT_EQ(CheckedProduct({kBig, 1}), kBig);
}

TEST(Math, AdditionStopsAtTheLimits) {
  EXPECT_EQ(CheckedAdd<uint64_t>(2, 3), 5u);
  EXPECT_EQ(CheckedAdd<uint64_t>(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd<uint64_t>(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd<int64_t>(kSignedMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd<int64_t>(kSignedMin, -1), std::nullopt);
  EXPECT_EQ(CheckedAdd<uint8_t>(200, 100), std::nullopt);
}

TEST(Math, SubtractionStopsAtTheLimits) {
  EXPECT_EQ(CheckedSub<uint64_t>(3, 3), 0u);
  EXPECT_EQ(CheckedSub<uint64_t>(3, 4), std::nullopt);
  EXPECT_EQ(CheckedSub<int64_t>(3, 4), -1);
  EXPECT_EQ(CheckedSub<int64_t>(0, kSignedMin), std::nullopt);
}

TEST(Math, MultiplicationStopsAtTheLimits) {
  EXPECT_EQ(CheckedMul<uint64_t>(1ull << 32, (1ull << 32) - 1), 0xffffffff00000000ull);
  EXPECT_EQ(CheckedMul<uint64_t>(1ull << 32, 1ull << 32), std::nullopt);
  EXPECT_EQ(CheckedMul<uint64_t>(kMax, 0), 0u);
  EXPECT_EQ(CheckedMul<int64_t>(kSignedMin, -1), std::nullopt);
  EXPECT_EQ(CheckedMul<int64_t>(-5, 7), -35);
}

TEST(Math, PowersOfTwo) {
  EXPECT_FALSE(IsPowerOfTwo(0));
  EXPECT_TRUE(IsPowerOfTwo(1));
  EXPECT_TRUE(IsPowerOfTwo(1ull << 63));
  EXPECT_FALSE(IsPowerOfTwo((1ull << 63) + 1));
}

TEST(Math, RoundingUp) {
  EXPECT_EQ(CeilDiv(0, 7), 0u);
  EXPECT_EQ(CeilDiv(7, 7), 1u);
  EXPECT_EQ(CeilDiv(8, 7), 2u);
  EXPECT_EQ(CeilDiv(kMax, 2), 1ull << 63);
  EXPECT_EQ(RoundUp(0, 64), 0u);
  EXPECT_EQ(RoundUp(65, 64), 128u);
  EXPECT_EQ(RoundUp(10, 3), 12u);
  EXPECT_EQ(CheckedRoundUp(kMax - 63, 64), kMax - 63);
  EXPECT_EQ(CheckedRoundUp(kMax - 62, 64), std::nullopt);
}

TEST(Math, RangesNeverWrap) {
  EXPECT_TRUE(RangeFits(0, 0, 0));
  EXPECT_TRUE(RangeFits(10, 0, 10));
  EXPECT_TRUE(RangeFits(3, 7, 10));
  EXPECT_FALSE(RangeFits(3, 8, 10));
  EXPECT_FALSE(RangeFits(11, 0, 10));
  EXPECT_FALSE(RangeFits(8, kMax - 4, 10));
  EXPECT_FALSE(RangeFits(kMax, 1, 10));
}

static_assert(CheckedMul<uint64_t>(6, 7) == 42u, "usable in constant expressions");

}  // namespace
}  // namespace onnx_light
