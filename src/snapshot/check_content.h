// What a snapshot can hold.
#pragma once

#include <string_view>

#include "onnx_light/snapshot_content.h"

namespace onnx_light::snapshot {

// Throws what SnapshotWriter's constructor says, but for sizes.
void CheckContent(const SnapshotContent& content);

// Whether the text is well-formed UTF-8, as protobuf wants strings.
bool IsUtf8(std::string_view text);

}  // namespace onnx_light::snapshot
