// Scores of keys that are codes, by products of bytes: 64 at once instead of 16, and codes need not
// be widened. A query becomes a whole number of 24 bits in three planes of signed bytes, so sums
// are exact and all that is lost is half a unit of the query's largest number. Included by
// kernels_body.h inside its anonymous namespace.
//
// Sixteen keys are turned first: lane i of column j has bytes 4j to 4j + 3 of key i, which a
// product with the same bytes of a query adds up. So no lanes are left to be added at the end.

using Ints = __m512i;

constexpr int kPlanes = 3;                 // high, middle, low
constexpr int kTurned = 16;                // keys that are turned at once: one for each lane
constexpr int64_t kByteChannels = 128;     // whose sums of two planes together fit into 32 bits
constexpr float kLargestWhole = 0x7f7f70;  // below 0x7f7f7f, the most that planes hold

// Some channels of queries, 16 after 16, so that an address and constants reach all of them. Of the
// four times 16 bytes for each the last are nothing.
struct ByteQueries {
  alignas(64) int8_t bytes[kByteChannels / kLanes][kMaxRows][4][kLanes];
  float unit[kMaxRows];  // what 1 stands for
  // What is to be subtracted from sums for what codes are too large by.
  int32_t high_excess[kMaxRows], low_excess[kMaxRows];
};

// Whether it could be done: all numbers are finite, their size is far from the ends of the range,
// and none has more than a quarter of the sum of all, beside which its half unit might show.
inline bool Split(const float* query, int64_t count, int row, ByteQueries* split) {
  Vec largest = Zero(), total = Zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec size = Abs(Load(query + i));
    largest = Max(size, largest);
    total = Add(total, size);
  }
  const float most = Largest(largest), sum = Sum(total);
  if (!(most > 0x1p-60f && sum < 0x1p60f && most * 4 <= sum)) return false;
  split->unit[row] = most / kLargestWhole;
  const Vec factor = Splat(kLargestWhole / most);
  const Ints middle = _mm512_set1_epi32(0x808080);  // makes bytes that carry no signs into others
  const Ints first = _mm512_setr_epi32(0x0c080400, 0x1c181410, 0x2c282420, 0x3c383430, 0, 0, 0, 0,
                                       0, 0, 0, 0, 0, 0, 0, 0);
  const Ints places = _mm512_or_si512(
      _mm512_shuffle_i32x4(first, first, 0x00),
      _mm512_setr_epi32(0x02020202, 0x02020202, 0x02020202, 0x02020202, 0x01010101, 0x01010101,
                        0x01010101, 0x01010101, 0, 0, 0, 0, 0, 0, 0, 0));
  for (int64_t i = 0; i < count; i += kLanes) {
    const Ints whole = _mm512_cvtps_epi32(Mul(Load(query + i), factor));
    const Ints bytes =
        _mm512_permutexvar_epi8(places, _mm512_xor_si512(_mm512_add_epi32(whole, middle), middle));
    _mm512_store_si512(split->bytes[i / kLanes][row], bytes);
  }
  return true;
}

// How codes of a format become bytes without a sign, which are kExcess too large.
template <bool is_signed, bool has_zeros>
struct ByteCodes {
  static constexpr int kBits = 8;
  static constexpr int kParts = 1;
  static constexpr bool kZeros = has_zeros;
  static constexpr uint8_t kExcess = is_signed ? 128 : 0;
  static Ints Part(Ints column, int) {
    return _mm512_xor_si512(column, _mm512_set1_epi8(static_cast<char>(kExcess)));
  }
};

// First the low halves of 16 bytes, then the high ones.
template <bool is_signed, bool has_zeros>
struct NibbleCodes {
  static constexpr int kBits = 4;
  static constexpr int kParts = 2;
  static constexpr bool kZeros = has_zeros;
  static constexpr uint8_t kExcess = is_signed ? 8 : 0;
  static Ints Part(Ints column, int part) {
    if (part == 1) column = _mm512_srli_epi32(column, 4);
    return _mm512_xor_si512(_mm512_and_si512(column, _mm512_set1_epi8(15)),
                            _mm512_set1_epi8(static_cast<char>(kExcess)));
  }
};

