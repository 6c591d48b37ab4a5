// The oracle is the definition: every finite value of a type, computed with ldexp in double, and
// the nearest of them, ties to the even pattern.
#include "base/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace onnx_light {
namespace {

struct Layout {
  DType dtype;
  int exponent_bits, mantissa_bits;
  bool has_infinity;
};

constexpr Layout kLayouts[] = {{DType::kFloat16, 5, 10, true},
                               {DType::kBFloat16, 8, 7, true},
                               {DType::kFloat8E4M3FN, 4, 3, false},
                               {DType::kFloat8E5M2, 5, 2, true}};

double ValueOf(const Layout& layout, uint32_t bits) {
  const int e = layout.exponent_bits, m = layout.mantissa_bits, bias = (1 << (e - 1)) - 1;
  const uint32_t exponent = bits >> m & ((1u << e) - 1), mantissa = bits & ((1u << m) - 1);
  const double sign = bits >> (e + m) & 1 ? -1.0 : 1.0;
  const bool top = exponent == (1u << e) - 1;
  if (layout.has_infinity && top) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (!layout.has_infinity && top && mantissa == (1u << m) - 1) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - m);
  return sign * std::ldexp((1u << m) + mantissa, static_cast<int>(exponent) - bias - m);
}

uint32_t Load(const Layout& layout, const void* from) {
  if (ElementSize(layout.dtype) == 1) return *static_cast<const uint8_t*>(from);
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return bits;
}

uint32_t NarrowOne(const Layout& layout, float value) {
  unsigned char out[2] = {};
  ConvertElements(DType::kFloat32, &value, layout.dtype, out, 1);
  return Load(layout, out);
}

// The pattern of the nearest value of `magnitude`, a finite positive number.
uint32_t Nearest(const std::vector<double>& finite, double magnitude) {
  const auto above = std::lower_bound(finite.begin(), finite.end(), magnitude);
  const uint32_t high = static_cast<uint32_t>(above - finite.begin());
  if (high < finite.size() && finite[high] == magnitude) return high;
  const double last_step = finite.back() - finite[finite.size() - 2];
  const double next = high < finite.size() ? finite[high] : finite.back() + last_step;
  const double below = finite[high - 1];
  if (magnitude >= next) return static_cast<uint32_t>(finite.size());
  const double to_high = next - magnitude, to_low = magnitude - below;
  if (to_high != to_low) return to_high < to_low ? high : high - 1;
  return high % 2 == 0 ? high : high - 1;
}

std::vector<double> FinitePositive(const Layout& layout) {
  std::vector<double> values;
  for (uint32_t bits = 0; std::isfinite(ValueOf(layout, bits)); ++bits) {
    values.push_back(ValueOf(layout, bits));
  }
  return values;
}

TEST(ConvertTest, WidensEveryPattern) {
  for (const Layout& layout : kLayouts) {
    const uint32_t count = 1u << (8 * ElementSize(layout.dtype));
    for (uint32_t bits = 0; bits < count; ++bits) {
      const uint16_t stored = static_cast<uint16_t>(bits);
      const float got = ToFloat(layout.dtype, &stored);
      const double want = ValueOf(layout, bits);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << Name(layout.dtype) << " " << bits;
      } else {
        ASSERT_EQ(got, want) << Name(layout.dtype) << " " << bits;
      }
      ASSERT_EQ(std::signbit(got), bits >= count / 2) << Name(layout.dtype) << " " << bits;
    }
  }
}

