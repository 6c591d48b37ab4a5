// Vectors of AVX-512 (F, BW, VL, DQ). Included by kernels_body.h inside its anonymous namespace.

constexpr int kLanes = 16;
constexpr int kMaxRows = 8;
constexpr int kAccumulators = 16;  // that stay in registers beside what is multiplied
using Vec = __m512;

inline Vec Zero() { return _mm512_setzero_ps(); }
inline Vec Splat(float value) { return _mm512_set1_ps(value); }
inline Vec Load(const float* source) { return _mm512_loadu_ps(source); }
inline void Store(float* target, Vec value) { _mm512_storeu_ps(target, value); }
inline Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec Div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// `b` where one of them is NaN.
inline Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec Round(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
inline float Largest(Vec x) { return _mm512_reduce_max_ps(x); }
inline float Sum(Vec x) { return _mm512_reduce_add_ps(x); }
// x * 2^n. REQUIRES: n is whole, and the result a normal number.
inline Vec Scale2(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }
// 0 where x < limit, else value.
inline Vec ZeroBelow(Vec value, Vec x, Vec limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), value);
}
// `a` where x == y, else b.
inline Vec WhereEqual(Vec x, Vec y, Vec a, Vec b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ), a);
}
inline Vec Abs(Vec x) { return _mm512_andnot_ps(Splat(-0.0f), x); }
inline Vec WithSignOf(Vec x, Vec sign) {
  return _mm512_or_ps(x, _mm512_and_ps(sign, Splat(-0.0f)));
}
inline bool AllBelow(Vec x, Vec limit) {
  return _mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ) == 0xffff;
}

// Lane i of the result is the sum of all lanes of sums[i].
inline Vec SumEach(const Vec* sums) {
  Vec quarters[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vec* s = sums + 4 * i;
    const Vec a = Add(_mm512_unpacklo_ps(s[0], s[1]), _mm512_unpackhi_ps(s[0], s[1]));
    const Vec b = Add(_mm512_unpacklo_ps(s[2], s[3]), _mm512_unpackhi_ps(s[2], s[3]));
    quarters[i] =
        Add(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))),
            _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))));
  }
  const Vec c = Add(_mm512_shuffle_f32x4(quarters[0], quarters[1], 0x88),
                    _mm512_shuffle_f32x4(quarters[0], quarters[1], 0xdd));
  const Vec d = Add(_mm512_shuffle_f32x4(quarters[2], quarters[3], 0x88),
                    _mm512_shuffle_f32x4(quarters[2], quarters[3], 0xdd));
  return Add(_mm512_shuffle_f32x4(c, d, 0x88), _mm512_shuffle_f32x4(c, d, 0xdd));
}

// Two vectors of consecutive numbers to those with even and with odd places, and back.
inline void Pair(Vec& a, Vec& b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const Vec first = _mm512_permutex2var_ps(a, even, b);
  b = _mm512_permutex2var_ps(a, odd, b);
  a = first;
}
inline void Unpair(Vec& a, Vec& b) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  const Vec first = _mm512_permutex2var_ps(a, low, b);
  b = _mm512_permutex2var_ps(a, high, b);
  a = first;
}

inline Vec HalfToFloat(const void* source) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(source)));
}
inline Vec SplatHalf(const std::byte* source) {
  short bits;
  __builtin_memcpy(&bits, source, sizeof(bits));
  return _mm512_cvtph_ps(_mm256_set1_epi16(bits));
}
inline void BrainPairs(const std::byte* source, Vec* out) {
  const __m512i words = _mm512_loadu_si512(source);
  out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  out[1] = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)));
}
#if defined(__AVX512VBMI__)
// The upper halves of the floats that the magnitudes of E4M3 are, byte by byte: NaN is the last.
constexpr struct E4M3Tables {
  alignas(64) uint8_t low[128], high[128];
  constexpr E4M3Tables() : low(), high() {
    for (int code = 1; code < 128; ++code) {
      int exponent = code >> 3, fraction = code & 7;
      if (exponent == 0) {  // fraction * 2^-9
        for (exponent = 1; fraction < 8; --exponent) fraction *= 2;
      }
      const int bits = code == 127 ? 0x7fc0 : (exponent + 120) << 7 | (fraction & 7) << 4;
      low[code] = static_cast<uint8_t>(bits);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
} kE4M3;

inline void E4M3Pairs(const std::byte* source, Vec* out) {
  constexpr struct Twice {
    alignas(64) uint8_t bytes[64];
    constexpr Twice() : bytes() {
      for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i / 2);
    }
  } kTwice;
  const auto load = [](const uint8_t* bytes) { return _mm512_load_si512(bytes); };
  const __m512i codes = _mm512_permutexvar_epi8(
      load(kTwice.bytes),
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source))));
  __m512i words = _mm512_mask2_permutex2var_epi8(load(kE4M3.low), codes, 0x5555555555555555,
                                                 load(kE4M3.low + 64));
  words = _mm512_mask2_permutex2var_epi8(load(kE4M3.high), words, 0xaaaaaaaaaaaaaaaa,
                                         load(kE4M3.high + 64));
  const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  words = _mm512_ternarylogic_epi32(words, codes, sign, 0xf8);  // words | (codes & sign)
  out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  out[1] = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)));
}
#endif

inline Vec E4M3ToFloat(const std::byte* source) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_or_si128(bytes, _mm_set1_epi8(-128)),  // any sign
                                            _mm_set1_epi8(-1));
  // Extending the sign puts it in the bit of a half's sign, and in the one below, which is cleared.
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                        _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i with_nan = _mm256_mask_add_epi16(half, nan, half, _mm256_set1_epi16(0x4000));
  return Mul(_mm512_cvtph_ps(with_nan), Splat(256));
}
inline Vec E5M2ToFloat(const std::byte* source) {
  const __m256i bytes =
      _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  return _mm512_cvtph_ps(_mm256_slli_epi16(bytes, 8));
}
template <bool is_signed>
inline Vec BytesToFloat(const std::byte* source) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
}

// What the codes 0 to 15 stand for.
using Table = Vec;
template <bool is_signed>
inline Table NibbleTable() {
  return is_signed ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
                   : _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline Table MapTable(Table table, Vec zero, Vec scale) { return Mul(Sub(table, zero), scale); }
// The low halves of kLanes bytes, and the high ones.
inline void Nibbles(const std::byte* source, Table table, Vec* out) {
  const __m512i bytes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  out[0] = _mm512_permutexvar_ps(bytes, table);
  out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
}