// The first 16 bytes of sixteen rows as four columns.
inline void Turn(const std::byte* rows, int64_t row_size, Ints* columns) {
  const std::byte* quarters[4] = {rows, rows + 4 * row_size, rows + 8 * row_size,
                                  rows + 12 * row_size};
  // Of row i in each quarter.
  const auto load = [&](int64_t offset) {
    const auto bytes = [&](int k) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(quarters[k] + offset));
    };
    Ints all = _mm512_castsi128_si512(bytes(0));
    all = _mm512_mask_broadcast_i32x4(all, 0x00f0, bytes(1));
    all = _mm512_mask_broadcast_i32x4(all, 0x0f00, bytes(2));
    return _mm512_mask_broadcast_i32x4(all, 0xf000, bytes(3));
  };
  const Ints a = load(0), b = load(row_size), c = load(2 * row_size), d = load(3 * row_size);
  const Ints ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
  const Ints cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  columns[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  columns[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  columns[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  columns[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// Adds the products of each four bytes of a column with the same four of a query. As an
// instruction, for with the intrinsic g++ 12 moves sums from register to register.
inline void AddProducts(Ints column, const int8_t* query, Ints* sums) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(*sums)
      : "v"(column), "m"(*reinterpret_cast<const int8_t(*)[4]>(query)));
}

// Products of the first `count` channels of sixteen keys with queries from the one at `first` on,
// added to what scores have already unless this is the beginning.
template <typename Codes, int kQueries>
inline void TurnAndMultiply(const std::byte* rows, int64_t row_size, int64_t count,
                            const ByteQueries& queries, int first, bool begin, Fetcher& fetcher,
                            float* scores) {
  Ints sums[kQueries][kPlanes];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 3
    for (int p = 0; p < kPlanes; ++p) sums[q][p] = _mm512_setzero_si512();
  }
  int64_t step = 0;
  for (int64_t channel = 0; channel < count; channel += kLanes * Codes::kParts, rows += 16) {
    asm("" : "+r"(step));  // so that one register follows it, and not one for each query and plane
    const auto* bytes = &queries.bytes[step][first];
    fetcher.FetchPortion();
    step += Codes::kParts;
    Ints columns[4];
    Turn(rows, row_size, columns);
#pragma GCC unroll 2
    for (int part = 0; part < Codes::kParts; ++part) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Ints column = Codes::Part(columns[i], part);
#pragma GCC unroll 4
        for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 3
          for (int p = 0; p < kPlanes; ++p) {
            AddProducts(column, bytes[part * kMaxRows + q][p] + 4 * i, &sums[q][p]);
          }
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    const int row = first + q;
    const Ints high =
        _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(sums[q][0], 8), sums[q][1]),
                         _mm512_set1_epi32(queries.high_excess[row]));
    const Ints low = _mm512_sub_epi32(sums[q][2], _mm512_set1_epi32(queries.low_excess[row]));
    const Vec whole = Fma(_mm512_cvtepi32_ps(high), Splat(256), _mm512_cvtepi32_ps(low));
    float* target = scores + row * kTileTokens;
    const Vec before = begin ? Zero() : Load(target);
    Store(target, Fma(whole, Splat(queries.unit[row]), before));
  }
}

template <typename Codes>
inline void TurnAndMultiply(const std::byte* rows, int64_t row_size, int64_t count,
                            const ByteQueries& queries, int total, bool begin, Fetcher& fetcher,
                            float* scores) {
  int first = 0;
  for (; first + 4 <= total; first += 4) {
    TurnAndMultiply<Codes, 4>(rows, row_size, count, queries, first, begin, fetcher, scores);
  }
  switch (total - first) {
    case 1:
      return TurnAndMultiply<Codes, 1>(rows, row_size, count, queries, first, begin, fetcher,
                                       scores);
    case 2:
      return TurnAndMultiply<Codes, 2>(rows, row_size, count, queries, first, begin, fetcher,
                                       scores);
    case 3:
      return TurnAndMultiply<Codes, 3>(rows, row_size, count, queries, first, begin, fetcher,
                                       scores);
    default:
      return;
  }
}

