// The operators of the domain ai.rt.
#pragma once

#include <span>

#include "runtime/kernel.h"

namespace onnx_light::ort {

// PagedAttention, once for each type of its numbers, QuantizePagedCache and PagedCacheLength.
// They live for ever.
std::span<const Operator> Operators();

}  // namespace onnx_light::ort
