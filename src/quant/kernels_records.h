// llama.cpp's records. Included by kernels_body.h inside its anonymous namespace.

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
