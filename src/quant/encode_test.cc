#include "quant/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/convert.h"
#include "onnx_light/errors.h"
#include "quant/decode.h"

namespace onnx_light {
namespace {

using Dims = std::array<int64_t, 4>;

std::vector<float> Random(const Dims& dims, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(dims[0] * dims[1] * dims[2] * dims[3]);
  for (size_t i = 0; i < values.size(); ++i) values[i] = normal(random) + 0.1f * (i % dims[3]);
  return values;
}

EncodedPayload EncodeFloats(const std::vector<float>& values, const Dims& dims,
                            const std::string& format) {
  return Encode(ContiguousView(values.data(), DType::kFloat32, dims), PageFormat::Parse(format),
                "");
}

std::vector<float> Decode(const EncodedPayload& payload) {
  const auto& dims = payload.dims;
  std::vector<float> values(dims[0] * dims[1] * dims[2] * dims[3]);
  float* target = values.data();
  for (int64_t batch = 0; batch < dims[0]; ++batch) {
    for (int64_t head = 0; head < dims[1]; ++head, target += dims[2] * dims[3]) {
      DecodeRows(payload, batch, head, 0, dims[2], DType::kFloat32, target);
    }
  }
  return values;
}

// ---------------------------------------------------------------------------------------------
// The rules in double, element by element

int CodeAt(const SharedBytes& codes, PageType type, int64_t index) {
  const int bits = CodeBits(type), in_byte = 8 / bits;
  const int code =
      static_cast<int>(codes.data[index / in_byte]) >> (index % in_byte * bits) & ((1 << bits) - 1);
  return IsSigned(type) && code >> (bits - 1) != 0 ? code - (1 << bits) : code;
}

struct Model {
  const EncodedPayload& payload;
  const AffineLayout& layout = *payload.affine();
  Dims cell = CellDims(layout, payload.dims), counts = CellCounts(layout, payload.dims);

  int64_t CellOf(int64_t element) const {
    Dims index;
    for (int i = 3; i >= 0; --i) {
      index[i] = element % payload.dims[i];
      element /= payload.dims[i];
    }
    int64_t result = 0;
    for (int i = 0; i < 4; ++i) result = result * counts[i] + index[i] / cell[i];
    return result;
  }
  double Scale(int64_t i) const {
    const auto* scale = payload.scales.data + i * ElementSize(layout.scale_type);
    return ToFloat(layout.scale_type, scale);
  }
  int ZeroPoint(int64_t i) const {
    return payload.zero_points.size == 0 ? 0 : CodeAt(payload.zero_points, layout.code_type, i);
  }
};

double Rounded(double scale, DType type) {
  const auto narrow = static_cast<float>(scale);
  float stored = 0;
  uint32_t bits = 0;
  ConvertElements(DType::kFloat32, &narrow, type, &bits, 1);
  ConvertElements(type, &bits, DType::kFloat32, &stored, 1);
  return stored;
}

constexpr const char* kFormats[] = {"int8/tensor",
                                    "int8/channel",
                                    "int8/token",
                                    "uint8/channel:16",
                                    "uint8/token:8",
                                    "int4/channel:32",
                                    "int4/token",
                                    "int4/tensor",
                                    "uint4/token:5",
                                    "uint4/channel",
                                    "int2/token:16",
                                    "uint2/channel:7",
                                    "uint2/tensor",
                                    "uint4/token:64",
                                    "uint8/tensor",
                                    "int8/token/float32",
                                    "uint4/channel:3/bfloat16",
                                    "int2/channel:100/float32"};
constexpr Dims kDims[] = {{1, 1, 1, 1},   {2, 3, 5, 7},   {1, 2, 64, 33},
                          {2, 1, 20, 64}, {1, 1, 33, 80}, {1, 1, 3, 128}};

TEST(Encode, CodesAreTheNearestAndDecodingFollowsTheRule) {
  for (const char* format : kFormats) {
    for (const Dims& dims : kDims) {
      const auto values = Random(dims);
      const EncodedPayload payload = EncodeFloats(values, dims, format);
      const Model model{payload};
      const PageType type = model.layout.code_type;
      const int least = IsSigned(type) ? -(1 << (CodeBits(type) - 1)) : 0;
      const int most = least + (1 << CodeBits(type)) - 1;
      const auto decoded = Decode(payload);
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t cell = model.CellOf(i);
        const int code = CodeAt(payload.codes, type, i), zero_point = model.ZeroPoint(cell);
        const double scale = model.Scale(cell);
        // Computed in float: a quotient within an ulp of a half may go either way.
        const double place = std::clamp<double>(values[i] / scale + zero_point, least, most);
        ASSERT_LE(std::fabs(place - code), 0.5 + 2e-5) << format << " " << i;
        ASSERT_EQ(decoded[i], static_cast<float>(static_cast<float>(code - zero_point) * scale));
      }
    }
  }
}

TEST(Encode, EightBitsGoByRange) {
  for (const char* format : kFormats) {
    if (CodeBits(PageFormat::Parse(format).type()) != 8) continue;
    for (const Dims& dims : kDims) {
      const auto values = Random(dims, 2);
      const EncodedPayload payload = EncodeFloats(values, dims, format);
      const Model model{payload};
      const auto cells = model.counts[0] * model.counts[1] * model.counts[2] * model.counts[3];
      std::vector<double> low(cells, INFINITY), high(cells, -INFINITY);
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t cell = model.CellOf(i);
        low[cell] = std::min<double>(low[cell], values[i]);
        high[cell] = std::max<double>(high[cell], values[i]);
      }
      for (int64_t i = 0; i < cells; ++i) {
        const bool is_signed = IsSigned(model.layout.code_type);
        double scale = is_signed ? std::max(-low[i], high[i]) / 127
                                 : (std::max(high[i], 0.0) - std::min(low[i], 0.0)) / 255;
        if (low[i] == high[i]) scale = std::fabs(low[i]);
        scale = Rounded(scale, model.layout.scale_type);
        ASSERT_EQ(model.Scale(i), scale) << format;
        if (!is_signed) {
          ASSERT_NEAR(model.ZeroPoint(i), std::min(low[i], 0.0) / -scale, 0.5 + 1e-4);
        }
      }
    }
  }
}

