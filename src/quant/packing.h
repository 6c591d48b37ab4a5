// Codes below 8 bits: low bits first, flat over a whole array.
#pragma once

#include <cstddef>
#include <cstdint>

#include "onnx_light/encoded_payload.h"

namespace onnx_light {

// Bytes of `count` codes. REQUIRES: count >= 0.
constexpr int64_t PackedSize(int64_t count, int bits) {
  const int64_t in_byte = 8 / bits;
  return count / in_byte + (count % in_byte != 0 ? 1 : 0);
}

// Stores the codes [first, first + count) of an array, of which only the low bits count.
// REQUIRES: where a code shares its byte with others, its own bits are zero.
void PackCodes(const uint8_t* codes, int64_t count, int bits, int64_t first, std::byte* array);

// The codes [first, first + count) of an array, one in a byte; signed ones as int8_t.
void UnpackCodes(const std::byte* array, PageType type, int64_t first, int64_t count,
                 uint8_t* codes);

}  // namespace onnx_light
