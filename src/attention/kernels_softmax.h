// The softmax over tiles. Included by kernels_body.h inside its anonymous namespace.

constexpr float kInfinity = __builtin_inff();
// 64 ln 2: probabilities below 2^-64 are 0. They could not change a sum, and they would be
// denormal soon, which costs time.
constexpr float kLeastExponent = -44.3614196f;

// e^x for x <= 0, within 2 units in the last place; 0 below kLeastExponent; NaN for NaN.
inline Vec Exp(Vec x) {
  const Vec bounded = Max(Splat(-64), x);
  const Vec n = Round(Mul(bounded, Splat(1.44269504f)));
  // ln 2 in two parts: n times the first one is exact.
  Vec r = Fma(n, Splat(-0x1.62e4p-1f), bounded);
  r = Fma(n, Splat(-0x1.7f7d1cp-20f), r);
  // The rest of the series from r^2 on, as a polynomial of least relative error on |r| <= ln 2 / 2.
  Vec p = Splat(0x1.6a23cep-10f);
  p = Fma(p, r, Splat(0x1.123a2p-7f));
  p = Fma(p, r, Splat(0x1.5558f2p-5f));
  p = Fma(p, r, Splat(0x1.555492p-3f));
  p = Fma(p, r, Splat(0x1.fffffcp-2f));
  p = Fma(Mul(r, r), p, r);
  return ZeroBelow(Scale2(Add(p, Splat(1)), n), x, Splat(kLeastExponent));
}

inline Vec Tanh(Vec x) {
  const Vec t = Exp(Mul(Abs(x), Splat(-2)));
  return WithSignOf(Div(Sub(Splat(1), t), Add(Splat(1), t)), x);
}

constexpr struct ZerosThenHidden {
  float values[2 * kLanes];
  constexpr ZerosThenHidden() : values() {
    for (int i = kLanes; i < 2 * kLanes; ++i) values[i] = -kInfinity;
  }
} kEnd;

// What the scores of a row are, before the softmax: scale, softcap, mask. Gives the largest.
inline float Prepare(const SoftmaxTile& tile, int64_t row) {
  float* scores = tile.scores + row * kTileTokens;
  const bool caps = tile.softcap != 0;
  const Vec cap = Splat(tile.softcap), inverse = Splat(caps ? 1.0f / tile.softcap : 0.0f);
  const Vec hidden = Splat(-kInfinity);
  Vec largest = hidden;
  for (int64_t i = 0; i < tile.tokens; i += kLanes) {
    Vec score = Load(scores + i);
    if (tile.key_scale != nullptr) score = Mul(score, Load(tile.key_scale + i));
    if (caps) score = Mul(cap, Tanh(Mul(score, inverse)));
    if (tile.bias != nullptr) {
      const Vec bias = Load(tile.bias + row * kTileTokens + i);
      score = WhereEqual(bias, hidden, hidden, Add(score, bias));
    }
    if (i + kLanes > tile.tokens) {  // what lies past the tokens is hidden
      const Vec past = Load(kEnd.values + kLanes - (tile.tokens - i));
      score = WhereEqual(past, hidden, hidden, score);
    }
    Store(scores + i, score);
    largest = Max(score, largest);
  }
  return Largest(largest);
}

void Soften(const SoftmaxTile& tile) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    const float before = tile.largest[row];
    const float here = Prepare(tile, row);
    const float largest = here > before ? here : before;
    // A shift that is finite: where nothing is visible yet, all differences are -inf all the same.
    const float shift = largest == -kInfinity ? 0 : largest;
    float* scores = tile.scores + row * kTileTokens;
    Vec total = Zero();
    for (int64_t i = 0; i < tile.tokens; i += kLanes) {
      const Vec weight = Exp(Sub(Load(scores + i), Splat(shift)));
      total = Add(total, weight);
      Store(scores + i, weight);
    }
    float correction = 1;
    if (largest != before) {
      float lanes[kLanes];
      Store(lanes, Exp(Splat(before - shift)));
      correction = lanes[0];
    }
    tile.total[row] = tile.total[row] * correction + Sum(total);
    tile.largest[row] = largest;
    tile.correction[row] = correction;
  }
}

bool AllFinite(const float* values, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    if (!AllBelow(Abs(Load(values + i)), Splat(kInfinity))) return false;
  }
  return true;
}

void Blend(float* target, float a, const float* source, float b, int64_t count) {
  const Vec factor = Splat(a), other = Splat(b);
  for (int64_t i = 0; i < count; i += kLanes) {
    Store(target + i, Fma(Load(source + i), other, Mul(Load(target + i), factor)));
  }
}

float ExpOf(float x) {
  float lanes[kLanes];
  Store(lanes, Exp(Splat(x)));
  return lanes[0];
}
