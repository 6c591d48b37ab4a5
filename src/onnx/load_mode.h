// Whether a file is mapped or read.
#pragma once

#include <cstdint>

#include "onnx_light/serialization.h"

namespace onnx_light {

// Below this size a mapping costs more than reading.
inline constexpr uint64_t kSmallestAutoMapping = 64 << 10;

constexpr bool MapsFile(FileLoadMode mode, uint64_t size) {
  return mode == FileLoadMode::kMmap ||
         (mode == FileLoadMode::kAuto && size >= kSmallestAutoMapping);
}

}  // namespace onnx_light
