#include "quant/packing.h"

#include <algorithm>

#include "quant/kernels.h"

namespace onnx_light {
namespace {

template <int kBits>
void Pack(const uint8_t* codes, int64_t count, int64_t first, std::byte* array) {
  constexpr int kInByte = 8 / kBits;
  constexpr uint8_t kMask = (1 << kBits) - 1;
  const auto pack_one = [&](int64_t i) {
    const int64_t place = first + i;
    array[place / kInByte] |=
        static_cast<std::byte>((codes[i] & kMask) << (place % kInByte * kBits));
  };
  int64_t i = 0;
  for (; i < count && (first + i) % kInByte != 0; ++i) pack_one(i);
  auto* target = reinterpret_cast<uint8_t*>(array) + (first + i) / kInByte;
  const int64_t packed_bytes =
      SelectedQuantKernels().pack_bytes(codes + i, (count - i) / kInByte, kBits, target);
  i += packed_bytes * kInByte;
  target += packed_bytes;
  for (; i + kInByte <= count; i += kInByte) {
    uint8_t packed = 0;
    for (int j = 0; j < kInByte; ++j) packed |= (codes[i + j] & kMask) << (j * kBits);
    *target++ = packed;
  }
  for (; i < count; ++i) pack_one(i);
}

template <int kBits, bool kSigned>
void Unpack(const std::byte* array, int64_t first, int64_t count, uint8_t* codes) {
  constexpr int kInByte = 8 / kBits;
  constexpr uint8_t kMask = (1 << kBits) - 1;
  constexpr uint8_t kSign = kSigned ? 1 << (kBits - 1) : 0;
  const auto extended = [](int byte, int place) {
    const int code = byte >> (place * kBits) & kMask;
    return static_cast<uint8_t>((code ^ kSign) - kSign);
  };
  const auto* bytes = reinterpret_cast<const uint8_t*>(array);
  const auto unpack_one = [&](int64_t i) {
    const int64_t place = first + i;
    codes[i] = extended(bytes[place / kInByte], static_cast<int>(place % kInByte));
  };
  int64_t i = 0;
  for (; i < count && (first + i) % kInByte != 0; ++i) unpack_one(i);
  const uint8_t* source = bytes + (first + i) / kInByte;
  const int64_t unpacked_bytes =
      SelectedQuantKernels().unpack_bytes(source, (count - i) / kInByte, kBits, kSigned, codes + i);
  i += unpacked_bytes * kInByte;
  source += unpacked_bytes;
  for (; i + kInByte <= count; i += kInByte) {
    const uint8_t byte = *source++;
    for (int j = 0; j < kInByte; ++j) codes[i + j] = extended(byte, j);
  }
  for (; i < count; ++i) unpack_one(i);
}

}  // namespace

void PackCodes(const uint8_t* codes, int64_t count, int bits, int64_t first, std::byte* array) {
  if (bits == 8) {
    std::copy_n(reinterpret_cast<const std::byte*>(codes), count, array + first);
  } else if (bits == 4) {
    Pack<4>(codes, count, first, array);
  } else {
    Pack<2>(codes, count, first, array);
  }
}

void UnpackCodes(const std::byte* array, PageType type, int64_t first, int64_t count,
                 uint8_t* codes) {
  switch (type) {
    case PageType::kInt4:
      return Unpack<4, true>(array, first, count, codes);
    case PageType::kUInt4:
      return Unpack<4, false>(array, first, count, codes);
    case PageType::kInt2:
      return Unpack<2, true>(array, first, count, codes);
    case PageType::kUInt2:
      return Unpack<2, false>(array, first, count, codes);
    default:
      std::copy_n(reinterpret_cast<const uint8_t*>(array) + first, count, codes);
  }
}

}  // namespace onnx_light
