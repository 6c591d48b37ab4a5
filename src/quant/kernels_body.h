// The source of the kernels, included once for each instruction set by a file that defines
// ONNX_LIGHT_KERNELS as the name of the namespace. Everything here has internal linkage, and
// nothing of the standard library is used: an inline function that two files compile for two
// instruction sets would be one function for the linker.
//
// The compiler must not contract products and sums (-ffp-contract=off): the bits of a scale must
// not depend on the instruction set. Sums run over the elements of a lane in order, never across
// lanes.
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "quant/kernels.h"

#ifndef ONNX_LIGHT_KERNELS
#error "kernels_body.h is included by the kernels_*.cc alone"
#endif

namespace onnx_light::ONNX_LIGHT_KERNELS {
namespace {  // NOLINT(google-build-namespaces)

constexpr int kWidth = static_cast<int>(kLanes);

// One value in each lane, in as many registers as that takes here. The compiler's own vectors of
// sixteen would do, but it falls back to single elements where they exceed a register.
#if defined(__AVX512F__)
constexpr int kPart = 16;
#elif defined(__AVX2__)
constexpr int kPart = 8;
#else
constexpr int kPart = 4;
#endif
constexpr int kParts = kWidth / kPart;
using FloatPart = float __attribute__((vector_size(4 * kPart)));
using IntPart = int32_t __attribute__((vector_size(4 * kPart)));
using WordPart = uint32_t __attribute__((vector_size(4 * kPart)));

struct Floats {
  FloatPart parts[kParts];
};

template <typename F>
inline Floats ForParts(F f) {
  Floats result;
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) result.parts[p] = f(p);
  return result;
}

inline Floats Splat(float value) {
  return ForParts([=](int) { return value - FloatPart{}; });
}
inline Floats Load(const float* source) {
  return ForParts([=](int p) {
    FloatPart part;
    __builtin_memcpy(&part, source + p * kPart, sizeof(part));
    return part;
  });
}
inline void Store(float* target, const Floats& value) {
  __builtin_memcpy(target, value.parts, sizeof(value.parts));
}

struct Ints {
  IntPart parts[kParts];
};

// The low bytes. Compilers take such loops apart, so that each instruction set has its own way
// here.
inline void StoreBytes(uint8_t* target, const Ints& value) {
#if defined(__AVX512F__)
  const auto bytes = _mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(value.parts[0]));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), bytes);
#elif defined(__AVX2__)
  const __m256i halves = _mm256_packus_epi32(reinterpret_cast<__m256i>(value.parts[0] & 255),
                                             reinterpret_cast<__m256i>(value.parts[1] & 255));
  const __m256i in_order = _mm256_permute4x64_epi64(halves, 0xd8);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(in_order), _mm256_extracti128_si256(in_order, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), bytes);
#elif defined(__SSE2__)
  const __m128i first = _mm_packs_epi32(reinterpret_cast<__m128i>(value.parts[0] & 255),
                                        reinterpret_cast<__m128i>(value.parts[1] & 255));
  const __m128i second = _mm_packs_epi32(reinterpret_cast<__m128i>(value.parts[2] & 255),
                                         reinterpret_cast<__m128i>(value.parts[3] & 255));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm_packus_epi16(first, second));
#else
  for (int i = 0; i < kWidth; ++i) {
    target[i] = static_cast<uint8_t>(value.parts[i / kPart][i % kPart]);
  }
#endif
}

// The bytes of whole numbers, towards zero.
inline void StoreWhole(uint8_t* target, const Floats& value) {
  Ints numbers;
  for (int p = 0; p < kParts; ++p) {
    numbers.parts[p] = __builtin_convertvector(value.parts[p], IntPart);
  }
  StoreBytes(target, numbers);
}

// (With a mask of all lanes: g++ 12 warns of its own header without one.)
// x < y ? x : y and x > y ? x : y, which compilers do not see to be one instruction each.
inline FloatPart Smaller(const FloatPart& x, const FloatPart& y) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatPart>(
      _mm512_maskz_min_ps(0xffff, reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(y)));
#elif defined(__AVX2__)
  return reinterpret_cast<FloatPart>(
      _mm256_min_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256>(y)));
