// The element types of dense keys and values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "onnx_light/export.h"

namespace onnx_light {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16, kFloat8E4M3FN, kFloat8E5M2 };

inline constexpr std::array kDTypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                       DType::kFloat8E4M3FN, DType::kFloat8E5M2};

// Bytes of one element.
constexpr int64_t ElementSize(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      return 1;
  }
  return 0;
}

// The name that numpy and ml_dtypes use: "float32", "float16", "bfloat16", "float8_e4m3fn",
// "float8_e5m2".
ONNX_LIGHT_EXPORT std::string_view Name(DType dtype);

// The inverse of Name(); nothing for any other text.
ONNX_LIGHT_EXPORT std::optional<DType> ParseDType(std::string_view name);

// The number in onnx.TensorProto.DataType, and back; nothing for a number of another type.
ONNX_LIGHT_EXPORT int32_t TensorDataType(DType dtype);
ONNX_LIGHT_EXPORT std::optional<DType> DTypeOfTensor(int64_t data_type);

}  // namespace onnx_light
