// Scales and zero points that somebody chose, and not the quantizer of this library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "onnx_light/dtype.h"
#include "onnx_light/page_format.h"

namespace onnx_light {

// A tensor of scales and one of zero points with the same shape, which is empty (one of each for a
// whole page) or has four dims, for batch, heads, tokens and width of a page: each 1, or the page's
// dim divided by the length of a block, rounded up. Arrays are in C order and not aligned; those of
// zero points below 8 bits are packed, low bits first.
struct QuantizationParameters {
  std::optional<PageType> code_type;   // kInt8 to kUInt2; nothing: plain FLOAT numbers, no codes
  DType scale_type = DType::kFloat32;  // kFloat32, kFloat16 or kBFloat16
  std::span<const int64_t> shape;
  const std::byte* scales = nullptr;
  const std::byte* zero_points = nullptr;
};

}  // namespace onnx_light
