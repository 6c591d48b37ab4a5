#include "snapshot/payload_form.h"

#include <gtest/gtest.h>

#include <string>

#include "snapshot/fields.h"

namespace onnx_light::snapshot {
namespace {

using Shape = AffineLayout::Shape;

AffineForm Affine(PageType type, DType scales, Shape shape, int axis, int64_t block, bool zero) {
  return {{type, scales, shape, axis, block}, zero};
}

TEST(PayloadForm, Texts) {
  const std::pair<const char*, PayloadForm> cases[] = {
      {"bfloat16", DType::kBFloat16},
      {"q4_0", onnx_light::RecordLayout{PageType::kQ4_0}},
      {"int8/tensor", Affine(PageType::kInt8, DType::kFloat16, Shape::kScalar, 0, 0, false)},
      {"uint4/channel:32", Affine(PageType::kUInt4, DType::kFloat16, Shape::kBlocked, 2, 32, true)},
      {"int2/token:7/float32/zero_points",
       Affine(PageType::kInt2, DType::kFloat32, Shape::kBlocked, 3, 7, true)},
      {"uint8/axis:3/bfloat16/no_zero_points",
       Affine(PageType::kUInt8, DType::kBFloat16, Shape::kAxis, 3, 0, false)},
      {"int4/axis:1:9223372036854775807",
       Affine(PageType::kInt4, DType::kFloat16, Shape::kBlocked, 1, INT64_MAX, false)},
  };
  for (const auto& [text, form] : cases) {
    EXPECT_EQ(FormText(form), text);
    EXPECT_EQ(ParseForm(text), form) << text;
  }
}

TEST(PayloadForm, OtherTexts) {
  for (const char* text : {"",
                           "float64",
                           "f16",
                           "int8",
                           "int8/",
                           "int8/row",
                           "int8/channel",
                           "int8/channel:0",
                           "int8/channel:-1",
                           "int8/channel:01",
                           "int8/channel:1x",
                           "int8/channel:1:2",
                           "int8/axis",
                           "int8/axis:4",
                           "int8/axis:2:8",
                           "int8/axis:3:8",
                           "int8/axis:1:2:3",
                           "int8/tensor:1",
                           "int8/tensor/float16",
                           "int8/tensor/float8_e5m2",
                           "int8/tensor/no_zero_points",
                           "uint8/tensor/zero_points",
                           "uint8/tensor/no_zero_points/float32",
                           "int8/tensor/",
                           "q8_0/",
                           "q8_0/tensor",
                           "float16/tensor",
                           "int8/axis:1:9223372036854775808"}) {
    EXPECT_FALSE(ParseForm(text)) << text;
  }
}

TEST(PayloadForm, Sizes) {
  const auto sizes = SizesOf(*ParseForm("uint4/channel:32"), {1, 2, 65, 3});
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->scales, 1u * 2 * 3 * 3 * 2);
  EXPECT_EQ(sizes->zero_points, (1u * 2 * 3 * 3 + 1) / 2);
  EXPECT_EQ(sizes->data, 1u * 2 * 65 * 3 / 2);
  EXPECT_FALSE(SizesOf(*ParseForm("q8_0"), {1, 1, 1, 33}));
  EXPECT_EQ(SizesOf(*ParseForm("q8_0"), {1, 1, 1, 32})->data, 34u);
  for (const char* text : {"float32", "int8/axis:0:1", "q4_0", "int2/tensor"}) {
    const PayloadForm form = *ParseForm(text);
    EXPECT_FALSE(SizesOf(form, {1, 1, 0, 32})) << text;
    EXPECT_FALSE(SizesOf(form, {1, -1, 1, 32})) << text;
    EXPECT_FALSE(SizesOf(form, {INT64_MAX, INT64_MAX, INT64_MAX, 32})) << text;
    EXPECT_FALSE(SizesOf(form, {1, 1, int64_t{1} << 31, 32})) << text;
  }
}

}  // namespace
}  // namespace onnx_light::snapshot
