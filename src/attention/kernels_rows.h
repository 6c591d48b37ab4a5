// Loops over rows of keys and values. Included by kernels_body.h inside its anonymous namespace.

template <typename F>
struct PairsOf {
  static constexpr bool kEntry = F::kPairs;
};
template <typename F>
struct StepOf {
  static constexpr int64_t kEntry = int64_t{kLanes} * F::kVectors;
};

// Whether nothing but memory counts: then rows are read strictly in the order in which they lie,
// and what the processor fetches by itself comes sooner than what it is asked for. For numbers of
// 16 bits it does not on every processor: Zen 5 reaches half the speed that asking for them gives.
template <typename F, int kQueries>
inline constexpr bool kStreams = F::kFormat == RowFormat::kF32 && kQueries == 1;

// Of `rows` rows those that are widened at once: as many as there are registers for.
template <typename F, int kQueries>
constexpr int RowsTogether(int rows) {
  const int room = kStreams<F, kQueries> ? 1 : kLanes / 2 / F::kVectors;
  return room < 1 ? 1 : room < rows ? room : rows;
}

constexpr int PowerOfTwoFrom(int n) { return n <= 1 ? 1 : n <= 2 ? 2 : n <= 4 ? 4 : 8; }

// Fetches bytes from memory in portions, one after the other, to the second-level cache: a tile may
// be as large as the first.
class Fetcher {
 public:
  Fetcher(const BytesAhead& ahead, int64_t portions)
      : next_(ahead.data), end_(ahead.data + ahead.size) {
    const int64_t lines = (ahead.size + 63) / 64;
    portion_ = portions > 0 ? (lines + portions - 1) / portions * 64 : 0;
  }
  void FetchPortion() {
    const std::byte* stop = end_ - next_ > portion_ ? next_ + portion_ : end_;
    for (; next_ < stop; next_ += 64) __builtin_prefetch(next_, 0, 2);
  }

 private:
  const std::byte* next_;
  const std::byte* const end_;
  int64_t portion_;
};

// ---------------------------------------------------------------------------------------------
// Scores

// Products of `kRows` consecutive rows of keys, `row_size` apart, with all queries. `steps`: of
// each group.
template <typename F, int kQueries, int kRows>
inline void ScoreRows(const RowTile& keys, const std::byte* first, int64_t row, int64_t row_size,
                      int64_t steps, const QueryRows& queries, Fetcher& fetcher, float* scores) {
  Vec sums[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) sums[i] = Zero();
  constexpr int kTogether = RowsTogether<F, kQueries>(kRows);
  const int64_t groups = F::kGroups ? keys.groups : 1;
#pragma GCC unroll 16
  for (int begin = 0; begin < kRows; begin += kTogether) {
    int64_t step = 0;
    for (int64_t group = 0; group < groups; ++group) {
      typename F::State states[kTogether];
#pragma GCC unroll 16
      for (int i = 0; i < kTogether; ++i) states[i] = F::Begin(keys, row + begin + i, group);
      for (const int64_t end = step + steps; step < end; ++step) {
        if (!kStreams<F, kQueries>) fetcher.FetchPortion();
        Vec parts[kTogether][F::kVectors];
#pragma GCC unroll 16
        for (int i = 0; i < kTogether; ++i) {
          F::Load(keys, first + (begin + i) * row_size, step, states[i], parts[i]);
        }
        const float* query = queries.data + step * (kLanes * F::kVectors);
#pragma GCC unroll 4
        for (int v = 0; v < F::kVectors; ++v) {
#pragma GCC unroll 8
          for (int q = 0; q < kQueries; ++q) {
            const Vec numbers = Load(query + q * queries.stride + v * kLanes);
#pragma GCC unroll 16
            for (int i = 0; i < kTogether; ++i) {
              Vec& sum = sums[q * kRows + begin + i];
              sum = Fma(parts[i][v], numbers, sum);
            }
          }
        }
      }
    }
  }
  float lanes[kLanes];
  Store(lanes, SumEach(sums));
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
    __builtin_memcpy(scores + q * kTileTokens, lanes + q * kRows, kRows * sizeof(float));
  }
}

