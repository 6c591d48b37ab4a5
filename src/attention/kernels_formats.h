// How rows of each format become vectors. Included by kernels_body.h inside its anonymous
// namespace.
//
// A format F has kVectors, the vectors that one step gives; kPairs, whether they are in the order
// of Pair(); Begin(), what it needs to know of a row and group; and Load().

struct Nothing {};

struct Plain {
  static constexpr bool kPairs = false;
  static constexpr int kVectors = 1;
  static constexpr bool kGroups = false;
  using State = Nothing;
  static State Begin(const RowTile&, int64_t, int64_t) { return {}; }
};

struct F32 : Plain {
  static constexpr RowFormat kFormat = RowFormat::kF32;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    out[0] = ONNX_LIGHT_KERNELS::Load(reinterpret_cast<const float*>(row) + step * kLanes);
  }
};

#if defined(__AVX2__)

struct F16 : Plain {
  static constexpr RowFormat kFormat = RowFormat::kF16;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    out[0] = HalfToFloat(row + step * kLanes * 2);
  }
};

struct BF16 : Plain {
  static constexpr RowFormat kFormat = RowFormat::kBF16;
  static constexpr bool kPairs = true;
  static constexpr int kVectors = 2;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    BrainPairs(row + step * kLanes * 4, out);
  }
};

#if defined(__AVX512VBMI__)
struct F8E4M3FN : Plain {
  static constexpr RowFormat kFormat = RowFormat::kF8E4M3FN;
  static constexpr bool kPairs = true;
  static constexpr int kVectors = 2;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    E4M3Pairs(row + step * kLanes * 2, out);
  }
};
#else
struct F8E4M3FN : Plain {
  static constexpr RowFormat kFormat = RowFormat::kF8E4M3FN;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    out[0] = E4M3ToFloat(row + step * kLanes);
  }
};
#endif

struct F8E5M2 : Plain {
  static constexpr RowFormat kFormat = RowFormat::kF8E5M2;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    out[0] = E5M2ToFloat(row + step * kLanes);
  }
};

template <bool is_signed>
struct I8 : Plain {
  static constexpr RowFormat kFormat = is_signed ? RowFormat::kI8 : RowFormat::kU8;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    out[0] = BytesToFloat<is_signed>(row + step * kLanes);
  }
};

struct U8Lane : Plain {
  static constexpr RowFormat kFormat = RowFormat::kU8Lane;
  static void Load(const RowTile& tile, const std::byte* row, int64_t step, State, Vec* out) {
    out[0] = Sub(BytesToFloat<false>(row + step * kLanes),
                 ONNX_LIGHT_KERNELS::Load(tile.zero + step * kLanes));
  }
};

// Scale and zero point of a row and group.
struct Cell {
  Vec zero, scale;
};
inline Cell CellOf(const RowTile& tile, int64_t row, int64_t group) {
  const int64_t index = row * tile.groups + group;
  return {tile.zero != nullptr ? Splat(tile.zero[index]) : Zero(), Splat(tile.group_scale[index])};
}

template <bool is_signed>
struct I8Group : Plain {
  static constexpr RowFormat kFormat = is_signed ? RowFormat::kI8Group : RowFormat::kU8Group;
  static constexpr bool kGroups = true;
  using State = Cell;
  static State Begin(const RowTile& tile, int64_t row, int64_t group) {
    return CellOf(tile, row, group);
  }
  static void Load(const RowTile&, const std::byte* row, int64_t step, const State& cell,
                   Vec* out) {
    out[0] = Mul(Sub(BytesToFloat<is_signed>(row + step * kLanes), cell.zero), cell.scale);
  }
};

struct Packed : Plain {
  static constexpr bool kPairs = true;
  static constexpr int kVectors = 2;
};

template <bool is_signed>
struct I4 : Packed {
  static constexpr RowFormat kFormat = is_signed ? RowFormat::kI4 : RowFormat::kU4;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    Nibbles(row + step * kLanes, NibbleTable<is_signed>(), out);
  }
};

struct U4Lane : Packed {
  static constexpr RowFormat kFormat = RowFormat::kU4Lane;
  static void Load(const RowTile& tile, const std::byte* row, int64_t step, State, Vec* out) {
    Nibbles(row + step * kLanes, NibbleTable<false>(), out);
    const float* zero = tile.zero + step * 2 * kLanes;
    out[0] = Sub(out[0], ONNX_LIGHT_KERNELS::Load(zero));
    out[1] = Sub(out[1], ONNX_LIGHT_KERNELS::Load(zero + kLanes));
  }
};

template <bool is_signed>
struct I4Group : Packed {
  static constexpr RowFormat kFormat = is_signed ? RowFormat::kI4Group : RowFormat::kU4Group;
  static constexpr bool kGroups = true;
  using State = Table;
  static State Begin(const RowTile& tile, int64_t row, int64_t group) {
    const Cell cell = CellOf(tile, row, group);
    return MapTable(NibbleTable<is_signed>(), cell.zero, cell.scale);
  }
  static void Load(const RowTile&, const std::byte* row, int64_t step, const State& table,
                   Vec* out) {
    Nibbles(row + step * kLanes, table, out);
  }
};

struct Q8_0 : Plain {
  static constexpr RowFormat kFormat = RowFormat::kQ8_0;
  static constexpr int kVectors = 32 / kLanes;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    const std::byte* record = row + step * 34;
    const Vec scale = SplatHalf(record);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      out[i] = Mul(BytesToFloat<true>(record + 2 + i * kLanes), scale);
    }
  }
};

// The low halves are the first 16 numbers, in order, the high halves the others.
struct Q4_0 : Plain {
  static constexpr RowFormat kFormat = RowFormat::kQ4_0;
  static constexpr int kVectors = 32 / kLanes;
  static void Load(const RowTile&, const std::byte* row, int64_t step, State, Vec* out) {
    const std::byte* record = row + step * 18;
    const Table table = MapTable(NibbleTable<false>(), Splat(8), SplatHalf(record));
    constexpr int kHalf = kVectors / 2;
#pragma GCC unroll 2
    for (int i = 0; i < kHalf; ++i) {
      Vec halves[2];
      Nibbles(record + 2 + i * kLanes, table, halves);
      out[i] = halves[0];
      out[kHalf + i] = halves[1];
    }
  }
};

template <typename F>
constexpr void ForEachFormat(F f) {
  f(F32()), f(F16()), f(BF16()), f(F8E4M3FN()), f(F8E5M2()), f(I8<true>()), f(I8<false>());
  f(U8Lane()), f(I8Group<true>()), f(I8Group<false>()), f(I4<true>()), f(I4<false>());
  f(U4Lane()), f(I4Group<true>()), f(I4Group<false>()), f(Q8_0()), f(Q4_0());
}

#else

template <typename F>
constexpr void ForEachFormat(F f) {
  f(F32());
}

#endif
