// llama.cpp's records. Included by kernels_body.h inside its anonymous namespace.

// ---------------------------------------------------------------------------------------------
// llama.cpp's records of 32 values: a FLOAT16 scale, then the codes

constexpr int kScaleSize = 2;

// 0 where the scale is so small that it has no reciprocal; its FLOAT16 is 0, too.
inline float Inverse(float scale) {
  const float inverse = 1.0f / scale;
  return __builtin_isfinite(inverse) ? inverse : 0.0f;
}

// What comes to the nearest whole number, halves away from zero, when it is cut off: almost a half
// more, which a half completes by its own rounding and what is smaller than a half does not.
inline Floats BeforeCut(const Floats& value) {
  return ForParts([&](int p) {
    const IntPart half = (reinterpret_cast<IntPart>(value.parts[p]) & INT32_MIN) | 0x3effffff;
    return value.parts[p] + reinterpret_cast<FloatPart>(half);
  });
}

// Sixteen scales as FLOAT16, which ends in an infinity. What is below its normal numbers is rounded
// by a sum whose last place is the smallest of them.
inline void StoreHalves(const float* scales, uint16_t* halves) {
  const Floats value = Load(scales), magic = Splat(0.5f);
  Ints bits;
  for (int p = 0; p < kParts; ++p) {
    const auto given = reinterpret_cast<WordPart>(value.parts[p]);
    const WordPart size = given & 0x7fffffffu;
    const WordPart normal = (size + 0xfffu + (size >> 13 & 1u) - (112u << 23)) >> 13;
    const WordPart small =
        reinterpret_cast<WordPart>(reinterpret_cast<FloatPart>(size) + magic.parts[p]) -
        0x3f000000u;
    const IntPart is_small = reinterpret_cast<IntPart>(size) < 0x38800000;
    const IntPart rounded =
        is_small ? reinterpret_cast<IntPart>(small) : reinterpret_cast<IntPart>(normal);
    const IntPart bounded = rounded < 0x7c00 ? rounded : IntPart{} + 0x7c00;
    bits.parts[p] = bounded | reinterpret_cast<IntPart>(given >> 16 & 0x8000u);
  }
  int32_t words[kWidth];
  __builtin_memcpy(words, &bits, sizeof(words));
  for (int i = 0; i < kWidth; ++i) halves[i] = static_cast<uint16_t>(words[i]);
}

// The scales of up to sixteen records at a time, by f, then each record by g with its inverse
// scale. Whether all that f has seen is at most `most`.
template <int kSize, typename F, typename G>
inline bool EncodeRecords(const float* values, int64_t records, float most, uint8_t* target, F f,
                          G g) {
  constexpr int kValues = 2 * kWidth;
  IntPart largest{};
  while (records > 0) {
    const int64_t count = records < kWidth ? records : kWidth;
    float scales[kWidth] = {};
    uint16_t halves[kWidth];
    for (int64_t i = 0; i < count; ++i) scales[i] = f(values + i * kValues, largest);
    StoreHalves(scales, halves);
    for (int64_t i = 0; i < count; ++i, values += kValues, target += kSize) {
      __builtin_memcpy(target, &halves[i], kScaleSize);
      g(values, Splat(Inverse(scales[i])), target + kScaleSize);
    }
    records -= count;
  }
  return !AnyLane(largest > MagnitudeBits(most));
}

// The magnitudes of a record as numbers of their bits, larger ones of both halves in each lane.
inline FloatPart LargestSize(const Floats& first, const Floats& second, IntPart& largest) {
  IntPart size{};
  for (int p = 0; p < kParts; ++p) {
    size = Larger(size, Larger(Magnitude(first.parts[p]), Magnitude(second.parts[p])));
  }
  largest = Larger(largest, size);
  return reinterpret_cast<FloatPart>(size);
}

