// Vectors of AVX2 with FMA and F16C. Included by kernels_body.h inside its anonymous namespace.

constexpr int kLanes = 8;
constexpr int kMaxRows = 8;
constexpr int kAccumulators = 8;  // that stay in registers beside what is multiplied
using Vec = __m256;

inline Vec Zero() { return _mm256_setzero_ps(); }
inline Vec Splat(float value) { return _mm256_set1_ps(value); }
inline Vec Load(const float* source) { return _mm256_loadu_ps(source); }
inline void Store(float* target, Vec value) { _mm256_storeu_ps(target, value); }
inline Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec Div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
// `b` where one of them is NaN.
inline Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec Round(Vec x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline float Largest(Vec x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}
inline float Sum(Vec x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
// x * 2^n. REQUIRES: n is whole, 2^n and the result are normal numbers.
inline Vec Scale2(Vec x, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return Mul(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
// 0 where x < limit, else value.
inline Vec ZeroBelow(Vec value, Vec x, Vec limit) {
  return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), value);
}
// `a` where x == y, else b.
inline Vec WhereEqual(Vec x, Vec y, Vec a, Vec b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_EQ_OQ));
}
inline Vec Abs(Vec x) { return _mm256_andnot_ps(Splat(-0.0f), x); }
inline Vec WithSignOf(Vec x, Vec sign) {
  return _mm256_or_ps(x, _mm256_and_ps(sign, Splat(-0.0f)));
}
inline bool AllBelow(Vec x, Vec limit) {
  return _mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ)) == 0xff;
}

// Lane i of the result is the sum of all lanes of sums[i].
inline Vec SumEach(const Vec* sums) {
  const Vec a = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
  const Vec b = _mm256_hadd_ps(_mm256_hadd_ps(sums[4], sums[5]), _mm256_hadd_ps(sums[6], sums[7]));
  return Add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// Two vectors of consecutive numbers to those with even and with odd places, and back.
inline void Pair(Vec& a, Vec& b) {
  const Vec low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
  a = _mm256_shuffle_ps(low, high, 0x88);
  b = _mm256_shuffle_ps(low, high, 0xdd);
}
inline void Unpair(Vec& a, Vec& b) {
  const Vec low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
}

inline Vec HalfToFloat(const void* source) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(source)));
}
inline Vec SplatHalf(const std::byte* source) {
  short bits;
  __builtin_memcpy(&bits, source, sizeof(bits));
  return _mm256_cvtph_ps(_mm_set1_epi16(bits));
}
inline void BrainPairs(const std::byte* source, Vec* out) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  out[1] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-65536)));
}
inline __m128i EightBytes(const std::byte* source) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source));
}
inline Vec E4M3ToFloat(const std::byte* source) {
  const __m128i bytes = _mm_cvtepu8_epi16(EightBytes(source));
  const __m128i magnitude = _mm_slli_epi16(_mm_and_si128(bytes, _mm_set1_epi16(0x7f)), 7);
  const __m128i nan =
      _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f << 7)), _mm_set1_epi16(0x7fff));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(bytes, _mm_set1_epi16(0x80)), 8);
  return Mul(_mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(magnitude, sign), nan)), Splat(256));
}
inline Vec E5M2ToFloat(const std::byte* source) {
  return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(EightBytes(source)), 8));
}
template <bool is_signed>
inline Vec BytesToFloat(const std::byte* source) {
  const __m128i bytes = EightBytes(source);
  return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
}

// What the codes 0 to 15 stand for: (code, of which `flip` is turned over, - zero) * scale.
struct Table {
  __m128i flip;
  Vec zero, scale;
};
template <bool is_signed>
inline Table NibbleTable() {
  // With the sign bit turned over, a signed code is 8 above its value.
  return {_mm_set1_epi8(is_signed ? 8 : 0), Splat(is_signed ? 8 : 0), Splat(1)};
}
inline Table MapTable(const Table& table, Vec zero, Vec scale) {
  return {table.flip, Add(table.zero, zero), scale};
}
inline Vec MapNibbles(__m128i nibbles, const Table& table) {
  const __m128i codes = _mm_xor_si128(_mm_and_si128(nibbles, _mm_set1_epi8(15)), table.flip);
  return Mul(Sub(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)), table.zero), table.scale);
}
// The low halves of kLanes bytes, and the high ones.
inline void Nibbles(const std::byte* source, const Table& table, Vec* out) {
  const __m128i bytes = EightBytes(source);
  out[0] = MapNibbles(bytes, table);
  out[1] = MapNibbles(_mm_srli_epi16(bytes, 4), table);
}
