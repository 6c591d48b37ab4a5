#include <exception>
#include <map>
#include <mutex>
#include <string>

#include "onnx_light/errors.h"
#include "onnx_light/onnxruntime.h"
#include "runtime/kernel.h"
#include "runtime/operators.h"
#include "runtime/ort_abi.h"

namespace onnx_light::ort {
namespace {

constexpr const char* kDomain = "ai.rt";
constexpr const char* kOldest = "1.17";

// That the functions are where they are expected: what is put into a status and a shape comes out
// again. Throws Error.
void TestApi(const OrtApi& api) {
  OrtStatus* status = api.CreateStatus(kInvalidArgument, kDomain);
  const bool same = status != nullptr && api.GetErrorCode(status) == kInvalidArgument &&
                    std::string(api.GetErrorMessage(status)) == kDomain;
  if (!same) throw ValueError("runtime.interface", "", "statuses do not work");
  api.ReleaseStatus(status);

  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(api, api.CreateTensorTypeAndShapeInfo(&info));
  const int64_t dims[] = {3, 5};
  Check(api, api.SetTensorElementType(info, kFloat16));
  Check(api, api.SetDimensions(info, dims, 2));
  ElementType type = kUndefined;
  size_t rank = 0;
  int64_t found[2] = {};
  Check(api, api.GetTensorElementType(info, &type));
  Check(api, api.GetDimensionsCount(info, &rank));
  if (rank == 2) Check(api, api.GetDimensions(info, found, rank));
  api.ReleaseTensorTypeAndShapeInfo(info);
  if (type != kFloat16 || rank != 2 || found[0] != dims[0] || found[1] != dims[1]) {
    throw ValueError("runtime.interface", "", "shapes do not work");
  }
  const bool complete =
      api.KernelContext_GetInput != nullptr && api.KernelContext_GetOutput != nullptr &&
      api.KernelInfo_GetNodeName != nullptr && api.KernelContext_ParallelFor != nullptr;
  if (!complete) throw ValueError("runtime.interface", "", "functions are missing");
}

// The domain with all operators. One for each copy of ONNX Runtime in the process, kept for ever:
// sessions go on using it.
OrtCustomOpDomain* Domain(const OrtApi& api) {
  static auto* mutex = new std::mutex;
  static auto* domains = new std::map<const OrtApi*, OrtCustomOpDomain*>;
  const std::lock_guard lock(*mutex);
  OrtCustomOpDomain*& domain = (*domains)[&api];
  if (domain != nullptr) return domain;
  TestApi(api);
  OrtCustomOpDomain* made = nullptr;
  Check(api, api.CreateCustomOpDomain(kDomain, &made));
  for (const Operator& op : Operators()) Check(api, api.CustomOpDomain_Add(made, &op));
  return domain = made;
}

OrtStatus* Register(OrtSessionOptions* options, const OrtApiBase& base) {
  const std::string version = base.GetVersionString();
  const OrtApi* api = base.GetApi(kApiVersion);
  const auto refuse = [&](const OrtApi& old, const std::string& why) {
    const std::string text =
        "[runtime.version] onnx_light cannot work with ONNX Runtime " + version + ": " + why;
    return old.CreateStatus(kFail, text.c_str());
  };
  if (api == nullptr) {
    // The first table has CreateStatus at the same place.
    const OrtApi* first = base.GetApi(1);
    return refuse(*first, std::string("at least ") + kOldest + " is needed");
  }
  try {
    return api->AddCustomOpDomain(options, Domain(*api));
  } catch (const std::exception& error) {
    return refuse(*api, error.what());
  }
}

}  // namespace
}  // namespace onnx_light::ort

void* RegisterCustomOps(void* options, const void* api_base) {
  using namespace onnx_light::ort;  // NOLINT: a C function in the global namespace
  return Register(static_cast<OrtSessionOptions*>(options),
                  *static_cast<const OrtApiBase*>(api_base));
}
