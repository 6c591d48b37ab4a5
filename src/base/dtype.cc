#include "onnx_light/dtype.h"

namespace onnx_light {

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat8E4M3FN:
      return "float8_e4m3fn";
    case DType::kFloat8E5M2:
      return "float8_e5m2";
  }
  return "";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (DType dtype : kDTypes) {
    if (Name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

int32_t TensorDataType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 1;
    case DType::kFloat16:
      return 10;
    case DType::kBFloat16:
      return 16;
    case DType::kFloat8E4M3FN:
      return 17;
    case DType::kFloat8E5M2:
      return 19;
  }
  return 0;
}

std::optional<DType> DTypeOfTensor(int64_t data_type) {
  for (DType dtype : kDTypes) {
    if (TensorDataType(dtype) == data_type) return dtype;
  }
  return std::nullopt;
}

}  // namespace onnx_light