#elif defined(__SSE2__)
  return reinterpret_cast<FloatPart>(
      _mm_min_ps(reinterpret_cast<__m128>(x), reinterpret_cast<__m128>(y)));
#else
  return x < y ? x : y;
#endif
}
inline FloatPart Greater(const FloatPart& x, const FloatPart& y) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatPart>(
      _mm512_maskz_max_ps(0xffff, reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(y)));
#elif defined(__AVX2__)
  return reinterpret_cast<FloatPart>(
      _mm256_max_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256>(y)));
#elif defined(__SSE2__)
  return reinterpret_cast<FloatPart>(
      _mm_max_ps(reinterpret_cast<__m128>(x), reinterpret_cast<__m128>(y)));
#else
  return x > y ? x : y;
#endif
}

inline Floats operator+(const Floats& a, const Floats& b) {
  return ForParts([&](int p) { return a.parts[p] + b.parts[p]; });
}
inline Floats operator-(const Floats& a, const Floats& b) {
  return ForParts([&](int p) { return a.parts[p] - b.parts[p]; });
}
inline Floats operator*(const Floats& a, const Floats& b) {
  return ForParts([&](int p) { return a.parts[p] * b.parts[p]; });
}
inline Floats operator/(const Floats& a, const Floats& b) {
  return ForParts([&](int p) { return a.parts[p] / b.parts[p]; });
}
inline Floats Least(const Floats& a, const Floats& b) {
  return ForParts([&](int p) { return Smaller(b.parts[p], a.parts[p]); });
}
inline Floats Most(const Floats& a, const Floats& b) {
  return ForParts([&](int p) { return Greater(b.parts[p], a.parts[p]); });
}

// Added to a number it rounds it, ties to even, and leaves it in the low bits: 2^23 + 2^22.
// REQUIRES: magnitudes are below 2^22.
constexpr float kRounder = 12582912.0f;

// To the nearest whole number, ties to even. REQUIRES: magnitudes are below 2^22.
inline Floats Round(const Floats& value) {
  const Floats rounder = Splat(kRounder);
  return (value + rounder) - rounder;
}

// A NaN comes out as `least`.
inline Floats Clamp(const Floats& value, const Floats& least, const Floats& most) {
  return ForParts(
      [&](int p) { return Smaller(Greater(value.parts[p], least.parts[p]), most.parts[p]); });
}

inline float LeastLane(const Floats& value) {
  float lanes[kWidth];
  Store(lanes, value);
#if defined(__SSE2__)
  const __m128 halves = _mm_min_ps(_mm_min_ps(_mm_loadu_ps(lanes), _mm_loadu_ps(lanes + 4)),
                                   _mm_min_ps(_mm_loadu_ps(lanes + 8), _mm_loadu_ps(lanes + 12)));
  const __m128 pair = _mm_min_ps(halves, _mm_movehl_ps(halves, halves));
  return _mm_cvtss_f32(_mm_min_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
#else
  for (int i = 1; i < kWidth; ++i) lanes[0] = lanes[i] < lanes[0] ? lanes[i] : lanes[0];
  return lanes[0];
#endif
}

inline bool AnyLane(const IntPart& lanes) {
#if defined(__AVX512F__)
  const auto own = reinterpret_cast<__m512i>(lanes);
  return _mm512_test_epi32_mask(own, own) != 0;
#elif defined(__AVX2__)
  const auto own = reinterpret_cast<__m256i>(lanes);
  return _mm256_testz_si256(own, own) == 0;
#else
  int32_t any = 0;
  for (int i = 0; i < kPart; ++i) any |= lanes[i];
  return any != 0;
#endif
}

// Magnitudes as the whole numbers of their bits: in the same order, with NaN above all.
inline IntPart Magnitude(const FloatPart& value) {
  return reinterpret_cast<IntPart>(value) & 0x7fffffff;
}
inline int32_t MagnitudeBits(float value) {
  int32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffff;
}
inline IntPart Larger(const IntPart& a, const IntPart& b) { return a > b ? a : b; }

bool AreWithin(const FloatBlock& rows, float most) {
  IntPart largest[kParts] = {};
  for (int64_t token = 0; token < rows.tokens; ++token) {
    const float* row = rows.values + token * rows.stride;
    for (int64_t i = 0; i < rows.width; i += kWidth) {
      const Floats value = Load(row + i);
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        largest[p] = Larger(largest[p], Magnitude(value.parts[p]));
      }
    }
  }
  for (int p = 1; p < kParts; ++p) largest[0] = Larger(largest[0], largest[p]);
  return !AnyLane(largest[0] > MagnitudeBits(most));
}

