// The search for scales. Included by kernels_body.h inside its anonymous namespace.

// ---------------------------------------------------------------------------------------------
// The search for scales
//
// Tried are the scale by range times every second factor of a row, with the zero point that keeps
// the middle of the range; the factors next to the best one; the zero points that keep the low end
// and the high end; then, twice, the scale that fits the codes of the best in the least squares.
// All is judged with products by the reciprocal, which cost a fraction of the quotients that codes
// come from. So only what is better by more than such products can be wrong is taken. Errors are
// measured in scales by range, so that no number is too large or too small.

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

// In each lane `candidate` where `is_better` is not 0.
inline void Replace(int part, const IntPart& is_better, const Candidate& candidate,
                    Candidate& best) {
  for (auto member : {&Candidate::scale, &Candidate::zero_point, &Candidate::error}) {
    auto& kept = (best.*member).parts[part];
    kept = is_better ? (candidate.*member).parts[part] : kept;
  }
}

// Tries some zero points with one scale.
template <int n>
inline void Try(const SearchGroups& groups, const Floats& scale, const Floats (&zero_points)[n],
                Candidate& best) {
  const Floats reciprocal = Splat(1) / scale;
  Floats least[n], most[n], sums[n];
  for (int z = 0; z < n; ++z) {
    least[z] = Splat(groups.least) - zero_points[z];
    most[z] = least[z] + Splat(groups.levels);
    sums[z] = Splat(0);
  }
  for (int64_t i = 0; i < groups.count; ++i) {
    const Floats quotient = Load(groups.values + i * groups.stride) * reciprocal;
    for (int z = 0; z < n; ++z) {
      const Floats difference = quotient - Round(Clamp(quotient, least[z], most[z]));
      sums[z] = sums[z] + difference * difference;
    }
  }
  const Floats unit = scale / Load(groups.scale);
  for (int z = 0; z < n; ++z) {
    const Candidate candidate{scale, zero_points[z], Joined(groups, sums[z]) * (unit * unit)};
    for (int p = 0; p < kParts; ++p) {
      const IntPart is_better =
          (scale.parts[p] > 0.0f) & (candidate.error.parts[p] < best.error.parts[p]);
      Replace(p, is_better, candidate, best);
    }
  }
}

inline Floats ZeroPoint(const SearchGroups& groups, const Floats& value) {
  return Round(Clamp(value, Splat(0), Splat(groups.levels)));
}

void TryMiddle(const SearchGroups& groups, const Floats& scale, Candidate& best) {
  const Floats beyond = Splat(groups.levels) - (Load(groups.low) + Load(groups.high)) / scale;
  const Floats middle = ZeroPoint(groups, beyond * Splat(0.5f));
  Try<1>(groups, scale, {groups.has_zero_points ? middle : Splat(0)}, best);
}

void TryEnds(const SearchGroups& groups, const Floats& scale, Candidate& best) {
  const Floats for_low = (Splat(0) - Load(groups.low)) / scale;
  const Floats for_high = Splat(groups.levels) - Load(groups.high) / scale;
  Try<2>(groups, scale, {ZeroPoint(groups, for_low), ZeroPoint(groups, for_high)}, best);
}

// Tries the scale with the least squared error for the codes that the best one has.
void TryFitting(const SearchGroups& groups, Candidate& best) {
  const Floats reciprocal = Splat(1) / best.scale;
  const Floats least = Splat(groups.least) - best.zero_point;
  const Floats most = least + Splat(groups.levels);
  Floats products = Splat(0), squares = Splat(0);
  for (int64_t i = 0; i < groups.count; ++i) {
    const Floats quotient = Load(groups.values + i * groups.stride) * reciprocal;
    const Floats level = Round(Clamp(quotient, least, most));
    products = products + quotient * level;
    squares = squares + level * level;
  }
  const Floats fitting = Joined(groups, products) / Joined(groups, squares) * best.scale;
  Try<1>(groups, RoundScale(groups.rounding, fitting), {best.zero_point}, best);
}

// Quotients up to 32 and their products differ by less than 8e-6, and so does the error of a value.
constexpr float kLeastGain = 1e-5f;

void SearchScales(const SearchGroups& groups) {
  const Floats scale = Load(groups.scale), zero_point = Load(groups.zero_point);
  Candidate best{scale, zero_point, Splat(__builtin_inff())};
  Try<1>(groups, scale, {zero_point}, best);
  const Candidate by_range = best;
  const bool is_coarse = groups.levels < 8;
  const float step = is_coarse ? 0.05f : 0.03f;
  for (int k = is_coarse ? -2 : -1; k <= (is_coarse ? 12 : 8); k += 2) {
    const Floats shrunk = scale * Splat(1.0f - step * static_cast<float>(k));
    TryMiddle(groups, RoundScale(groups.rounding, shrunk), best);
  }
  const Floats center = best.scale, distance = scale * Splat(step);
  TryMiddle(groups, RoundScale(groups.rounding, center - distance), best);
  TryMiddle(groups, RoundScale(groups.rounding, center + distance), best);
  if (groups.has_zero_points) TryEnds(groups, best.scale, best);
  for (int i = 0; i < 2; ++i) TryFitting(groups, best);

  const auto values = static_cast<float>(groups.count * (groups.one_group ? kWidth : 1));
  const Floats bound = by_range.error * Splat(1 - kLeastGain) - Splat(kLeastGain * values);
  for (int p = 0; p < kParts; ++p) {
    Replace(p, best.error.parts[p] >= bound.parts[p], by_range, best);
  }
  Store(groups.scale, best.scale);
  Store(groups.zero_point, best.zero_point);
}
