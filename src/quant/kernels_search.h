// The search for scales. Included by kernels_body.h inside its anonymous namespace.

// ---------------------------------------------------------------------------------------------
// The search for scales
//
// Tried are the scale by range times a row of factors, with the zero points that keep the low end,
// the high end or the middle of the range; then the scale that fits the best codes so far in the
// least squares. What is tried is judged with products by the reciprocal, which cost a fraction of
// quotients; what is taken must have a lower error than the scale by range with the codes as they
// will be stored. Errors are measured in scales, so that no number is too large or too small.

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

// The squared error in units of the scale by range; with quotients if `exact`.
template <bool exact>
inline Floats ErrorOf(const SearchGroups& groups, const Floats& scale, const Floats& zero_point) {
  const Floats reciprocal = Splat(1) / scale;
  const Floats least = Splat(groups.least) - zero_point, most = least + Splat(groups.levels);
  Floats sum = Splat(0);
  for (int64_t i = 0; i < groups.count; ++i) {
    const Floats value = Load(groups.values + i * groups.stride);
    const Floats quotient = exact ? value / scale : value * reciprocal;
    const Floats difference = quotient - Round(Clamp(quotient, least, most));
    sum = sum + difference * difference;
  }
  const Floats unit = scale / Load(groups.scale);
  return Joined(groups, sum) * (unit * unit);
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
    const Floats quotient = value * reciprocal;
    const Floats level = Round(Clamp(quotient, least, most));
    products = products + quotient * level;
    squares = squares + level * level;
  }
  return Joined(groups, products) / Joined(groups, squares) * candidate.scale;
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
