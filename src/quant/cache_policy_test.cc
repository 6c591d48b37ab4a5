#include "onnx_light/cache_policy.h"

#include <gtest/gtest.h>

#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

std::string ErrorOf(const std::string& text) {
  try {
    CachePolicy::Parse(text);
  } catch (const ValueError& error) {
    return error.code() + " " + error.path();
  }
  return "";
}

TEST(CachePolicy, Options) {
  const CachePolicy policy = CachePolicy::Parse(
      " key=int8/channel\tvalue=uint4/token:64  open=bf16 sink_tokens=4 recent_tokens=128 ");
  EXPECT_EQ(policy.key, PageFormat::Parse("int8/channel"));
  EXPECT_EQ(policy.value, PageFormat::Parse("uint4/token:64"));
  EXPECT_EQ(policy.open, DType::kBFloat16);
  EXPECT_EQ(policy.sink_tokens, 4);
  EXPECT_EQ(policy.recent_tokens, 128);
  EXPECT_EQ(policy.Text(),
            "key=int8/channel value=uint4/token:64 open=bfloat16 sink_tokens=4 recent_tokens=128");
}

TEST(CachePolicy, ASideThatIsNotNamedHasNoFormat) {
  const CachePolicy policy = CachePolicy::Parse("v=q4_0");
  EXPECT_FALSE(policy.key);
  EXPECT_EQ(policy.Text(), "value=q4_0");
}

TEST(CachePolicy, TextParsesBack) {
  CachePolicy tokens_only;
  tokens_only.recent_tokens = 5;
  for (const CachePolicy& policy : {CachePolicy(), tokens_only, CachePolicy::Parse("k=f16 v=q8_0"),
                                    CachePolicy::Parse("open=float16")}) {
    EXPECT_EQ(CachePolicy::Parse(policy.Text()), policy);
  }
}

TEST(CachePolicy, OneWord) {
  for (const PolicyPreset& preset : PolicyPresets()) {
    EXPECT_EQ(CachePolicy::Parse(preset.name), preset.policy);
  }
  EXPECT_EQ(CachePolicy::Parse("int8"), CachePolicy::Parse("k=int8/channel v=int8/token"));
  EXPECT_EQ(CachePolicy::Parse("k8v8"), CachePolicy::Parse("k=uint8/channel v=int8/token"));
  EXPECT_EQ(CachePolicy::Parse("k8v4"), CachePolicy::Parse("k=int8/channel v=uint4/token:32"));
  EXPECT_EQ(CachePolicy::Parse("int4"), CachePolicy::Parse("k=uint4/channel:32 v=uint4/token:64"));
  EXPECT_EQ(CachePolicy::Parse("bf16"), CachePolicy::Parse("k=bfloat16 v=bfloat16"));
}

TEST(CachePolicy, WrongTexts) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "quant.policy policy"},
      {" \n", "quant.policy policy"},
      {"nonsense", "quant.format policy"},
      {"key=", "quant.format key"},
      {"k=int9 v=f16", "quant.format key"},
      {"k=f16 key=f16", "quant.policy key"},
      {"key=f16 nope=1", "quant.policy nope"},
      {"key=f16 int8", "quant.policy int8"},
      {"open=int8", "quant.policy open"},
      {"sink_tokens=-1", "quant.policy sink_tokens"},
      {"recent_tokens=x", "quant.policy recent_tokens"},
      {"recent_tokens=", "quant.policy recent_tokens"},
      {"recent_tokens=9223372036854775808", "quant.policy recent_tokens"},
  };
  for (const auto& [text, error] : cases) EXPECT_EQ(ErrorOf(text), error) << text;
}

TEST(CachePolicy, NegativeTokensAreNotValid) {
  CachePolicy policy;
  policy.sink_tokens = -1;
  EXPECT_THROW(policy.Validate(), ValueError);
}

}  // namespace
}  // namespace onnx_light
