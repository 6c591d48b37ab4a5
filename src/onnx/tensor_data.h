// The data of a TensorProto as bytes, whichever of its fields holds them.
#pragma once

#include <string>

#include "onnx_light/bytes.h"
#include "onnx_light/dtype.h"
#include "onnx_light/messages.h"

namespace onnx_light {

// The bytes of a string field: shared where it is a payload, else copied.
SharedBytes FieldBytes(const String& field);

// The elements of a tensor whose data_type is `dtype`, not checked against its dims. Raw data are
// shared as FieldBytes() does, typed data converted. ValueError at `path`: `cache.missing` without
// data, `cache.data` for typed data that do not fit the type or come together with raw data,
// `cache.external` for data in another file.
SharedBytes ReadTensorData(const TensorProto& tensor, DType dtype, const std::string& path);

// The same for integers of 8 bits and fewer, whose int32_data hold one byte of raw data each; bytes
// of INT8 may be negative.
SharedBytes ReadByteData(const TensorProto& tensor, const std::string& path);

}  // namespace onnx_light
