#include "base/convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace onnx_light {
namespace {

// A binary floating-point type with the layout sign, exponent, mantissa and IEEE 754's bias.
// `has_infinity` is false where the largest exponent holds numbers and only all ones are NaN.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  constexpr int Bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint32_t SignBit() const { return 1u << (exponent_bits + mantissa_bits); }
  constexpr uint32_t Infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  constexpr uint32_t NaN() const {
    return has_infinity ? Infinity() | 1u << (mantissa_bits - 1) : SignBit() - 1;
  }
  // What a value beyond the largest number becomes; every smaller pattern is a finite number.
  constexpr uint32_t Overflow() const { return has_infinity ? Infinity() : NaN(); }
};

constexpr Format kHalf{5, 10, true};
constexpr Format kBrain{8, 7, true};
constexpr Format kE4M3{4, 3, false};
constexpr Format kE5M2{5, 2, true};

constexpr int kFloatMantissa = 23;
constexpr int kFloatBias = 127;
constexpr uint32_t kFloatSign = 0x80000000u;
constexpr uint32_t kFloatInfinity = 0x7f800000u;

// Both ways compute all cases and select one, without branches, so that the compiler makes vectors
// of the loops. Magnitudes are below 2^31 and compared as signed numbers, as vectors can.

template <Format kFormat>
inline uint32_t Narrow(float value) {
  constexpr int kShift = kFloatMantissa - kFormat.mantissa_bits;
  constexpr int kBiasChange = kFloatBias - kFormat.Bias();
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> (31 - kFormat.exponent_bits - kFormat.mantissa_bits);
  const auto magnitude = static_cast<int32_t>(bits & ~kFloatSign);
  const uint32_t odd = (bits >> kShift) & 1;
  const uint32_t rounded = ((bits & ~kFloatSign) + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
  int32_t result = static_cast<int32_t>(rounded) - (kBiasChange << kFormat.mantissa_bits);
  if constexpr (kBiasChange > 0) {
    // Below the smallest normal number. The sum's last place is the target's smallest number, so
    // the addition itself rounds.
    constexpr float kMagic = std::bit_cast<float>(
        static_cast<uint32_t>(kFloatBias + 1 - kFormat.Bias() + kShift) << kFloatMantissa);
    const auto small = std::bit_cast<int32_t>(std::bit_cast<float>(magnitude) + kMagic) -
                       std::bit_cast<int32_t>(kMagic);
    result = magnitude < (kBiasChange + 1) << kFloatMantissa ? small : result;
  }
  constexpr auto kOverflow = static_cast<int32_t>(kFormat.Overflow());
  result = result < kOverflow ? result : kOverflow;
  result = magnitude > static_cast<int32_t>(kFloatInfinity) ? static_cast<int32_t>(kFormat.NaN())
                                                            : result;
  return (sign & kFormat.SignBit()) | static_cast<uint32_t>(result);
}

template <Format kFormat>
constexpr float Widen(uint32_t bits) {
  constexpr int kShift = kFloatMantissa - kFormat.mantissa_bits;
  constexpr int kSignShift = 31 - kFormat.exponent_bits - kFormat.mantissa_bits;
  const uint32_t sign = (bits & kFormat.SignBit()) << kSignShift;
  const auto magnitude = static_cast<int32_t>(bits & (kFormat.SignBit() - 1));
  const int32_t moved = magnitude << kShift;
  // Exponent and mantissa moved as they are give the value times a power of two, and subnormal
  // numbers come out right, too; the product puts the bias right and is exact.
  constexpr float kScale = std::bit_cast<float>(
      static_cast<uint32_t>(kFloatBias + kFloatBias - kFormat.Bias()) << kFloatMantissa);
  int32_t result = kFormat.Bias() == kFloatBias
                       ? moved
                       : std::bit_cast<int32_t>(std::bit_cast<float>(moved) * kScale);
  constexpr auto kInfinity = static_cast<int32_t>(kFormat.Infinity());
  constexpr int32_t kLargest =
      kFormat.has_infinity ? kInfinity : static_cast<int32_t>(kFormat.NaN()) - 1;
  constexpr auto kSpecial = static_cast<int32_t>(kFloatInfinity);
  result = magnitude > kLargest ? moved | kSpecial | 1 << 22 : result;
  if constexpr (kFormat.has_infinity) result = magnitude == kInfinity ? kSpecial : result;
  return std::bit_cast<float>(sign | static_cast<uint32_t>(result));
}

template <Format kFormat>
constexpr std::array<float, 256> WidenTable() {
  std::array<float, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) table[i] = Widen<kFormat>(i);
  return table;
}

