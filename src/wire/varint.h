// Variable-length integers of protobuf's wire format: seven bits a byte, low bits first.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "onnx_light/message.h"

namespace onnx_light {

inline constexpr int kMaxVarintSize = 10;

constexpr uint32_t MakeTag(uint32_t number, WireType type) {
  return number << 3 | static_cast<uint32_t>(type);
}

constexpr int VarintSize(uint64_t value) {
  if (value < 0x80) [[likely]]
    return 1;
  return static_cast<int>((static_cast<unsigned>(std::bit_width(value)) * 9 + 64) / 64);
}

constexpr uint8_t* WriteVarint(uint64_t value, uint8_t* p) {
  while (value >= 0x80) {
    *p++ = static_cast<uint8_t>(value | 0x80);
    value >>= 7;
  }
  *p++ = static_cast<uint8_t>(value);
  return p;
}

// Closes the gaps of one bit in eight: eight groups of seven bits become 56 bits.
constexpr uint64_t CompactVarint(uint64_t word) {
  word = (word & 0x007f007f007f007f) | (word & 0x7f007f007f007f00) >> 1;
  word = (word & 0x00003fff00003fff) | (word & 0x3fff00003fff0000) >> 2;
  return (word & 0x000000000fffffff) | (word & 0x0fffffff00000000) >> 4;
}

// Both read functions return the byte behind the varint, or null if it does not end within
// kMaxVarintSize bytes. Bits beyond 64 are dropped, as protobuf does.

// REQUIRES: kMaxVarintSize bytes are readable at `p`.
inline const uint8_t* ReadVarintUnchecked(const uint8_t* p, uint64_t* value) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  const uint64_t stop = ~word & 0x8080808080808080;
  if (stop != 0) [[likely]] {
    *value = CompactVarint(word & (stop ^ (stop - 1)) & 0x7f7f7f7f7f7f7f7f);
    return p + (std::countr_zero(stop) >> 3) + 1;
  }
  uint64_t result = CompactVarint(word & 0x7f7f7f7f7f7f7f7f) | static_cast<uint64_t>(p[8] & 0x7f)
                                                                   << 56;
  if (p[8] >= 0x80) {
    result |= static_cast<uint64_t>(p[9]) << 63;
    if (p[9] >= 0x80) return nullptr;
    *value = result;
    return p + 10;
  }
  *value = result;
  return p + 9;
}

// Null also if the varint does not end before `end`.
inline const uint8_t* ReadVarint(const uint8_t* p, const uint8_t* end, uint64_t* value) {
  if (p < end && *p < 0x80) [[likely]] {
    *value = *p;
    return p + 1;
  }
  if (end - p >= kMaxVarintSize) return ReadVarintUnchecked(p, value);
  uint64_t result = 0;
  for (int shift = 0; p < end && shift < 70; shift += 7) {
    const uint8_t byte = *p++;
    result |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) {
      *value = result;
      return p;
    }
  }
  return nullptr;
}

}  // namespace onnx_light
