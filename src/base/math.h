// Checked integer arithmetic, for sizes that come from a file or a caller.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

namespace onnx_light {

// a + b, or nothing if the result does not fit T. Both arguments have one type: an implicit
// conversion would change a value before the check sees it.
template <std::integral T>
constexpr std::optional<T> CheckedAdd(T a, T b) {
  T result{};
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// a - b, or nothing if the result does not fit T.
template <std::integral T>
constexpr std::optional<T> CheckedSub(T a, T b) {
  T result{};
  if (__builtin_sub_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// a * b, or nothing if the result does not fit T.
template <std::integral T>
constexpr std::optional<T> CheckedMul(T a, T b) {
  T result{};
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// The product of factors that are not negative, or nothing if it does not fit. A zero makes it
// zero, whatever comes before it.
constexpr std::optional<int64_t> CheckedProduct(std::span<const int64_t> factors) {
  std::optional<int64_t> product = 1;
  for (int64_t factor : factors) {
    if (factor == 0) return 0;
    if (product) product = CheckedMul(*product, factor);
  }
  return product;
}
constexpr std::optional<int64_t> CheckedProduct(std::initializer_list<int64_t> factors) {
  return CheckedProduct(std::span<const int64_t>(factors.begin(), factors.size()));
}

constexpr bool IsPowerOfTwo(uint64_t value) { return std::has_single_bit(value); }

// a / b, rounded up. REQUIRES: b > 0.
constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The smallest multiple of `multiple` that is at least `value`, or nothing if it does not fit.
// REQUIRES: multiple > 0.
constexpr std::optional<uint64_t> CheckedRoundUp(uint64_t value, uint64_t multiple) {
  return CheckedMul(CeilDiv(value, multiple), multiple);
}

// The same for values that cannot overflow. REQUIRES: multiple > 0 and the result fits.
constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return CeilDiv(value, multiple) * multiple;
}

// Whether [offset, offset + length) lies inside [0, size). Subtracts, so nothing wraps.
constexpr bool RangeFits(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

}  // namespace onnx_light
