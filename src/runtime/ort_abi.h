// The part of ONNX Runtime's C interface that custom operators need, in our own declarations: the
// library neither includes its headers nor links it. The table of functions only ever grows at its
// end, so what API version 17 has lies at the same places in every later version. ort_abi_test.cc
// compares with the real header where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnx_light::ort {

inline constexpr uint32_t kApiVersion = 17;

// Objects of ONNX Runtime that are known by their addresses only.
struct OrtStatus;
struct OrtCustomOpDomain;
struct OrtSessionOptions;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtKernelInfo;
struct OrtKernelContext;

// OrtErrorCode.
enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };

// ONNXTensorElementDataType, as far as it is needed.
enum ElementType : int {
  kUndefined = 0,  // as the type of an input: any
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kInt64 = 7,
  kBool = 9,
  kFloat16 = 10,
  kBFloat16 = 16,
  kUInt4 = 21,
  kInt4 = 22,
};

// OrtCustomOpInputOutputCharacteristic.
enum Presence : int { kRequired = 0, kOptional = 1 };

// OrtMemType.
enum MemoryType : int { kDefaultMemory = 0 };

// Functions that return a status give null when they succeeded.
struct OrtApi {
  OrtStatus* (*CreateStatus)(ErrorCode code, const char* message);  // slot 0
  ErrorCode (*GetErrorCode)(const OrtStatus* status);
  const char* (*GetErrorMessage)(const OrtStatus* status);
  void* unused_3[23];
  OrtStatus* (*CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out);  // 26
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const struct OrtCustomOp* op);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);
  void* unused_29[22];
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** out);  // 51
  void* unused_52[5];
  OrtStatus* (*CreateTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo** out);  // 57
  OrtStatus* (*SetTensorElementType)(OrtTensorTypeAndShapeInfo* info, ElementType type);
  OrtStatus* (*SetDimensions)(OrtTensorTypeAndShapeInfo* info, const int64_t* dims, size_t count);
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo* info, ElementType* out);
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, size_t* out);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t count);
  void* unused_63[2];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** out);
  void* unused_66[19];
  OrtStatus* (*KernelInfoGetAttribute_float)(const OrtKernelInfo* info, const char* name,
                                             float* out);  // 85
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name,
                                             int64_t* out);
  // `size` counts the final zero. With a null `out` it is only set.
  OrtStatus* (*KernelInfoGetAttribute_string)(const OrtKernelInfo* info, const char* name,
                                              char* out, size_t* size);
  OrtStatus* (*KernelContext_GetInputCount)(const OrtKernelContext* context, size_t* out);
  OrtStatus* (*KernelContext_GetOutputCount)(const OrtKernelContext* context, size_t* out);
  // `out` is null where an optional input is absent.
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext* context, size_t index,
                                       const OrtValue** out);
  // `out` is null where nobody takes an optional output.
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext* context, size_t index,
                                        const int64_t* dims, size_t count, OrtValue** out);
  void* unused_92;
  void (*ReleaseStatus)(OrtStatus* status);  // 93
  void* unused_94[5];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);  // 99
  void* unused_100[144];
  // Sizes as above.
  OrtStatus* (*KernelInfo_GetNodeName)(const OrtKernelInfo* info, char* out, size_t* size);  // 244
  void* unused_245[29];
  // Calls f(data, i) for each i below `total` on the threads of the session. `batches` 0: as many
  // at once as there are threads.
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext* context,
                                          void (*f)(void* data, size_t index), size_t total,
                                          size_t batches, void* data);  // 274
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // null where the version is too new
  const char* (*GetVersionString)();
};

// What ONNX Runtime asks of an operator. Members that are null have a default, or another one that
// is used instead.
struct OrtCustomOp {
  uint32_t version = kApiVersion;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*) = nullptr;
  const char* (*GetName)(const OrtCustomOp*) = nullptr;
  const char* (*GetExecutionProviderType)(const OrtCustomOp*) = nullptr;
  ElementType (*GetInputType)(const OrtCustomOp*, size_t index) = nullptr;
  size_t (*GetInputTypeCount)(const OrtCustomOp*) = nullptr;
  ElementType (*GetOutputType)(const OrtCustomOp*, size_t index) = nullptr;
  size_t (*GetOutputTypeCount)(const OrtCustomOp*) = nullptr;
  void (*KernelCompute)(void* kernel, OrtKernelContext*) = nullptr;
  void (*KernelDestroy)(void* kernel) = nullptr;
  Presence (*GetInputCharacteristic)(const OrtCustomOp*, size_t index) = nullptr;
  Presence (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index) = nullptr;
  MemoryType (*GetInputMemoryType)(const OrtCustomOp*, size_t index) = nullptr;
  int (*GetVariadicInputMinArity)(const OrtCustomOp*) = nullptr;
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*) = nullptr;
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*) = nullptr;
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*) = nullptr;
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*,
                               void** kernel) = nullptr;
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*) = nullptr;
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, void* context) = nullptr;
  int (*GetStartVersion)(const OrtCustomOp*) = nullptr;
  int (*GetEndVersion)(const OrtCustomOp*) = nullptr;
};

}  // namespace onnx_light::ort