// Of numbers that are not negative.
inline float LargestOfPart(const FloatPart& sizes) {
#if defined(__AVX512F__)
  const __m256 low = __builtin_shufflevector(sizes, sizes, 0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 high = __builtin_shufflevector(sizes, sizes, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m256 eight = _mm256_max_ps(low, high);
#elif defined(__AVX2__)
  const __m256 eight = reinterpret_cast<__m256>(sizes);
#endif
#if defined(__AVX2__)
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#elif defined(__SSE2__)
  const __m128 four = reinterpret_cast<__m128>(sizes);
#endif
#if defined(__SSE2__)
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  float most = 0;
  for (int i = 0; i < kPart; ++i) most = sizes[i] > most ? sizes[i] : most;
  return most;
#endif
}

bool EncodeQ8(const float* values, int64_t records, float most, uint8_t* target) {
  return EncodeRecords<kScaleSize + 2 * kWidth>(
      values, records, most, target,
      [](const float* record, IntPart& largest) {
        return LargestOfPart(LargestSize(Load(record), Load(record + kWidth), largest)) / 127.0f;
      },
      [](const float* record, const Floats& inverse, uint8_t* codes) {
        StoreWhole(codes, BeforeCut(Load(record) * inverse));
        StoreWhole(codes + kWidth, BeforeCut(Load(record + kWidth) * inverse));
      });
}

// The first value of a record with the largest magnitude; 0 if all are zeros.
inline float LargestOf(const float* values, IntPart& largest) {
  const Floats first = Load(values), second = Load(values + kWidth);
  const float size = LargestOfPart(LargestSize(first, second, largest));
  const auto occurs = [&](float value) {
    const FloatPart wanted = value - FloatPart{};
    IntPart any{};
    for (int p = 0; p < kParts; ++p) {
      any |= (first.parts[p] == wanted) | (second.parts[p] == wanted);
    }
    return AnyLane(any);
  };
  const bool is_negative = occurs(-size), is_positive = occurs(size);
  if (is_negative && is_positive && size != 0) {
    while (*values != size && *values != -size) ++values;
    return *values;
  }
  return is_positive ? size : -size;  // no branch: nobody can foretell it
}

bool EncodeQ4(const float* values, int64_t records, float most, uint8_t* target) {
  return EncodeRecords<kScaleSize + kWidth>(
      values, records, most, target,
      [](const float* record, IntPart& largest) { return LargestOf(record, largest) / -8.0f; },
      [](const float* record, const Floats& inverse, uint8_t* target) {
        const Floats first = Load(record) * inverse + Splat(8.5f);
        const Floats second = Load(record + kWidth) * inverse + Splat(8.5f);
        Ints codes;
        for (int p = 0; p < kParts; ++p) {
          const IntPart low = __builtin_convertvector(first.parts[p], IntPart);
          const IntPart high = __builtin_convertvector(second.parts[p], IntPart);
          codes.parts[p] = (low < 15 ? low : IntPart{} + 15) | (high < 15 ? high : IntPart{} + 15)
                                                                   << 4;
        }
        StoreBytes(target, codes);
      });
}

// FLOAT16 to FLOAT: moved to the place of a float the bits are the value times a power of two.
inline float ReadScale(const uint8_t* record) {
  uint16_t half;
  __builtin_memcpy(&half, record, sizeof(half));
  const uint32_t size = half & 0x7fffu, moved = size << 13;
  float value;
  __builtin_memcpy(&value, &moved, sizeof(value));
  value *= 0x1p112f;
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if (size >= 0x7c00) bits = moved | 0x7f800000u;  // infinity and NaN
  bits |= (half & 0x8000u) << 16;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// Loops that the compiler turns into vectors by itself.
void DecodeQ8(const uint8_t* __restrict source, int64_t records, float* __restrict values) {
  constexpr int kValues = 2 * kWidth;
  for (int64_t r = 0; r < records; ++r, source += kScaleSize + kValues, values += kValues) {
    const float scale = ReadScale(source);
    for (int i = 0; i < kValues; ++i) {
      values[i] = static_cast<float>(static_cast<int8_t>(source[kScaleSize + i])) * scale;
    }
  }
}

void DecodeQ4(const uint8_t* __restrict source, int64_t records, float* __restrict values) {
  for (int64_t r = 0; r < records; ++r, source += kScaleSize + kWidth, values += 2 * kWidth) {
    const float scale = ReadScale(source);
    for (int i = 0; i < kWidth; ++i) {
      values[i] = static_cast<float>((source[kScaleSize + i] & 15) - 8) * scale;
    }
    for (int i = 0; i < kWidth; ++i) {
      values[kWidth + i] = static_cast<float>((source[kScaleSize + i] >> 4) - 8) * scale;
    }
  }
}