// Ranges of `kCount` stretches of columns, from row to row as they lie in memory.
template <int kCount>
inline void WidenColumns(const FloatBlock& rows, int64_t column, float* low, float* high,
                         IntPart& largest) {
  Floats least[kCount], most[kCount];
  for (int k = 0; k < kCount; ++k) least[k] = Load(low + column + k * kWidth);
  for (int k = 0; k < kCount; ++k) most[k] = Load(high + column + k * kWidth);
  IntPart magnitude = largest;
  for (int64_t token = 0; token < rows.tokens; ++token) {
    const float* row = rows.values + token * rows.stride + column;
#pragma GCC unroll 8
    for (int k = 0; k < kCount; ++k) {
      const Floats value = Load(row + k * kWidth);
      least[k] = Least(least[k], value);
      most[k] = Most(most[k], value);
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) magnitude = Larger(magnitude, Magnitude(value.parts[p]));
    }
  }
  largest = magnitude;
  for (int k = 0; k < kCount; ++k) Store(low + column + k * kWidth, least[k]);
  for (int k = 0; k < kCount; ++k) Store(high + column + k * kWidth, most[k]);
}

inline bool IsFinite(const IntPart& largest) { return !AnyLane(largest >= 0x7f800000); }

bool WidenRanges(const FloatBlock& rows, float* low, float* high) {
  constexpr int kMost = kParts == 1 ? 8 : 2;  // as many as there are registers for
  IntPart largest{};
  int64_t i = 0;
  for (; i + kMost * kWidth <= rows.width; i += kMost * kWidth) {
    WidenColumns<kMost>(rows, i, low, high, largest);
  }
  for (; i < rows.width; i += kWidth) WidenColumns<1>(rows, i, low, high, largest);
  return IsFinite(largest);
}

// Of stretches of lanes, with the magnitudes of all.
inline void RangeOfLanes(const float* values, int64_t count, float* low, float* high,
                         IntPart& largest) {
  Floats least = Load(values), most = least;
  for (int64_t i = 0; i < count; i += kWidth) {
    const Floats value = Load(values + i);
    least = Least(least, value);
    most = Most(most, value);
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) largest = Larger(largest, Magnitude(value.parts[p]));
  }
  *low = LeastLane(least);
  *high = -LeastLane(Splat(0) - most);
}

inline void FindRange(const float* values, int64_t count, float* low, float* high) {
  float least = values[0], most = values[0];
  int64_t i = 0;
  if (count >= kWidth) {
    Floats least_parts = Load(values), most_parts = least_parts;
    for (i = kWidth; i + kWidth <= count; i += kWidth) {
      const Floats value = Load(values + i);
      least_parts = Least(least_parts, value);
      most_parts = Most(most_parts, value);
    }
    least = LeastLane(least_parts);
    most = -LeastLane(Splat(0) - most_parts);
  }
  for (; i < count; ++i) {
    least = values[i] < least ? values[i] : least;
    most = most < values[i] ? values[i] : most;
  }
  *low = least;
  *high = most;
}

bool FindRanges(const FloatBlock& rows, int64_t width, int64_t group, float* low, float* high) {
  const bool by_lanes = group % kWidth == 0 && width % group == 0;
  IntPart largest{};
  for (int64_t token = 0; token < rows.tokens; ++token) {
    const float* row = rows.values + token * rows.stride;
    for (int64_t i = 0; i < width; i += group, ++low, ++high) {
      const int64_t count = group < width - i ? group : width - i;
      if (by_lanes) {
        RangeOfLanes(row + i, count, low, high, largest);
      } else {
        FindRange(row + i, count, low, high);
      }
    }
  }
  return by_lanes ? IsFinite(largest) : AreWithin(rows, __FLT_MAX__);
}

