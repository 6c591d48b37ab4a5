// Our declarations of ONNX Runtime's C interface against its header. CMake finds the header in the
// folder that the environment variable ONNX_LIGHT_ORT_INCLUDE names.
#include "runtime/ort_abi.h"

#include <gtest/gtest.h>

#if __has_include(<onnxruntime_c_api.h>)
#include <onnxruntime_c_api.h>

namespace onnx_light {
namespace {

#define EXPECT_SAME_PLACE(Table, member) \
  EXPECT_EQ(offsetof(ort::Table, member), offsetof(::Table, member)) << #member

TEST(OrtAbi, FunctionsLieWhereTheHeaderHasThem) {
  EXPECT_SAME_PLACE(OrtApi, CreateStatus);
  EXPECT_SAME_PLACE(OrtApi, GetErrorCode);
  EXPECT_SAME_PLACE(OrtApi, GetErrorMessage);
  EXPECT_SAME_PLACE(OrtApi, CreateCustomOpDomain);
  EXPECT_SAME_PLACE(OrtApi, CustomOpDomain_Add);
  EXPECT_SAME_PLACE(OrtApi, AddCustomOpDomain);
  EXPECT_SAME_PLACE(OrtApi, GetTensorMutableData);
  EXPECT_SAME_PLACE(OrtApi, CreateTensorTypeAndShapeInfo);
  EXPECT_SAME_PLACE(OrtApi, SetTensorElementType);
  EXPECT_SAME_PLACE(OrtApi, SetDimensions);
  EXPECT_SAME_PLACE(OrtApi, GetTensorElementType);
  EXPECT_SAME_PLACE(OrtApi, GetDimensionsCount);
  EXPECT_SAME_PLACE(OrtApi, GetDimensions);
  EXPECT_SAME_PLACE(OrtApi, GetTensorTypeAndShape);
  EXPECT_SAME_PLACE(OrtApi, KernelInfoGetAttribute_float);
  EXPECT_SAME_PLACE(OrtApi, KernelInfoGetAttribute_int64);
  EXPECT_SAME_PLACE(OrtApi, KernelInfoGetAttribute_string);
  EXPECT_SAME_PLACE(OrtApi, KernelContext_GetInputCount);
  EXPECT_SAME_PLACE(OrtApi, KernelContext_GetOutputCount);
  EXPECT_SAME_PLACE(OrtApi, KernelContext_GetInput);
  EXPECT_SAME_PLACE(OrtApi, KernelContext_GetOutput);
  EXPECT_SAME_PLACE(OrtApi, ReleaseStatus);
  EXPECT_SAME_PLACE(OrtApi, ReleaseTensorTypeAndShapeInfo);
  EXPECT_SAME_PLACE(OrtApi, KernelInfo_GetNodeName);
  EXPECT_SAME_PLACE(OrtApi, KernelContext_ParallelFor);
  EXPECT_SAME_PLACE(OrtApiBase, GetApi);
  EXPECT_SAME_PLACE(OrtApiBase, GetVersionString);
}

TEST(OrtAbi, OperatorsLieWhereTheHeaderHasThem) {
  EXPECT_SAME_PLACE(OrtCustomOp, version);
  EXPECT_SAME_PLACE(OrtCustomOp, CreateKernel);
  EXPECT_SAME_PLACE(OrtCustomOp, GetName);
  EXPECT_SAME_PLACE(OrtCustomOp, GetExecutionProviderType);
  EXPECT_SAME_PLACE(OrtCustomOp, GetInputType);
  EXPECT_SAME_PLACE(OrtCustomOp, GetInputTypeCount);
  EXPECT_SAME_PLACE(OrtCustomOp, GetOutputType);
  EXPECT_SAME_PLACE(OrtCustomOp, GetOutputTypeCount);
  EXPECT_SAME_PLACE(OrtCustomOp, KernelCompute);
  EXPECT_SAME_PLACE(OrtCustomOp, KernelDestroy);
  EXPECT_SAME_PLACE(OrtCustomOp, GetInputCharacteristic);
  EXPECT_SAME_PLACE(OrtCustomOp, GetOutputCharacteristic);
  EXPECT_SAME_PLACE(OrtCustomOp, GetInputMemoryType);
  EXPECT_SAME_PLACE(OrtCustomOp, GetVariadicInputMinArity);
  EXPECT_SAME_PLACE(OrtCustomOp, GetVariadicInputHomogeneity);
  EXPECT_SAME_PLACE(OrtCustomOp, GetVariadicOutputMinArity);
  EXPECT_SAME_PLACE(OrtCustomOp, GetVariadicOutputHomogeneity);
  EXPECT_SAME_PLACE(OrtCustomOp, CreateKernelV2);
  EXPECT_SAME_PLACE(OrtCustomOp, KernelComputeV2);
  EXPECT_SAME_PLACE(OrtCustomOp, InferOutputShapeFn);
  EXPECT_SAME_PLACE(OrtCustomOp, GetStartVersion);
  EXPECT_SAME_PLACE(OrtCustomOp, GetEndVersion);
}

TEST(OrtAbi, NumbersAreThoseOfTheHeader) {
  EXPECT_EQ(int{ort::kFail}, int{ORT_FAIL});
  EXPECT_EQ(int{ort::kInvalidArgument}, int{ORT_INVALID_ARGUMENT});
  EXPECT_EQ(int{ort::kUndefined}, int{ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED});
  EXPECT_EQ(int{ort::kFloat}, int{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT});
  EXPECT_EQ(int{ort::kUInt8}, int{ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8});
  EXPECT_EQ(int{ort::kInt8}, int{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8});
  EXPECT_EQ(int{ort::kInt64}, int{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64});
  EXPECT_EQ(int{ort::kBool}, int{ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL});
  EXPECT_EQ(int{ort::kFloat16}, int{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16});
  EXPECT_EQ(int{ort::kBFloat16}, int{ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16});
  EXPECT_EQ(int{ort::kRequired}, int{INPUT_OUTPUT_REQUIRED});
  EXPECT_EQ(int{ort::kOptional}, int{INPUT_OUTPUT_OPTIONAL});
  EXPECT_EQ(int{ort::kDefaultMemory}, int{OrtMemTypeDefault});
}

}  // namespace
}  // namespace onnx_light
#else
TEST(OrtAbi, FunctionsLieWhereTheHeaderHasThem) {
  GTEST_SKIP() << "onnxruntime_c_api.h is in no include folder; ONNX_LIGHT_ORT_INCLUDE names one";
}
#endif
