// Codes below 8 bits, low bits first. Included by kernels_body.h inside its anonymous namespace.

using Bytes = uint8_t __attribute__((vector_size(16)));
using Words = uint16_t __attribute__((vector_size(16)));
constexpr int64_t kBytes = 16;

inline Bytes LoadBytes(const uint8_t* source) {
  Bytes bytes;
  __builtin_memcpy(&bytes, source, sizeof(bytes));
  return bytes;
}
inline void StoreAll(uint8_t* target, const Bytes& bytes) {
  __builtin_memcpy(target, &bytes, sizeof(bytes));
}

// The low bits of each byte, then the high ones, each in a byte of its own.
template <int kBits>
struct Halves {
  explicit Halves(const Bytes& bytes) {
    const Bytes low = bytes & static_cast<uint8_t>((1 << kBits) - 1), high = bytes >> kBits;
    first =
        __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    second = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                     30, 15, 31);
  }
  Bytes first, second;
};

// Two bytes become one, of which the first has the low bits.
template <int kBits>
inline Bytes Joined(const Bytes& first, const Bytes& second) {
  constexpr uint16_t kLow = (1 << kBits) - 1, kHigh = kLow << kBits;
  const auto join = [](const Bytes& bytes) -> Bytes {
    const auto words = reinterpret_cast<Words>(bytes);
    return reinterpret_cast<Bytes>((words & kLow) | (words >> (8 - kBits) & kHigh));
  };
  return __builtin_shufflevector(join(first), join(second), 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,
                                 22, 24, 26, 28, 30);
}

template <int kBits>
inline void StoreCodes(uint8_t* target, const Bytes& codes, bool is_signed) {
  const auto sign = static_cast<uint8_t>(is_signed ? 1 << (kBits - 1) : 0);
  StoreAll(target, (codes ^ sign) - sign);
}

int64_t UnpackBytes(const uint8_t* packed, int64_t count, int bits, bool is_signed,
                    uint8_t* codes) {
  int64_t i = 0;
  for (; i + kBytes <= count; i += kBytes) {
    const Halves<4> nibbles(LoadBytes(packed + i));
    if (bits == 4) {
      StoreCodes<4>(codes + 2 * i, nibbles.first, is_signed);
      StoreCodes<4>(codes + 2 * i + kBytes, nibbles.second, is_signed);
      continue;
    }
    const Halves<2> first(nibbles.first), second(nibbles.second);
    StoreCodes<2>(codes + 4 * i, first.first, is_signed);
    StoreCodes<2>(codes + 4 * i + kBytes, first.second, is_signed);
    StoreCodes<2>(codes + 4 * i + 2 * kBytes, second.first, is_signed);
    StoreCodes<2>(codes + 4 * i + 3 * kBytes, second.second, is_signed);
  }
  return i;
}

int64_t PackBytes(const uint8_t* codes, int64_t count, int bits, uint8_t* packed) {
  int64_t i = 0;
  for (; i + kBytes <= count; i += kBytes) {
    const auto load = [&](int64_t k) { return LoadBytes(codes + i * (8 / bits) + k * kBytes); };
    if (bits == 4) {
      StoreAll(packed + i, Joined<4>(load(0), load(1)));
    } else {
      StoreAll(packed + i, Joined<4>(Joined<2>(load(0), load(1)), Joined<2>(load(2), load(3))));
    }
  }
  return i;
}