// What codes of `count` channels are too large by, as bytes, and zeros up to kByteChannels.
template <typename Codes>
inline void ExcessOf(const float* zeros, int64_t count, uint8_t* excess) {
  for (int64_t i = 0; i < kByteChannels; i += kLanes) {
    Ints numbers = _mm512_setzero_si512();
    if (i < count) {
      numbers =
          Codes::kZeros ? _mm512_cvtps_epi32(Load(zeros + i)) : _mm512_set1_epi32(Codes::kExcess);
    }
    _mm_store_si128(reinterpret_cast<__m128i*>(excess + i), _mm512_cvtepi32_epi8(numbers));
  }
}

// Splits `count` channels, from the one at `channel` on.
template <typename Codes>
inline bool SplitQueries(const RowTile& keys, const QueryRows& queries, int64_t channel,
                         int64_t count, ByteQueries* split) {
  constexpr bool kExact = !Codes::kZeros && Codes::kExcess == 0;
  alignas(64) uint8_t excess[kByteChannels];
  if (!kExact) ExcessOf<Codes>(keys.zero + channel, count, excess);
  for (int row = 0; row < queries.count; ++row) {
    if (!Split(queries.data + row * queries.stride + channel, count, row, split)) return false;
    split->high_excess[row] = split->low_excess[row] = 0;
    if (kExact) continue;
    Ints sums = _mm512_setzero_si512();
    for (int64_t i = 0; i < count; i += kLanes) {
      sums = _mm512_dpbusd_epi32(
          sums, _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<__m128i*>(excess + i))),
          _mm512_load_si512(split->bytes[i / kLanes][row]));
    }
    // Each quarter is of a plane.
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
    alignas(64) int32_t lanes[kLanes];
    _mm512_store_si512(lanes, sums);
    split->high_excess[row] = lanes[0] * 256 + lanes[4];
    split->low_excess[row] = lanes[8];
  }
  return true;
}

// Scores of format F, whose codes are Codes. What is left of the tokens goes the usual way.
template <typename F, typename Codes>
void ByteScores(const RowTile& keys, int64_t tokens, const QueryRows& queries, float* scores) {
  const int64_t turned = tokens - tokens % kTurned, width = keys.width;
  const int64_t steps = width / (kLanes * Codes::kParts), passes = (queries.count + 3) / 4;
  Fetcher fetcher(keys.ahead, turned / kTurned * steps * passes);
  for (int64_t channel = 0; channel < width && turned > 0; channel += kByteChannels) {
    const int64_t count = width - channel < kByteChannels ? width - channel : kByteChannels;
    ByteQueries split;
    if (!SplitQueries<Codes>(keys, queries, channel, count, &split)) {
      return Scores<F>(keys, tokens, queries, scores);
    }
    const std::byte* rows = keys.data + channel * Codes::kBits / 8;
    for (int64_t row = 0; row < turned; row += kTurned) {
      TurnAndMultiply<Codes>(rows + row * keys.row_size, keys.row_size, count, split, queries.count,
                             channel == 0, fetcher, scores + row);
    }
  }
  if (turned == tokens) return;
  RowTile rest = keys;
  rest.data += turned * keys.row_size;
  if (turned > 0) rest.ahead = {};
  Scores<F>(rest, tokens - turned, queries, scores + turned);
}

template <bool is_signed>
struct ScoresKernel<I8<is_signed>> {
  static constexpr auto kEntry = &ByteScores<I8<is_signed>, ByteCodes<is_signed, false>>;
};
template <>
struct ScoresKernel<U8Lane> {
  static constexpr auto kEntry = &ByteScores<U8Lane, ByteCodes<false, true>>;
};
template <bool is_signed>
struct ScoresKernel<I4<is_signed>> {
  static constexpr auto kEntry = &ByteScores<I4<is_signed>, NibbleCodes<is_signed, false>>;
};
template <>
struct ScoresKernel<U4Lane> {
  static constexpr auto kEntry = &ByteScores<U4Lane, NibbleCodes<false, true>>;
};