// ---------------------------------------------------------------------------------------------
// Scales by range

void SignedScales(const float* low, const float* high, int64_t count, float levels, float* scale) {
  const Floats top = Splat(__builtin_floorf(levels / 2));
  for (int64_t i = 0; i < count; i += kWidth) {
    const Floats least = Load(low + i), most = Load(high + i);
    const Floats negative = ForParts([&](int p) { return -least.parts[p]; });
    const Floats size = Most(negative, most), by_range = size / top;
    Store(scale + i, ForParts([&](int p) {
            return least.parts[p] == most.parts[p] ? size.parts[p] : by_range.parts[p];
          }));
  }
}

// As the type of the scales rounds, within its normal numbers; 0 outside them.
inline Floats RoundScale(const ScaleRounding& rounding, const Floats& scale) {
  return ForParts([&](int p) {
    FloatPart rounded = scale.parts[p];
    if (rounding.dropped_bits != 0) {
      const auto bits = reinterpret_cast<WordPart>(rounded);
      const uint32_t unit = 1u << rounding.dropped_bits;
      const WordPart odd = bits >> rounding.dropped_bits & 1u;
      rounded = reinterpret_cast<FloatPart>((bits + (unit / 2 - 1) + odd) & ~(unit - 1));
    }
    const IntPart fits = (rounded >= rounding.least) & (rounded <= rounding.most);
    return fits ? rounded : FloatPart{};
  });
}

bool RoundScales(const ScaleRounding& rounding, const float* low, const float* high, int64_t count,
                 float* scale) {
  if (rounding.dropped_bits == 0) return true;
  IntPart wrong{};
  for (int64_t i = 0; i < count; i += kWidth) {
    const Floats least = Load(low + i), most = Load(high + i);
    const Floats rounded = RoundScale(rounding, Load(scale + i));
    for (int p = 0; p < kParts; ++p) {
      const IntPart is_zero = (least.parts[p] == 0.0f) & (most.parts[p] == 0.0f);
      wrong |= (rounded.parts[p] == 0.0f) & ~is_zero;
    }
    Store(scale + i, rounded);
  }
  return !AnyLane(wrong);
}

// ---------------------------------------------------------------------------------------------
// Codes
//
// A quotient takes several times as long as a product with the reciprocal, and both round to the
// same code unless they lie close to the middle between two. So products are used for a stretch of
// a row or a column, and where one was that close, the stretch is done again with quotients.

struct Codes {
  Floats divisor, reciprocal, least, most, zero_point;
};

// The larger magnitude in each lane. REQUIRES: `largest` has no negative ones, none is NaN.
inline FloatPart LargerMagnitude(const FloatPart& largest, const FloatPart& value) {
#if defined(__AVX512DQ__)
  return reinterpret_cast<FloatPart>(  // of the larger magnitude, without its sign
      _mm512_maskz_range_ps(0xffff, reinterpret_cast<__m512>(largest),
                            reinterpret_cast<__m512>(value), 0xb));
#else
  return Greater(largest, reinterpret_cast<FloatPart>(Magnitude(value)));
#endif
}

inline Codes CodesAt(const CodeParameters& parameters, int64_t i) {
  const auto at = [&](const float* values) {
    return parameters.per_token ? Splat(values[i]) : Load(values + i);
  };
  const Floats divisor = at(parameters.divisor);
  return {divisor, Splat(1) / divisor, at(parameters.least), at(parameters.most),
          at(parameters.zero_point)};
}

// Lanes whose reciprocals are no normal numbers, and say nothing about quotients.
inline IntPart Unusable(const Codes& codes) {
  IntPart lanes{};
  for (int p = 0; p < kParts; ++p) {
    const FloatPart reciprocal = codes.reciprocal.parts[p];
    const FloatPart size = reciprocal < 0.0f ? -reciprocal : reciprocal;
    lanes |= ~((size >= 0x1p-126f) & (size <= 0x1p126f));
  }
  return lanes;
}

// Levels are at most 255 from 0. There product and quotient differ by less than 3 * 255 / 2^24.
constexpr float kNearMiddle = 0.5f - 0x1p-14f;

