// Ranges of numbers and scales by range. Included by kernels_body.h inside its anonymous namespace.

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

inline bool IsFinite(const IntPart& largest) { return !AnyLane(largest >= 0x7f800000); }

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

bool WidenRanges(const FloatBlock& rows, float* low, float* high) {
  IntPart largest{};
  int64_t i = 0;
  for (; i + kColumns * kWidth <= rows.width; i += kColumns * kWidth) {
    WidenColumns<kColumns>(rows, i, low, high, largest);
  }
  for (; i < rows.width; i += kWidth) WidenColumns<1>(rows, i, low, high, largest);
  return IsFinite(largest);
}

// Whether each column of a stretch has one number only. Nearly always two rows tell that none has.
inline void FindConstants(const FloatBlock& rows, int64_t column, IntPart* constant) {
  const Floats first = Load(rows.values + column);
  for (int p = 0; p < kParts; ++p) constant[p] = first.parts[p] == first.parts[p];
  for (int64_t token = rows.tokens - 1; token > 0; --token) {
    const Floats value = Load(rows.values + token * rows.stride + column);
    bool any = false;
    for (int p = 0; p < kParts; ++p) {
      constant[p] &= value.parts[p] == first.parts[p];
      any |= AnyLane(constant[p]);
    }
    if (!any) return;
  }
}

// The largest magnitudes of stretches of columns, as WidenColumns().
template <int kCount>
inline void ColumnSizes(const FloatBlock& rows, int64_t column, float* low, float* high,
                        IntPart& largest) {
  IntPart sizes[kCount][kParts] = {};
  for (int64_t token = 0; token < rows.tokens; ++token) {
    const float* row = rows.values + token * rows.stride + column;
#pragma GCC unroll 8
    for (int k = 0; k < kCount; ++k) {
      const Floats value = Load(row + k * kWidth);
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        sizes[k][p] = Larger(sizes[k][p], Magnitude(value.parts[p]));
      }
    }
  }
  for (int k = 0; k < kCount; ++k) {
    const int64_t i = column + k * kWidth;
    const Floats first = Load(rows.values + i);
    IntPart constant[kParts];
    FindConstants(rows, i, constant);
    for (int p = 0; p < kParts; ++p) largest = Larger(largest, sizes[k][p]);
    const auto size = [&](int p) { return reinterpret_cast<FloatPart>(sizes[k][p]); };
    Store(low + i, ForParts([&](int p) { return constant[p] ? first.parts[p] : -size(p); }));
    Store(high + i, ForParts([&](int p) { return constant[p] ? first.parts[p] : size(p); }));
  }
}

bool FindColumnSizes(const FloatBlock& rows, float* low, float* high) {
  IntPart largest{};
  int64_t i = 0;
  for (; i + kColumns * kWidth <= rows.width; i += kColumns * kWidth) {
    ColumnSizes<kColumns>(rows, i, low, high, largest);
  }
  for (; i < rows.width; i += kWidth) ColumnSizes<1>(rows, i, low, high, largest);
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

inline bool IsConstant(const float* values, int64_t count) {
  for (int64_t i = count - 1; i > 0; --i) {
    if (values[i] != values[0]) return false;
  }
  return true;
}

// The largest magnitude of stretches of lanes.
inline void SizeOfLanes(const float* values, int64_t count, float* low, float* high,
                        IntPart& largest) {
  IntPart sizes[kParts] = {};
  for (int64_t i = 0; i < count; i += kWidth) {
    const Floats value = Load(values + i);
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) sizes[p] = Larger(sizes[p], Magnitude(value.parts[p]));
  }
  for (int p = 0; p < kParts; ++p) largest = Larger(largest, sizes[p]);
  *high = LargestLane(ForParts([&](int p) { return reinterpret_cast<FloatPart>(sizes[p]); }));
  *low = -*high;
  if (IsConstant(values, count)) *low = *high = *values;
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

template <bool kSizes>
bool FindGroups(const FloatBlock& rows, int64_t width, int64_t group, float* low, float* high) {
  const bool by_lanes = group % kWidth == 0 && width % group == 0;
  IntPart largest{};
  for (int64_t token = 0; token < rows.tokens; ++token) {
    const float* row = rows.values + token * rows.stride;
    for (int64_t i = 0; i < width; i += group, ++low, ++high) {
      const int64_t count = group < width - i ? group : width - i;
      if (!by_lanes) {
        FindRange(row + i, count, low, high);
      } else if (kSizes) {
        SizeOfLanes(row + i, count, low, high, largest);
      } else {
        RangeOfLanes(row + i, count, low, high, largest);
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

void UnsignedScales(const float* __restrict low, const float* __restrict high, int64_t count,
                    float levels, float* __restrict scale) {
  for (int64_t i = 0; i < count; ++i) {  // in double: a range may exceed all floats
    const double range = static_cast<double>(high[i] > 0 ? high[i] : 0.0f) -
                         static_cast<double>(low[i] < 0 ? low[i] : 0.0f);
    const auto by_range = static_cast<float>(range / levels);
    scale[i] = low[i] == high[i] ? __builtin_fabsf(low[i]) : by_range;
  }
}

void ZeroPoints(const float* low, const float* scale, int64_t count, float levels,
                float* zero_point) {
  for (int64_t i = 0; i < count; i += kWidth) {
    const Floats step = Load(scale + i), least = Least(Load(low + i), Splat(0));
    const Floats nearest = Round(Clamp((Splat(0) - least) / step, Splat(0), Splat(levels)));
    Store(zero_point + i,
          ForParts([&](int p) { return step.parts[p] == 0.0f ? FloatPart{} : nearest.parts[p]; }));
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