TEST(Encode, ConstantGroupsAreExact) {
  const Dims dims{1, 1, 64, 8};
  for (float value : {0.0f, 1.5f, -1.5f, -3e-8f, 1e-30f, 6e4f, 3e38f, -3e38f, 1e-45f}) {
    const std::vector<float> values(64 * 8, value);
    for (const char* format : kFormats) {
      if (std::strstr(format, "bfloat16") != nullptr) continue;  // 6e4 is not representable
      const EncodedPayload payload = EncodeFloats(values, dims, format);
      EXPECT_EQ(Decode(payload), values) << format << " " << value;
    }
  }
}

// Scales that are no normal numbers are rounded by up to a half, and codes may exceed their bounds.
TEST(Encode, CodesOfSubnormalScalesAreBounded) {
  std::vector<float> values(64);
  for (int i = 0; i < 64; ++i) values[i] = static_cast<float>(i - 20) * 0x1p-147f;
  values[63] = 189 * 0x1p-149f;  // 127 * 1.49 of the smallest scale
  for (const char* format : {"int8/token/float32", "int8/channel/float32", "int8/tensor/float32"}) {
    const Dims dims = format[5] == 'c' ? Dims{1, 1, 64, 1} : Dims{1, 1, 1, 64};
    const auto decoded = Decode(EncodeFloats(values, dims, format));
    for (int i = 0; i < 64; ++i) EXPECT_EQ(decoded[i], std::min(values[i], 127 * 0x1p-149f)) << i;
  }
}

// Next to the largest floats the outer levels of a scale by range would be infinite.
TEST(Encode, TheLargestFloatsStayFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const std::vector<float> values{-kMost, kMost, 0, kMost / 3};
  for (const char* format : {"int8", "uint8", "int4", "uint4", "int2", "uint2", "uint8/tensor",
                             "uint8/token/bfloat16", "uint4/token/float32"}) {
    const EncodedPayload payload = EncodeFloats(values, {1, 1, 1, 4}, format);
    EXPECT_EQ(payload.affine()->scale_type, DType::kFloat32) << format;
    for (float value : Decode(payload)) EXPECT_TRUE(std::isfinite(value)) << format;
  }
}

TEST(Encode, AGroupOfZerosHasScaleZero) {
  const std::vector<float> values(64, 0.0f);
  const EncodedPayload payload = EncodeFloats(values, {1, 1, 8, 8}, "uint4/token");
  EXPECT_EQ(payload.affine()->scale_type, DType::kFloat16);
  for (const SharedBytes& bytes : {payload.codes, payload.scales, payload.zero_points}) {
    for (std::byte byte : bytes.span()) EXPECT_EQ(byte, std::byte{0});
  }
}

