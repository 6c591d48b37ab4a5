// Codes and what they stand for. Included by kernels_body.h inside its anonymous namespace.

// ---------------------------------------------------------------------------------------------
// Codes
//
// A quotient takes several times as long as a product with the reciprocal, and both round to the
// same code unless they lie close to the middle between two. So products are used for a few rows,
// and where one was that close, they are done again with quotients.

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
  if (parameters.has_plain_codes) return {divisor, Splat(1) / divisor, {}, {}, {}};
  return {divisor, Splat(1) / divisor, at(parameters.least), at(parameters.most),
          at(parameters.zero_point)};
}

// Lanes whose reciprocals are no normal numbers, and say nothing about quotients. Zeros do: the
// divisor is infinite.
inline IntPart Unusable(const Codes& codes) {
  IntPart lanes{};
  for (int p = 0; p < kParts; ++p) {
    const IntPart bits = Magnitude(codes.reciprocal.parts[p]);
    lanes |= (bits != 0) & ~((bits >= 0x00800000) & (bits <= 0x7e800000));  // 2^-126 to 2^126
  }
  return lanes;
}

// Levels are at most 255 from 0. There product and quotient differ by less than 3 * 255 / 2^24.
constexpr float kNearMiddle = 0.5f - 0x1p-14f;

template <bool kExact, bool kPlain>
inline void EncodeLanes(const float* row, const Codes& codes, uint8_t* target,
                        FloatPart& farthest) {
  const Floats value = Load(row), rounder = Splat(kRounder);
  Floats quotient = kExact ? value / codes.divisor : value * codes.reciprocal;
  if (!kPlain) quotient = Clamp(quotient, codes.least, codes.most);
  Floats rounded = quotient + rounder;
  if (!kExact) {
    const Floats rest = quotient - (rounded - rounder);
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) farthest = LargerMagnitude(farthest, rest.parts[p]);
  }
  if (!kPlain) rounded = rounded + codes.zero_point;
  Ints bits;
  __builtin_memcpy(&bits, &rounded, sizeof(bits));
  StoreBytes(target, bits);
}

// A few rows of a few stretches of columns, in the order in which they lie in memory.
struct CodeTile {
  const float* row;
  int64_t stride;
  int64_t tokens;
  uint8_t* target;
  int64_t width;
};

template <bool kExact, bool kPlain, int kCount>
inline void EncodeTile(const CodeTile& tile, const Codes* codes, FloatPart& farthest) {
  const float* row = tile.row;
  uint8_t* target = tile.target;
  FloatPart most = farthest;
  for (int64_t token = 0; token < tile.tokens; ++token, row += tile.stride, target += tile.width) {
#pragma GCC unroll 8
    for (int k = 0; k < kCount; ++k) {
      EncodeLanes<kExact, kPlain>(row + k * kWidth, codes[k], target + k * kWidth, most);
    }
  }
  farthest = most;
}

// `count` columns from `first` on. Memory ahead is fetched meanwhile.
template <bool kPlain, int kCount>
inline void EncodeColumns(const FloatBlock& rows, const CodeParameters& parameters, int64_t first,
                          uint8_t* target, const float*& ahead) {
  constexpr int64_t kTokens = kCount == 1 ? 16 : 4;
  Codes codes[kCount];
  IntPart unusable{};
  for (int k = 0; k < kCount; ++k) {
    codes[k] = CodesAt(parameters, first + k * kWidth);
    unusable |= Unusable(codes[k]);
  }
  const bool is_usable = !AnyLane(unusable);
  for (int64_t token = 0; token < rows.tokens; token += kTokens) {
    const int64_t count = kTokens < rows.tokens - token ? kTokens : rows.tokens - token;
    const CodeTile tile{rows.values + token * rows.stride + first, rows.stride, count,
                        target + token * rows.width + first, rows.width};
    for (int64_t i = 0; i < kCount * count * 2 / 3; ++i, ahead += kWidth) {
      __builtin_prefetch(ahead, 0, 2);
    }
    FloatPart farthest{};  // from a level
    EncodeTile<false, kPlain, kCount>(tile, codes, farthest);
    if (is_usable && !AnyLane(farthest > kNearMiddle)) continue;
    EncodeTile<true, kPlain, kCount>(tile, codes, farthest);
  }
}

template <bool kPlain>
inline void EncodeByColumns(const FloatBlock& rows, const CodeParameters& parameters,
                            uint8_t* target) {
  constexpr int kCount = kPlain ? kColumns : kColumns / 2;
  const float* ahead = rows.values + rows.tokens * rows.stride;
  int64_t i = 0;
  for (; i + kCount * kWidth <= rows.width; i += kCount * kWidth) {
    EncodeColumns<kPlain, kCount>(rows, parameters, i, target, ahead);
  }
  for (; i < rows.width; i += kWidth) {
    EncodeColumns<kPlain, 1>(rows, parameters, i, target, ahead);
  }
}

// A row as a column of stretches, which have the same parameters.
template <bool kPlain>
inline void EncodeByTokens(const FloatBlock& rows, const CodeParameters& parameters,
                           uint8_t* target) {
  const float* ahead = rows.values + rows.tokens * rows.stride;
  for (int64_t token = 0; token < rows.tokens; ++token, target += rows.width) {
    const Codes codes = CodesAt(parameters, token);
    const CodeTile tile{rows.values + token * rows.stride, kWidth, rows.width / kWidth, target,
                        kWidth};
    for (int64_t i = 0; i < rows.width; i += kWidth, ahead += kWidth) {
      __builtin_prefetch(ahead, 0, 2);
    }
    FloatPart farthest{};
    EncodeTile<false, kPlain, 1>(tile, &codes, farthest);
    if (!AnyLane(Unusable(codes) | (farthest > kNearMiddle))) continue;
    EncodeTile<true, kPlain, 1>(tile, &codes, farthest);
  }
}

void EncodeRows(const FloatBlock& rows, const CodeParameters& parameters, uint8_t* target) {
  const bool is_plain = parameters.has_plain_codes;
  if (parameters.per_token) {
    is_plain ? EncodeByTokens<true>(rows, parameters, target)
             : EncodeByTokens<false>(rows, parameters, target);
  } else {
    is_plain ? EncodeByColumns<true>(rows, parameters, target)
             : EncodeByColumns<false>(rows, parameters, target);
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