TEST(ConvertTest, NarrowsValuesTiesAndTheirNeighbours) {
  for (const Layout& layout : kLayouts) {
    const std::vector<double> finite = FinitePositive(layout);
    const uint32_t sign = 1u << (layout.exponent_bits + layout.mantissa_bits);
    for (size_t i = 0; i < finite.size(); ++i) {
      const double next =
          i + 1 < finite.size() ? finite[i + 1] : finite[i] + (finite[i] - finite[i - 1]);
      const float tie = static_cast<float>((finite[i] + next) / 2);
      for (float value : {static_cast<float>(finite[i]), tie, std::nextafter(tie, 0.0f),
                          std::nextafter(tie, HUGE_VALF)}) {
        if (!std::isfinite(value)) continue;
        const uint32_t want = Nearest(finite, value);
        ASSERT_EQ(NarrowOne(layout, value), want) << Name(layout.dtype) << " " << value;
        ASSERT_EQ(NarrowOne(layout, -value), want | sign) << Name(layout.dtype) << " " << -value;
      }
    }
  }
}

TEST(ConvertTest, NarrowsRandomPatterns) {
  std::mt19937 random(11);
  for (const Layout& layout : kLayouts) {
    const std::vector<double> finite = FinitePositive(layout);
    for (int i = 0; i < 200000; ++i) {
      const float value = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7fffffffu);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(NarrowOne(layout, value), Nearest(finite, value))
          << Name(layout.dtype) << " " << value;
    }
  }
}

TEST(ConvertTest, OverflowIsInfinityOrNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Layout& layout : kLayouts) {
    for (float value : {infinity, std::numeric_limits<float>::max()}) {
      const double got = ValueOf(layout, NarrowOne(layout, value));
      if (layout.has_infinity) {
        EXPECT_EQ(got, HUGE_VAL) << Name(layout.dtype);
      } else {
        EXPECT_TRUE(std::isnan(got)) << Name(layout.dtype);
      }
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(ValueOf(layout, NarrowOne(layout, nan))));
    EXPECT_TRUE(std::isnan(ValueOf(layout, NarrowOne(layout, std::bit_cast<float>(0x7f800001u)))));
  }
}

TEST(ConvertTest, SameTypeKeepsBits) {
  const std::vector<uint32_t> bits = {0x7f800001u, 0xffc12345u, 0x80000000u, 1u};
  std::vector<uint32_t> out(bits.size());
  ConvertElements(DType::kFloat32, bits.data(), DType::kFloat32, out.data(), bits.size());
  EXPECT_EQ(out, bits);
}

TEST(ConvertTest, EveryPairOfTypesGoesThroughOneRounding) {
  std::mt19937 random(5);
  for (DType from : kDTypes) {
    std::vector<unsigned char> in(1000 * ElementSize(from));
    for (auto& byte : in) byte = static_cast<unsigned char>(random());
    for (const Layout& to : kLayouts) {
      const std::vector<double> finite = FinitePositive(to);
      std::vector<unsigned char> out(1000 * ElementSize(to.dtype));
      ConvertElements(from, in.data(), to.dtype, out.data(), 1000);
      for (int i = 0; i < 1000; ++i) {
        const float value = ToFloat(from, in.data() + i * ElementSize(from));
        if (!std::isfinite(value) || from == to.dtype) continue;
        const uint32_t sign = std::signbit(value) ? 1u << (8 * ElementSize(to.dtype) - 1) : 0;
        ASSERT_EQ(Load(to, out.data() + i * ElementSize(to.dtype)),
                  Nearest(finite, std::fabs(value)) | sign);
      }
    }
  }
}

TEST(DTypeTest, NamesAndNumbers) {
  for (DType dtype : kDTypes) {
    EXPECT_EQ(ParseDType(Name(dtype)), dtype);
    EXPECT_EQ(DTypeOfTensor(TensorDataType(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("float64"), std::nullopt);
  EXPECT_EQ(DTypeOfTensor(6), std::nullopt);
  EXPECT_EQ(DTypeOfTensor((int64_t{1} << 32) + 1), std::nullopt);
  // onnx.TensorProto: FLOAT 1, FLOAT16 10, BFLOAT16 16, FLOAT8E4M3FN 17, FLOAT8E5M2 19.
  EXPECT_EQ(TensorDataType(DType::kFloat8E4M3FN), 17);
  EXPECT_EQ(TensorDataType(DType::kFloat8E5M2), 19);
}

}  // namespace
}  // namespace onnx_light
