#include "onnx_light/page_format.h"

#include <gtest/gtest.h>

#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

std::string ErrorOf(const std::string& text) {
  try {
    PageFormat::Parse(text, "here");
  } catch (const ValueError& error) {
    return error.code() + " " + error.path();
  }
  return "";
}

TEST(PageFormat, EveryTypeHasAName) {
  for (PageType type : kPageTypes) {
    const PageFormat format = PageFormat::Parse(Name(type));
    EXPECT_EQ(format.type(), type);
    EXPECT_EQ(PageFormat::Parse(format.Text()), format);
  }
  for (DType dtype : kDTypes) {
    EXPECT_EQ(PageFormat::Dense(dtype).Text(), Name(dtype));
    EXPECT_EQ(PageFormat::Dense(dtype).dtype(), dtype);
  }
}

TEST(PageFormat, Scales) {
  const PageFormat format = PageFormat::Parse("uint4/channel:32");
  EXPECT_EQ(format.scale(), ScaleKind::kChannel);
  EXPECT_EQ(format.group(), 32);
  EXPECT_EQ(format.scale_type(), DType::kFloat16);
  EXPECT_EQ(format, PageFormat::Affine(PageType::kUInt4, ScaleKind::kChannel, 32));
  EXPECT_EQ(PageFormat::Parse("int8/token/bfloat16").scale_type(), DType::kBFloat16);
  EXPECT_EQ(PageFormat::Parse("i8"), PageFormat::Parse("int8/token"));
}

TEST(PageFormat, TextParsesBack) {
  for (const char* text : {"float16", "int8/tensor", "int8/channel", "uint4/channel:32",
                           "uint2/token:7/float32", "int4/token/bfloat16", "q8_0"}) {
    EXPECT_EQ(PageFormat::Parse(text).Text(), text);
  }
  EXPECT_EQ(PageFormat::Parse("int8/token:4/f16").Text(), "int8/token:4");
}

TEST(PageFormat, WrongTexts) {
  for (const char* text :
       {"", "int9", "int8/", "int8/row", "int8/channel:", "int8/channel:0", "int8/channel:-1",
        "int8/channel:+1", "int8/channel: 1", "int8/channel:1x", "int8/channel:9223372036854775808",
        "int8/tensor:4", "int8/token/int8", "int8/token/float8_e5m2", "int8/token/float16/x",
        "float16/channel", "q8_0/token", "Int8", " int8"}) {
    EXPECT_EQ(ErrorOf(text), "quant.format here") << text;
  }
}

TEST(PageFormat, WrongParts) {
  EXPECT_THROW(PageFormat::Affine(PageType::kFloat16, ScaleKind::kToken), ValueError);
  EXPECT_THROW(PageFormat::Affine(PageType::kQ8_0, ScaleKind::kToken), ValueError);
  EXPECT_THROW(PageFormat::Affine(PageType::kInt8, ScaleKind::kToken, -1), ValueError);
  EXPECT_THROW(PageFormat::Affine(PageType::kInt8, ScaleKind::kTensor, 1), ValueError);
  EXPECT_THROW(PageFormat::Affine(PageType::kInt8, ScaleKind::kToken, 0, DType::kFloat8E5M2),
               ValueError);
}

}  // namespace
}  // namespace onnx_light
