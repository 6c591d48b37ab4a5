// Single fields of protobuf's wire format, for the parts of a file that no message class reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "snapshot/format.h"
#include "wire/varint.h"

namespace onnx_light::snapshot {

// ---------------------------------------------------------------------------------------------
// Writing, at the end of a string.

// A padded varint takes five bytes, whatever its value, so that what follows stays in its place.
// Stock readers accept up to five bytes for a length.
inline constexpr uint64_t kPaddedSize = 5;
inline constexpr uint64_t kMaxPadded = (uint64_t{1} << 35) - 1;

inline void PutVarint(std::string& out, uint64_t value) {
  uint8_t bytes[kMaxVarintSize];
  out.append(reinterpret_cast<char*>(bytes), WriteVarint(value, bytes) - bytes);
}

// REQUIRES: value <= kMaxPadded.
inline void PutPadded(std::string& out, uint64_t value) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>((value >> 7 * i & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value >> 28));
}

inline void PutTag(std::string& out, uint32_t number, WireType type) {
  PutVarint(out, MakeTag(number, type));
}

inline void PutNumber(std::string& out, uint32_t number, uint64_t value) {
  PutTag(out, number, WireType::kVarint);
  PutVarint(out, value);
}

inline void PutPaddedNumber(std::string& out, uint32_t number, uint64_t value) {
  PutTag(out, number, WireType::kVarint);
  PutPadded(out, value);
}

inline void PutFixed64(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline void PutText(std::string& out, uint32_t number, std::string_view text) {
  PutTag(out, number, WireType::kLengthDelimited);
  PutVarint(out, text.size());
  out.append(text);
}

// The tag and the padded length of `size` bytes that follow. REQUIRES: size <= kMaxPadded.
inline void PutPaddedHeader(std::string& out, uint32_t number, uint64_t size) {
  PutTag(out, number, WireType::kLengthDelimited);
  PutPadded(out, size);
}

// Bytes of filler that a part needs which ends at `end` and must end on kAlignment. The smallest
// filler, an empty field, takes 3 bytes: a gap of 1 or 2 becomes one of 65 or 66.
constexpr uint64_t FillerSize(uint64_t end) {
  const uint64_t gap = (kAlignment - end % kAlignment) % kAlignment;
  return gap == 1 || gap == 2 ? gap + kAlignment : gap;
}

// REQUIRES: size is 0 or 3 to 66.
inline void PutFiller(std::string& out, uint64_t size) {
  if (size == 0) return;
  PutTag(out, kFillerField, WireType::kLengthDelimited);
  PutVarint(out, size - 3);
  out.append(size - 3, '\0');
}

// ---------------------------------------------------------------------------------------------
// Reading.

struct Field {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;                // of a varint, fixed32 or fixed64
  std::span<const std::byte> bytes;  // of a length-delimited field
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

// One field after the other. Groups, which this format never has, count as malformed.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes)
      : begin_(reinterpret_cast<const uint8_t*>(bytes.data())),
        at_(begin_),
        end_(begin_ + bytes.size()) {}

  // False at the end and where the bytes are malformed.
  bool Next(Field* field) {
    if (at_ == end_) return false;
    const uint8_t* at = Read(field);
    if (at == nullptr) {
      malformed_ = true;
      return false;
    }
    at_ = at;
    return true;
  }

  bool malformed() const { return malformed_; }
  // Of the field that Next() would read, or of the malformed one.
  uint64_t offset() const { return static_cast<uint64_t>(at_ - begin_); }

 private:
  // The byte behind the field, or null.
  const uint8_t* Read(Field* field) const {
    uint64_t tag;
    const uint8_t* at = ReadVarint(at_, end_, &tag);
    if (at == nullptr || tag > UINT32_MAX || tag >> 3 == 0) return nullptr;
    field->number = static_cast<uint32_t>(tag >> 3);
    field->type = static_cast<WireType>(tag & 7);
    switch (field->type) {
      case WireType::kVarint:
        return ReadVarint(at, end_, &field->value);
      case WireType::kFixed32:
        return ReadFixed<uint32_t>(at, field);
      case WireType::kFixed64:
        return ReadFixed<uint64_t>(at, field);
      case WireType::kLengthDelimited: {
        uint64_t size;
        at = ReadVarint(at, end_, &size);
        if (at == nullptr || size > static_cast<uint64_t>(end_ - at)) return nullptr;
        field->bytes = {reinterpret_cast<const std::byte*>(at), static_cast<size_t>(size)};
        return at + size;
      }
      default:
        return nullptr;
    }
  }

  template <typename T>
  const uint8_t* ReadFixed(const uint8_t* at, Field* field) const {
    if (static_cast<size_t>(end_ - at) < sizeof(T)) return nullptr;
    T value;
    std::memcpy(&value, at, sizeof(value));
    field->value = value;
    return at + sizeof(value);
  }

  const uint8_t* begin_;
  const uint8_t* at_;
  const uint8_t* end_;
  bool malformed_ = false;
};

}  // namespace onnx_light::snapshot