template <typename F, int kQueries>
void Score(const RowTile& keys, int64_t tokens, const QueryRows& queries, float* scores) {
  constexpr int kRows = kLanes / PowerOfTwoFrom(kQueries);
  const int64_t steps = keys.width / (kLanes * F::kVectors) / keys.groups;
  Fetcher fetcher(keys.ahead, tokens / RowsTogether<F, kQueries>(kRows) * steps * keys.groups);
  const auto block = [&](int64_t row) {
    ScoreRows<F, kQueries, kRows>(keys, keys.data + row * keys.row_size, row, keys.row_size, steps,
                                  queries, fetcher, scores + row);
  };
  int64_t row = 0;
  for (; row + kRows <= tokens; row += kRows) block(row);
  if (row == tokens) return;
  if (tokens >= kRows) return block(tokens - kRows);  // some rows again, to the same result
  for (; row < tokens; ++row) {
    ScoreRows<F, kQueries, 1>(keys, keys.data + row * keys.row_size, row, 0, steps, queries,
                              fetcher, scores + row);
  }
}

template <typename F>
void Scores(const RowTile& keys, int64_t tokens, const QueryRows& queries, float* scores) {
  switch (queries.count) {
    case 1:
      return Score<F, 1>(keys, tokens, queries, scores);
    case 2:
      return Score<F, 2>(keys, tokens, queries, scores);
    case 3:
      return Score<F, 3>(keys, tokens, queries, scores);
    case 4:
      return Score<F, 4>(keys, tokens, queries, scores);
    default:
      break;
  }
  if constexpr (kMaxRows == 8) {
    switch (queries.count) {
      case 5:
        return Score<F, 5>(keys, tokens, queries, scores);
      case 6:
        return Score<F, 6>(keys, tokens, queries, scores);
      case 7:
        return Score<F, 7>(keys, tokens, queries, scores);
      default:
        return Score<F, 8>(keys, tokens, queries, scores);
    }
  }
}

template <typename F>
struct ScoresKernel {
  static constexpr auto kEntry = &Scores<F>;
};

// ---------------------------------------------------------------------------------------------
// Weighted sums of values

// The channels of `kSteps` steps.
template <typename F, int kTargets, int kSteps>
inline void MixChannels(const RowTile& values, int64_t tokens, int64_t group, int64_t step,
                        const MixTarget& target, Fetcher& fetcher) {
  constexpr int kParts = kSteps * F::kVectors;
  Vec sums[kTargets][kParts];
#pragma GCC unroll 8
  for (int t = 0; t < kTargets; ++t) {
#pragma GCC unroll 16
    for (int i = 0; i < kParts; ++i) sums[t][i] = Zero();
  }
  const std::byte* row = values.data;
  for (int64_t token = 0; token < tokens; ++token, row += values.row_size) {
    if (!kStreams<F, kTargets>) fetcher.FetchPortion();
    const typename F::State state = F::Begin(values, token, group);
    Vec parts[kParts];
#pragma GCC unroll 16
    for (int s = 0; s < kSteps; ++s) {
      F::Load(values, row, step + s, state, parts + s * F::kVectors);
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTargets; ++t) {
      const Vec weight = Splat(target.weights[t * kTileTokens + token]);
#pragma GCC unroll 16
      for (int i = 0; i < kParts; ++i) sums[t][i] = Fma(weight, parts[i], sums[t][i]);
    }
  }
  const int64_t channel = step * kLanes * F::kVectors;
#pragma GCC unroll 8
  for (int t = 0; t < kTargets; ++t) {
    if constexpr (F::kPairs) {
#pragma GCC unroll 8
      for (int i = 0; i < kParts; i += 2) Unpair(sums[t][i], sums[t][i + 1]);
    }
    float* out = target.sums + t * target.stride + channel;
    const Vec correction = Splat(target.correction != nullptr ? target.correction[t] : 1.0f);
#pragma GCC unroll 16
    for (int i = 0; i < kParts; ++i) {
      Vec sum = sums[t][i];
      if (values.channel_scale != nullptr) {
        sum = Mul(sum, Load(values.channel_scale + channel + i * kLanes));
      }
      Store(out + i * kLanes, Fma(Load(out + i * kLanes), correction, sum));
    }
  }
}

