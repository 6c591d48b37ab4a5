// One value in each of sixteen lanes. Included by kernels_body.h inside its anonymous namespace.

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
constexpr int kColumns = kParts == 1 ? 8 : 2;  // stretches at once: as there are registers for
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

// The largest of the magnitudes in all lanes.
inline float LargestLane(const Floats& magnitudes) {
  return 0.0f - LeastLane(Splat(0) - magnitudes);  // never -0
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