template <bool exact>
inline void EncodeLanes(const float* row, const Codes& codes, uint8_t* target,
                        FloatPart& farthest) {
  const Floats value = Load(row), rounder = Splat(kRounder);
  const Floats quotient = exact ? value / codes.divisor : value * codes.reciprocal;
  const Floats bounded = Clamp(quotient, codes.least, codes.most);
  const Floats rounded = bounded + rounder;
  if (!exact) {
    const Floats rest = bounded - (rounded - rounder);
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) farthest = LargerMagnitude(farthest, rest.parts[p]);
  }
  const Floats shifted = rounded + codes.zero_point;
  Ints bits;
  __builtin_memcpy(&bits, &shifted, sizeof(bits));
  StoreBytes(target, bits);
}

// `count` stretches of lanes, each so much behind the one before.
template <bool kFetch>
inline void EncodeStretch(const float* row, int64_t row_step, int64_t count, const Codes& given,
                          uint8_t* target, int64_t target_step, const float*& ahead) {
  const Codes codes = given;  // the stores do not change it
  FloatPart farthest{};       // from a level
  for (int64_t i = 0; i < count; ++i) {
    if (kFetch && i % 3 == 0) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += kWidth;
    }
    EncodeLanes<false>(row + i * row_step, codes, target + i * target_step, farthest);
  }
  if (!AnyLane(Unusable(codes) | (farthest > kNearMiddle))) return;
  for (int64_t i = 0; i < count; ++i) {
    EncodeLanes<true>(row + i * row_step, codes, target + i * target_step, farthest);
  }
}

void EncodeRows(const FloatBlock& rows, const CodeParameters& parameters, uint8_t* target) {
  const float* ahead = rows.values + rows.tokens * rows.stride;
  if (parameters.per_token) {
    for (int64_t token = 0; token < rows.tokens; ++token) {
      EncodeStretch<false>(rows.values + token * rows.stride, kWidth, rows.width / kWidth,
                           CodesAt(parameters, token), target + token * rows.width, kWidth, ahead);
    }
  } else {
    for (int64_t i = 0; i < rows.width; i += kWidth) {
      EncodeStretch<true>(rows.values + i, rows.stride, rows.tokens, CodesAt(parameters, i),
                          target + i, rows.width, ahead);
    }
  }
}

// A loop that the compiler turns into vectors by itself: it knows better how to widen bytes.
template <typename Code>
inline void DecodeRow(const uint8_t* __restrict codes, int64_t width, const float* __restrict scale,
                      const float* __restrict zero_point, float* __restrict row) {
  for (int64_t i = 0; i < width / kWidth * kWidth; ++i) {
    const auto code = static_cast<Code>(codes[i]);
    row[i] = (static_cast<float>(static_cast<int32_t>(code)) - zero_point[i]) * scale[i];
  }
}
template <typename Code>
inline void DecodeRowAlike(const uint8_t* __restrict codes, int64_t width, float scale,
                           float zero_point, float* __restrict row) {
  for (int64_t i = 0; i < width / kWidth * kWidth; ++i) {
    const auto code = static_cast<Code>(codes[i]);
    row[i] = (static_cast<float>(static_cast<int32_t>(code)) - zero_point) * scale;
  }
}

template <typename Code>
inline void DecodeBlock(const uint8_t* codes, int64_t tokens, int64_t width, const float* scale,
                        const float* zero_point, bool per_token, float* rows) {
  for (int64_t token = 0; token < tokens; ++token, codes += width, rows += width) {
    if (per_token) {
      DecodeRowAlike<Code>(codes, width, scale[token], zero_point[token], rows);
    } else {
      DecodeRow<Code>(codes, width, scale, zero_point, rows);
    }
  }
}

void DecodeRows(const uint8_t* codes, bool is_signed, int64_t tokens, int64_t width,
                const float* scale, const float* zero_point, bool per_token, float* rows) {
  if (is_signed) {
    DecodeBlock<int8_t>(codes, tokens, width, scale, zero_point, per_token, rows);
  } else {
    DecodeBlock<uint8_t>(codes, tokens, width, scale, zero_point, per_token, rows);
  }
}