// The channels from `step` to `end`, as many at once as there are registers for, then fewer.
template <typename F, int kTargets, int kSteps>
inline void MixSteps(const RowTile& values, int64_t tokens, int64_t group, int64_t step,
                     int64_t end, const MixTarget& target, Fetcher& fetcher) {
  for (; step + kSteps <= end; step += kSteps) {
    MixChannels<F, kTargets, kSteps>(values, tokens, group, step, target, fetcher);
  }
  if constexpr (kSteps > 1) {
    MixSteps<F, kTargets, kSteps / 2>(values, tokens, group, step, end, target, fetcher);
  }
}

template <typename F, int kTargets>
void MixRows(const RowTile& values, int64_t tokens, const MixTarget& target) {
  constexpr int kBlock = kAccumulators / PowerOfTwoFrom(kTargets) / F::kVectors;
  constexpr int kSteps = kBlock < 1 ? 1 : kBlock;
  const int64_t steps = values.width / (kLanes * F::kVectors) / values.groups;
  const int64_t passes = steps / kSteps + __builtin_popcountll(steps % kSteps);
  Fetcher fetcher(values.ahead, tokens * passes * values.groups);
  for (int64_t group = 0; group < values.groups; ++group) {
    const int64_t step = group * steps;
    MixSteps<F, kTargets, kSteps>(values, tokens, group, step, step + steps, target, fetcher);
  }
}

template <typename F>
void Mix(const RowTile& values, int64_t tokens, const MixTarget& target) {
  switch (target.rows) {
    case 1:
      return MixRows<F, 1>(values, tokens, target);
    case 2:
      return MixRows<F, 2>(values, tokens, target);
    case 3:
      return MixRows<F, 3>(values, tokens, target);
    case 4:
      return MixRows<F, 4>(values, tokens, target);
    default:
      break;
  }
  if constexpr (kMaxRows == 8) {
    switch (target.rows) {
      case 5:
        return MixRows<F, 5>(values, tokens, target);
      case 6:
        return MixRows<F, 6>(values, tokens, target);
      case 7:
        return MixRows<F, 7>(values, tokens, target);
      default:
        return MixRows<F, 8>(values, tokens, target);
    }
  }
}

template <typename F>
struct MixKernel {
  static constexpr auto kEntry = &Mix<F>;
};

// ---------------------------------------------------------------------------------------------
// Widening

template <typename F>
void Widen(const RowTile& rows, int64_t tokens, float* target, int64_t stride) {
  const std::byte* row = rows.data;
  for (int64_t token = 0; token < tokens; ++token, row += rows.row_size, target += stride) {
    const int64_t steps = rows.width / (kLanes * F::kVectors) / rows.groups;
    const Vec row_scale = Splat(rows.row_scale != nullptr ? rows.row_scale[token] : 1.0f);
    int64_t step = 0;
    for (int64_t group = 0; group < rows.groups; ++group) {
      const typename F::State state = F::Begin(rows, token, group);
      for (const int64_t end = step + steps; step < end; ++step) {
        Vec parts[F::kVectors];
        F::Load(rows, row, step, state, parts);
        if constexpr (F::kPairs) Unpair(parts[0], parts[1]);
#pragma GCC unroll 4
        for (int i = 0; i < F::kVectors; ++i) {
          const int64_t channel = (step * F::kVectors + i) * kLanes;
          Vec numbers = Mul(parts[i], row_scale);
          if (rows.channel_scale != nullptr) {
            numbers = Mul(numbers, Load(rows.channel_scale + channel));
          }
          Store(target + channel, numbers);
        }
      }
    }
  }
}

template <typename F>
struct WidenKernel {
  static constexpr auto kEntry = &Widen<F>;
};

void PairOrder(const float* source, int64_t width, float* target) {
#if defined(__AVX2__)
  for (int64_t i = 0; i < width; i += 2 * kLanes) {
    Vec a = Load(source + i), b = Load(source + i + kLanes);
    Pair(a, b);
    Store(target + i, a);
    Store(target + i + kLanes, b);
  }
#else
  __builtin_memcpy(target, source, width * sizeof(float));
#endif
}

void MultiplyRows(const float* rows, int64_t stride, int64_t count, const float* factors,
                  int64_t width, float* target) {
  for (int64_t row = 0; row < count; ++row) {
    const float* source = rows + row * stride;
    float* out = target + row * stride;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      Store(out + i, Mul(Load(source + i), Load(factors + i)));
    for (; i < width; ++i) out[i] = source[i] * factors[i];
  }
}
