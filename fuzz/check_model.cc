// Validation. The input is a ModelProto.
#include "fuzz.h"
#include "onnx_light/cache_proto.h"
#include "onnx_light/check.h"

namespace onnx_light::fuzz {
namespace {

bool IsValid(const ModelProto& model) {
  try {
    CheckModel(model);
    return true;
  } catch (const ValueError& error) {
    Check(!error.code().empty() && !error.message().empty(), "an error says what");
    return false;
  }
}

// Caches without data in other files.
void CheckCaches(const ModelProto& model) {
  for (const PagedCacheProto* cache : model.graph().paged_cache_initializer()) {
    try {
      CacheFromProto(*cache, 4, "", {}, &model);
    } catch (const ValueError& error) {
      Check(error.code() == "cache.external", "a valid cache can be made");
    }
  }
}

void Run(Input input) {
  Owned<ModelProto> model;
  try {
    Parse(model.arena(), ModelProto::kInfo, *model, {input.Rest(), {}});
  } catch (const ParseError&) {
    return;
  }
  const std::string before = Write(ModelProto::kInfo, *model);
  const bool is_valid = IsValid(*model);
  Check(Write(ModelProto::kInfo, *model) == before, "checking changes nothing");
  if (is_valid) CheckCaches(*model);
  KeepStandardPart(model.arena(), *model);
  Check(!model->has_struct_types(), "nothing of this project is left");
  if (is_valid) Check(IsValid(*model), "the standard part of a valid model is valid");
}

}  // namespace
}  // namespace onnx_light::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnx_light::fuzz::Run({data, size});
  return 0;
}