// ---------------------------------------------------------------------------------------------
// llama.cpp's records of 32 values: a FLOAT16 scale, then the codes

constexpr int kScaleSize = 2;

// 0 where the scale is so small that it has no reciprocal; its FLOAT16 is 0, too.
inline float Inverse(float scale) {
  const float inverse = 1.0f / scale;
  return __builtin_isfinite(inverse) ? inverse : 0.0f;
}

inline Floats Truncate(const Floats& value) {
  return ForParts([&](int p) {
    return __builtin_convertvector(__builtin_convertvector(value.parts[p], IntPart), FloatPart);
  });
}

// What comes to the nearest whole number, halves away from zero, when it is cut off: almost a half
// more, which a half completes by its own rounding and what is smaller than a half does not.
inline Floats BeforeCut(const Floats& value) {
  return ForParts([&](int p) {
    const IntPart half = (reinterpret_cast<IntPart>(value.parts[p]) & INT32_MIN) | 0x3effffff;
    return value.parts[p] + reinterpret_cast<FloatPart>(half);
  });
}

// The largest of the magnitudes in all lanes.
inline float LargestLane(const Floats& magnitudes) {
  return 0.0f - LeastLane(Splat(0) - magnitudes);  // never -0
}

inline Floats Sizes(const Floats& value) {
  return ForParts([&](int p) { return reinterpret_cast<FloatPart>(Magnitude(value.parts[p])); });
}

void EncodeQ8(const float* values, int64_t records, float* scales, uint8_t* target) {
  constexpr int kValues = 2 * kWidth, kSize = kScaleSize + kValues;
  for (int64_t i = 0; i < records; ++i) {
    const float* record = values + i * kValues;
    scales[i] = LargestLane(Most(Sizes(Load(record)), Sizes(Load(record + kWidth)))) / 127.0f;
  }
  for (int64_t i = 0; i < records; ++i, values += kValues, target += kSize) {
    const Floats inverse = Splat(Inverse(scales[i]));
    StoreWhole(target + kScaleSize, BeforeCut(Load(values) * inverse));
    StoreWhole(target + kScaleSize + kWidth, BeforeCut(Load(values + kWidth) * inverse));
  }
}

// The first value of a record with the largest magnitude; 0 if all are zeros.
inline float LargestOf(const float* values, const Floats& first, const Floats& second) {
  const float low = LeastLane(Least(first, second));
  const float high = -LeastLane(Splat(0) - Most(first, second));
  if (-low != high) return -low > high ? low : high;
  if (high == 0) return 0;
  while (*values != low && *values != high) ++values;
  return *values;
}

void EncodeQ4(const float* values, int64_t records, float* scales, uint8_t* target) {
  for (int64_t i = 0; i < records; ++i, values += 2 * kWidth, target += kScaleSize + kWidth) {
    const Floats first = Load(values), second = Load(values + kWidth);
    scales[i] = LargestOf(values, first, second) / -8.0f;
    const Floats inverse = Splat(Inverse(scales[i])), most = Splat(15);
    const auto codes = [&](const Floats& value) {
      return Least(Truncate(value * inverse + Splat(8.5f)), most);
    };
    StoreWhole(target + kScaleSize, codes(first) + codes(second) * Splat(16));
  }
}

// ---------------------------------------------------------------------------------------------
// The search for scales
//
// Tried are the scale by range times a row of factors, with the zero points that keep the low end,
// the high end or the middle of the range; then the scale that fits the best codes so far in the
// least squares. What is tried is judged with products by the reciprocal, which cost a fraction of
// quotients; what is taken must have a lower error than the scale by range with the codes as they
// will be stored.

struct Candidate {
  Floats scale, zero_point, error;
};

// The sum over all lanes, in every lane, where they are one group.
inline Floats Joined(const SearchGroups& groups, const Floats& sums) {
  if (!groups.one_group) return sums;
  float lanes[kWidth];
  Store(lanes, sums);
  float total = 0;
  for (float lane : lanes) total += lane;
  return Splat(total);
}

