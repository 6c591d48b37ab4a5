#include "wire/packed_varints.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "wire/varint.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace onnx_light {
namespace {

// One varint after the other: a start is known only when the one before it is decoded.
template <typename T>
const uint8_t* DecodeOneByOne(const uint8_t* p, const uint8_t* end, T* to, const T* limit) {
  uint64_t value = 0;
  while (p < end && to != limit) {
    const uint8_t* next = ReadVarint(p, end, &value);
    if (next == nullptr) return p;
    *to++ = static_cast<T>(value);
    p = next;
  }
  return p;
}

#ifdef __x86_64__

// Bit i: a varint ends in byte i.
inline uint64_t EndsIn64(const uint8_t* p) {
  uint64_t continued = 0;
  for (int i = 0; i < 4; ++i) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
    continued |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(bytes))) << 16 * i;
  }
  return ~continued;
}

// Looks for the ends of 64 bytes at once, so that the decoding of one varint does not wait for the
// one before it. REQUIRES: what the target attribute says.
template <typename T>
__attribute__((target("bmi,bmi2"))) const uint8_t* DecodeByEnds(const uint8_t* p,
                                                                const uint8_t* end, T* to,
                                                                const T* limit) {
  constexpr int kBlock = 64;
  // The loads of a varint reach 7 bytes beyond the block.
  while (end - p >= kBlock + 8 && limit - to >= kBlock) {
    uint64_t ends = EndsIn64(p);
    const uint8_t* const block = p;
    while (ends != 0) {
      const uint8_t* const next = block + _tzcnt_u64(ends) + 1;
      const auto bits = static_cast<uint32_t>(next - p) * 8;
      if (bits > 64) [[unlikely]] {
        uint64_t value = 0;
        if (ReadVarint(p, end, &value) == nullptr) return p;
        *to++ = static_cast<T>(value);
      } else {
        uint64_t word;
        std::memcpy(&word, p, sizeof(word));
        *to++ = static_cast<T>(_pext_u64(_bzhi_u64(word, bits), 0x7f7f7f7f7f7f7f7f));
      }
      p = next;
      ends = _blsr_u64(ends);
    }
    // Ten bytes without an end: the way below finds out what that is.
    if (p == block) break;
  }
  return DecodeOneByOne(p, end, to, limit);
}

// The first two generations of Zen have the instruction, but it takes hundreds of cycles.
bool HasFastPext() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
}

const bool has_fast_pext = HasFastPext();

#endif

}  // namespace

uint64_t CountVarints(const uint8_t* p, const uint8_t* end) {
  // Bytes count in lanes of a byte each, as long as these cannot overflow.
  constexpr int kLanes = 32;
  constexpr int kRounds = 255;
  uint64_t count = 0;
  while (end - p >= kLanes) {
    uint8_t lanes[kLanes] = {};
    const auto rounds = static_cast<int>(std::min<int64_t>(kRounds, (end - p) / kLanes));
    for (int round = 0; round < rounds; ++round, p += kLanes) {
      for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<uint8_t>(lanes[i] + (p[i] < 0x80));
    }
    for (const uint8_t lane : lanes) count += lane;
  }
  for (; p < end; ++p) count += *p < 0x80;
  return count;
}

template <typename T>
const uint8_t* DecodeVarints(const uint8_t* p, const uint8_t* end, T* to, const T* limit) {
#ifdef __x86_64__
  if (has_fast_pext) return DecodeByEnds(p, end, to, limit);
#endif
  return DecodeOneByOne(p, end, to, limit);
}

template const uint8_t* DecodeVarints(const uint8_t*, const uint8_t*, uint64_t*, const uint64_t*);
template const uint8_t* DecodeVarints(const uint8_t*, const uint8_t*, uint32_t*, const uint32_t*);
template const uint8_t* DecodeVarints(const uint8_t*, const uint8_t*, bool*, const bool*);

}  // namespace onnx_light