TEST(Encode, ScalesThatFloat16CannotHoldMakeAllOfThemFloat) {
  auto values = Random({1, 1, 64, 8});
  for (int i = 0; i < 64; ++i) values[i * 8 + 1] = i % 2 == 0 ? 1e-30f : 2e-30f;
  const EncodedPayload payload = EncodeFloats(values, {1, 1, 64, 8}, "int8/channel");
  EXPECT_EQ(payload.affine()->scale_type, DType::kFloat32);
  EXPECT_EQ(FormatOf(payload), PageFormat::Parse("int8/channel/float32"));
}

TEST(Encode, FormatsAreRecognized) {
  const Dims dims{1, 2, 64, 32};
  const auto values = Random(dims);
  for (const char* format : {"int8/tensor", "uint4/channel:32", "int8/channel", "uint2/token:16",
                             "int4/token/bfloat16", "q8_0", "q4_0"}) {
    EXPECT_EQ(FormatOf(EncodeFloats(values, dims, format))->Text(), format);
  }
}

TEST(Encode, AnyTypeAndStrides) {
  const Dims dims{2, 3, 20, 24};
  const auto values = Random(dims);
  std::vector<uint16_t> halves(values.size());
  ConvertElements(DType::kFloat32, values.data(), DType::kFloat16, halves.data(), halves.size());
  std::vector<float> rounded(values.size());
  ConvertElements(DType::kFloat16, halves.data(), DType::kFloat32, rounded.data(), rounded.size());
  ArrayView view = ContiguousView(halves.data(), DType::kFloat16, dims);
  ArrayView turned = ContiguousView(rounded.data(), DType::kFloat32, dims);
  // Channels backwards, in both.
  for (ArrayView* array : {&view, &turned}) {
    array->data += array->strides[3] * 23;
    array->strides[3] *= -1;
  }
  for (const char* format : {"uint4/token:8", "int8/channel"}) {
    const auto a = Decode(Encode(view, PageFormat::Parse(format), ""));
    EXPECT_EQ(a, Decode(Encode(turned, PageFormat::Parse(format), "")));
    EXPECT_NEAR(a[0], rounded[23], 0.3);
  }
}

TEST(Encode, GivenParameters) {
  const float scale = 0.5f;
  const uint8_t zero_point = 3;
  const std::vector<float> values{-2, -1.5f, 0, 0.25f, 0.75f, 100};
  AffineLayout layout{PageType::kUInt8, DType::kFloat32, AffineLayout::Shape::kScalar, 0, 0};
  const EncodedPayload payload =
      EncodeWith(ContiguousView(values.data(), DType::kFloat32, {1, 1, 2, 3}), layout,
                 CopyBytes(&scale, sizeof scale), CopyBytes(&zero_point, 1));
  EXPECT_EQ(Decode(payload), (std::vector<float>{-1.5f, -1.5f, 0, 0, 1, 100}));
}

TEST(Encode, RowRanges) {
  const Dims dims{2, 2, 9, 5};
  const auto values = Random(dims);
  const EncodedPayload payload = EncodeFloats(values, dims, "uint2/token:2");
  const auto all = Decode(payload);
  std::vector<float> part(3 * 5);
  DecodeRows(payload, 1, 0, 4, 3, DType::kFloat32, part.data());
  EXPECT_EQ(part, std::vector<float>(all.begin() + (2 * 9 + 4) * 5, all.begin() + (2 * 9 + 7) * 5));
}

std::string ErrorOf(const std::vector<float>& values, const Dims& dims, const char* format) {
  try {
    CheckEncodable(ContiguousView(values.data(), DType::kFloat32, dims), PageFormat::Parse(format),
                   "key");
  } catch (const ValueError& error) {
    return error.code() + " " + error.path();
  }
  return "";
}

TEST(CheckEncodable, RefusesWhatCannotBeStored) {
  std::vector<float> values(64, 1);
  EXPECT_EQ(ErrorOf(values, {1, 1, 2, 32}, "q8_0"), "");
  EXPECT_EQ(ErrorOf(values, {1, 1, 4, 16}, "q8_0"), "quant.width key");
  for (float special : {NAN, INFINITY, -INFINITY}) {
    values[40] = special;
    for (const char* format : {"int8", "uint2/tensor", "q4_0"}) {
      EXPECT_EQ(ErrorOf(values, {1, 1, 2, 32}, format), "quant.not_finite key");
    }
  }
  values[40] = -3e38f;
  EXPECT_EQ(ErrorOf(values, {1, 1, 2, 32}, "int8"), "");
  EXPECT_EQ(ErrorOf(values, {1, 1, 2, 32}, "q8_0"), "quant.overflow key");
}

}  // namespace
}  // namespace onnx_light
