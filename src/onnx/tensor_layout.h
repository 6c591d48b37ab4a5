// Where the elements of a TensorProto are, and that there are as many as its dims say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "onnx_light/export.h"
#include "onnx_light/messages.h"

namespace onnx_light {

struct TensorLayout {
  const FieldInfo* field;  // raw_data, a typed field, or external_data
  int64_t count;           // of the elements
  uint64_t raw_size;       // of the elements as raw data, in bytes; 0 for STRING
};

// The bits of one element in raw data, 0 for STRING; nothing for numbers that are no data type.
std::optional<int> ElementBits(int32_t data_type);

// "FLOAT16"; the number of what is no data type.
std::string DataTypeName(int32_t data_type);

// Elements that are external are not counted. Throws ValueError with a path such as
// "<path>.raw_data": `tensor.data_type`, `tensor.segment`, `tensor.dims` (one is negative, or the
// size overflows), `tensor.data` (elements in several fields or in the wrong one), `tensor.size`,
// `external.inline`.
ONNX_LIGHT_EXPORT TensorLayout ReadTensorLayout(const TensorProto& tensor, const std::string& path);

}  // namespace onnx_light
