// The data of a TensorProto as bytes, whichever of its fields holds them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "onnx_light/bytes.h"
#include "onnx_light/dtype.h"
#include "onnx_light/messages.h"

namespace onnx_light {

// The bytes of a string field: shared where it is a payload, else copied.
SharedBytes FieldBytes(const String& field);

// What to do with data that lie in another file.
enum class OtherFiles {
  kRefuse,  // ValueError `cache.external`
  kSkip,    // they are not looked at
};

// The data of a payload.
struct PayloadData {
  SharedBytes bytes;             // none where they lie in another file
  std::optional<uint64_t> size;  // nothing where only that file could tell
};

// The data of an EncodedValueProto or TensorProto that has them in another file. ValueError
// `cache.external`, unless they are to be skipped, and `external.number`, at `path`.
PayloadData ReadOtherFile(const MessageInfo& info, const Message& message, const std::string& path,
                          OtherFiles other_files);

// The elements of a tensor whose data_type is `dtype`, not checked against its dims. Raw data are
// shared as FieldBytes() does, typed data converted. ValueError at `path`: `cache.missing` without
// data, `cache.data` for typed data that do not fit the type or come together with raw data, and as
// ReadOtherFile().
PayloadData ReadTensorData(const TensorProto& tensor, DType dtype, const std::string& path,
                           OtherFiles other_files = OtherFiles::kRefuse);

// The same for integers of 8 bits and fewer, whose int32_data hold one byte of raw data each; bytes
// of INT8 may be negative.
PayloadData ReadByteData(const TensorProto& tensor, const std::string& path,
                         OtherFiles other_files = OtherFiles::kRefuse);

}  // namespace onnx_light