template <typename T>
inline T Load(const void* source, uint64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(source) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
inline void Store(void* target, uint64_t index, T value) {
  std::memcpy(static_cast<std::byte*>(target) + index * sizeof(T), &value, sizeof(T));
}

template <Format kFormat, typename T>
void WidenAll(const void* source, float* target, uint64_t count) {
  if constexpr (sizeof(T) == 1) {
    static constexpr std::array<float, 256> kTable = WidenTable<kFormat>();
    for (uint64_t i = 0; i < count; ++i) target[i] = kTable[Load<T>(source, i)];
  } else {
    for (uint64_t i = 0; i < count; ++i) target[i] = Widen<kFormat>(Load<T>(source, i));
  }
}

template <Format kFormat, typename T>
void NarrowAll(const float* source, void* target, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    Store(target, i, static_cast<T>(Narrow<kFormat>(source[i])));
  }
}

void ToFloats(DType from, const void* source, float* target, uint64_t count) {
  switch (from) {
    case DType::kFloat32:
      std::memcpy(target, source, count * sizeof(float));
      return;
    case DType::kFloat16:
      return WidenAll<kHalf, uint16_t>(source, target, count);
    case DType::kBFloat16:
      return WidenAll<kBrain, uint16_t>(source, target, count);
    case DType::kFloat8E4M3FN:
      return WidenAll<kE4M3, uint8_t>(source, target, count);
    case DType::kFloat8E5M2:
      return WidenAll<kE5M2, uint8_t>(source, target, count);
  }
}

void FromFloats(const float* source, DType to, void* target, uint64_t count) {
  switch (to) {
    case DType::kFloat32:
      std::memcpy(target, source, count * sizeof(float));
      return;
    case DType::kFloat16:
      return NarrowAll<kHalf, uint16_t>(source, target, count);
    case DType::kBFloat16:
      return NarrowAll<kBrain, uint16_t>(source, target, count);
    case DType::kFloat8E4M3FN:
      return NarrowAll<kE4M3, uint8_t>(source, target, count);
    case DType::kFloat8E5M2:
      return NarrowAll<kE5M2, uint8_t>(source, target, count);
  }
}

}  // namespace

void ConvertElements(DType from, const void* source, DType to, void* target, uint64_t count) {
  if (from == to) {
    if (count != 0) std::memcpy(target, source, count * ElementSize(from));
    return;
  }
  // Through floats, a stretch that stays in the first-level cache at a time. Widening is exact, so
  // there is one rounding only.
  constexpr uint64_t kStretch = 256;
  std::array<float, kStretch> floats;
  const auto* in = static_cast<const std::byte*>(source);
  auto* out = static_cast<std::byte*>(target);
  while (count != 0) {
    const uint64_t n = std::min(count, kStretch);
    ToFloats(from, in, floats.data(), n);
    FromFloats(floats.data(), to, out, n);
    in += n * ElementSize(from);
    out += n * ElementSize(to);
    count -= n;
  }
}

float ToFloat(DType from, const void* source) {
  float value;
  ToFloats(from, source, &value, 1);
  return value;
}

}  // namespace onnx_light
