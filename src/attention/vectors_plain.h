// Vectors of four that every machine has. Included by kernels_body.h inside its anonymous
// namespace.

constexpr int kLanes = 4;
constexpr int kMaxRows = 4;
constexpr int kAccumulators = 4;
using Vec = float __attribute__((vector_size(16)));
using IntVec = int32_t __attribute__((vector_size(16)));

inline Vec Zero() { return Vec{}; }
inline Vec Splat(float value) { return Vec{value, value, value, value}; }
inline Vec Load(const float* source) {
  Vec value;
  __builtin_memcpy(&value, source, sizeof(value));
  return value;
}
inline void Store(float* target, Vec value) { __builtin_memcpy(target, &value, sizeof(value)); }
inline Vec Add(Vec a, Vec b) { return a + b; }
inline Vec Sub(Vec a, Vec b) { return a - b; }
inline Vec Mul(Vec a, Vec b) { return a * b; }
inline Vec Div(Vec a, Vec b) { return a / b; }
inline Vec Fma(Vec a, Vec b, Vec c) { return a * b + c; }
// `b` where one of them is NaN.
inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }
// REQUIRES: the magnitude is below 2^22.
inline Vec Round(Vec x) {
  const Vec magic = Splat(12582912.0f);
  return (x + magic) - magic;
}
inline float Largest(Vec x) {
  float largest = x[0];
  for (int i = 1; i < kLanes; ++i) largest = largest > x[i] ? largest : x[i];
  return largest;
}
inline float Sum(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
// x * 2^n. REQUIRES: n is whole, 2^n and the result are normal numbers; else anything but a trap,
// and NaN where x is NaN.
inline Vec Scale2(Vec x, Vec n) {
  const Vec bounded = n == n ? n : Zero();
  const IntVec exponent = __builtin_convertvector(bounded, IntVec) + 127;
  return x * reinterpret_cast<Vec>(exponent << 23);
}
// 0 where x < limit, else value.
inline Vec ZeroBelow(Vec value, Vec x, Vec limit) { return x < limit ? Zero() : value; }
// `a` where x == y, else b.
inline Vec WhereEqual(Vec x, Vec y, Vec a, Vec b) { return x == y ? a : b; }
inline Vec Abs(Vec x) { return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(x) & 0x7fffffff); }
inline Vec WithSignOf(Vec x, Vec sign) {
  const IntVec signs = reinterpret_cast<IntVec>(sign) & static_cast<int32_t>(0x80000000u);
  return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(x) | signs);
}
inline bool AllBelow(Vec x, Vec limit) {
  const IntVec below = x < limit;
  return (below[0] & below[1] & below[2] & below[3]) != 0;
}

// Lane i of the result is the sum of all lanes of sums[i].
inline Vec SumEach(const Vec* sums) {
  return Vec{Sum(sums[0]), Sum(sums[1]), Sum(sums[2]), Sum(sums[3])};
}