// The squared error; with quotients if `exact`.
template <bool exact>
inline Floats ErrorOf(const SearchGroups& groups, const Floats& scale, const Floats& zero_point) {
  const Floats reciprocal = Splat(1) / scale;
  const Floats least = Splat(groups.least) - zero_point, most = least + Splat(groups.levels);
  Floats sum = Splat(0);
  for (int64_t i = 0; i < groups.count; ++i) {
    const Floats value = Load(groups.values + i * groups.stride);
    const Floats quotient = exact ? value / scale : value * reciprocal;
    const Floats difference = value - Round(Clamp(quotient, least, most)) * scale;
    sum = sum + difference * difference;
  }
  return Joined(groups, sum);
}

template <bool exact>
inline void Try(const SearchGroups& groups, const Floats& scale, const Floats& zero_point,
                Candidate& best) {
  const Floats error = ErrorOf<exact>(groups, scale, zero_point);
  for (int p = 0; p < kParts; ++p) {
    const IntPart better = (scale.parts[p] > 0.0f) & (error.parts[p] < best.error.parts[p]);
    best.scale.parts[p] = better ? scale.parts[p] : best.scale.parts[p];
    best.zero_point.parts[p] = better ? zero_point.parts[p] : best.zero_point.parts[p];
    best.error.parts[p] = better ? error.parts[p] : best.error.parts[p];
  }
}

// The scale with the least squared error for the codes that a candidate has.
inline Floats FittingScale(const SearchGroups& groups, const Candidate& candidate) {
  const Floats reciprocal = Splat(1) / candidate.scale;
  const Floats least = Splat(groups.least) - candidate.zero_point;
  const Floats most = least + Splat(groups.levels);
  Floats products = Splat(0), squares = Splat(0);
  for (int64_t i = 0; i < groups.count; ++i) {
    const Floats value = Load(groups.values + i * groups.stride);
    const Floats level = Round(Clamp(value * reciprocal, least, most));
    products = products + value * level;
    squares = squares + level * level;
  }
  return Joined(groups, products) / Joined(groups, squares);
}

// Zero points that place the codes over a range wider than they reach.
void TryZeroPoints(const SearchGroups& groups, const Floats& scale, Candidate& best) {
  const Floats none = Splat(0), all = Splat(groups.levels);
  const Floats for_low = (none - Load(groups.low)) / scale;
  const Floats for_high = all - Load(groups.high) / scale;
  const Floats middle = (for_low + for_high) * Splat(0.5f);
  const Floats zero_points[] = {for_low, for_high, middle};
  for (const Floats& zero_point : zero_points) {
    Try<false>(groups, scale, Round(Clamp(zero_point, none, all)), best);
  }
}

void SearchScales(const SearchGroups& groups) {
  const Floats scale = Load(groups.scale), zero_point = Load(groups.zero_point);
  Candidate best{scale, zero_point, ErrorOf<false>(groups, scale, zero_point)};
  const bool coarse = groups.levels < 8;
  const float step = coarse ? 0.05f : 0.03f;
  for (int k = coarse ? -2 : -1; k <= (coarse ? 12 : 8); ++k) {
    const Floats shrunk =
        RoundScale(groups.rounding, scale * Splat(1.0f - step * static_cast<float>(k)));
    if (groups.has_zero_points) {
      TryZeroPoints(groups, shrunk, best);
    } else {
      Try<false>(groups, shrunk, zero_point, best);
    }
  }
  const Floats fitting = RoundScale(groups.rounding, FittingScale(groups, best));
  Candidate chosen{scale, zero_point, ErrorOf<true>(groups, scale, zero_point)};
  Try<true>(groups, best.scale, best.zero_point, chosen);
  Try<true>(groups, fitting, best.zero_point, chosen);
  Store(groups.scale, chosen.scale);
  Store(groups.zero_point, chosen.zero_point);
}

}  // namespace

extern const QuantKernels kQuantKernels;
// NOLINTNEXTLINE(misc-definitions-in-headers)
const QuantKernels kQuantKernels{WidenRanges, FindRanges, AreWithin,    SignedScales, RoundScales,
                                 EncodeRows,  DecodeRows, SearchScales, EncodeQ8,     EncodeQ4};

}  // namespace onnx_light::ONNX_LIGHT_KERNELS
