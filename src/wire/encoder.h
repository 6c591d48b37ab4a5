// Writing from the end to the front: every length is known when its place is reached, so that one
// pass is enough.
//
// Each message has a function of its own, which the compiler makes from the message's table: what
// the table says of a field is known where the field is written. That takes half the time of a loop
// that looks the rows up.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "onnx_light/message_ops.h"
#include "onnx_light/serialization.h"
#include "wire/varint.h"

namespace onnx_light {

// An int32 goes out as the 64-bit varint of its value: ten bytes if negative.
template <typename T>
constexpr uint64_t AsVarint(T value) {
  if constexpr (std::is_signed_v<T>) return static_cast<uint64_t>(static_cast<int64_t>(value));
  return value;
}

[[noreturn]] void ThrowTooDeep(const FieldInfo& field);

// Whether skip_raw_data leaves a payload of this size out.
inline bool IsSkipped(uint64_t size, const SerializeOptions& options) {
  return options.skip_raw_data && size >= options.raw_data_threshold;
}

inline void CountPayload(uint64_t size, const SerializeOptions& options,
                         SerializeSizeResult& sizes) {
  (size >= options.raw_data_threshold ? sizes.big_data_size : sizes.small_data_size) += size;
}

// Writes the last byte first. The place in the output goes from call to call by value: a member
// would be loaded again after every byte that is stored.
class Encoder {
 public:
  using Run = Serializer::Segments::Run;

  Encoder(const SerializeOptions& options, const Replacements* replacements,
          SerializeSizeResult& sizes, uint64_t& shared_size)
      : options_(options), replacements_(replacements), sizes_(sizes), shared_size_(shared_size) {}

  // The whole message, as runs in the order of the output. Runs without an owner lie in the
  // message. Throws ValueError `message.depth`.
  std::vector<Run> Encode(const MessageInfo& info, const Message& message);

  // MessageInfo::write of a message with these fields, of which the one at `kRawData` is raw_data.
  template <const auto& kFields, uint8_t kRawData>
  static uint8_t* WriteFields(Encoder& encoder, const Message& message, uint8_t* p, int depth) {
    if (message.unknown != nullptr) [[unlikely]]
      p = encoder.WriteBytes(UnknownFields(message), p);
    return encoder.WriteFirst<kFields, kRawData, std::size(kFields)>(message, message.presence, p,
                                                                     depth);
  }

 private:
  // What is free in front of `p` wherever a value is about to be written: enough for a string that
  // is copied inline, or a number, and two tags with lengths.
  static constexpr size_t kSlack = 64;
  static constexpr size_t kMaxInline = 32;
  static constexpr uint64_t kFirstPiece = 1024;
  static constexpr size_t kFetchAhead = 12;  // elements of a list

  // -------------------------------------------------------------------------------------------
  // Fields

  // The first `kCount` fields.
  template <const auto& kFields, uint8_t kRawData, size_t kCount>
  [[gnu::always_inline]] uint8_t* WriteFirst(const Message& message, uint32_t presence, uint8_t* p,
                                             int depth) {
    if constexpr (kCount == 0) {
      return p;
    } else {
      constexpr const FieldInfo& kField = kFields[kCount - 1];
      // Most fields of most messages are not set: their code lies out of the way.
      if ((presence >> kField.index & 1) != 0) [[unlikely]] {
        const void* const member = &Member<char>(message, kField);
        p = Reserve(p);
        if constexpr (kField.repeated) {
          p = WriteList<kField.kind, kField.tag, kField.packed>(
              kField, static_cast<const ListSlot*>(member)->view(), p, depth);
        } else if constexpr (kField.index == kRawData) {
          p = WriteRawData<kField.tag>(*static_cast<const String*>(member), p);
        } else {
          p = WriteValue<kField.kind, kField.tag>(kField, member, p, depth);
        }
      }
      return WriteFirst<kFields, kRawData, kCount - 1>(message, presence, p, depth);
    }
  }

  template <Kind kKind, uint32_t kTag>
  [[gnu::always_inline]] uint8_t* WriteValue(const FieldInfo& field, const void* value, uint8_t* p,
                                             int depth) {
    if constexpr (kKind == Kind::kMessage) {
      return WriteMessage<kTag>(field, **static_cast<const Message* const*>(value), p, depth);
    } else if constexpr (kKind == Kind::kString || kKind == Kind::kBytes) {
      return WriteString<kTag>(*static_cast<const String*>(value), p);
    } else {
      return PutTag<kTag>(PutNumber<kKind>(value, p));
    }
  }

  template <Kind kKind, uint32_t kTag, bool kPacked>
  [[gnu::always_inline]] uint8_t* WriteList(const FieldInfo& field, ListView list, uint8_t* p,
                                            int depth) {
    if constexpr (kPacked) {
      if (list.size == 0) return p;  // it is left out
      const uint64_t behind = Written(p);
      p = WritePacked<kKind>(list, p);
      return PutTagged<kTag>(Written(p) - behind, p);
    } else {
      constexpr uint64_t kWidth = ElementSize(kKind);
      const char* const elements = static_cast<const char*>(list.data);
      for (uint64_t i = list.size; i-- > 0;) {
        if constexpr (kKind == Kind::kMessage) Fetch(list.span<Message*>(), i);
        p = WriteValue<kKind, kTag>(field, elements + i * kWidth, Reserve(p), depth);
      }
      return p;
    }
  }

  template <uint32_t kTag>
  uint8_t* WriteRawData(const String& string, uint8_t* p) {
    if (IsSkipped(string.size(), options_)) return p;
    CountPayload(string.size(), options_, sizes_);
    return WriteString<kTag>(string, p);
  }

  template <uint32_t kTag>
  [[gnu::always_inline]] uint8_t* WriteMessage(const FieldInfo& field, const Message& message,
                                               uint8_t* p, int depth) {
    if (depth == kMaxDepth) ThrowTooDeep(field);
    const uint64_t behind = Written(p);
    p = Reserve(field.message->write(*this, Resolve(message), p, depth + 1));
    return PutTagged<kTag>(Written(p) - behind, p);
  }

  template <uint32_t kTag>
  [[gnu::always_inline]] uint8_t* WriteString(const String& string, uint8_t* p) {
    if (string.is_payload()) [[unlikely]]
      return PutTagged<kTag>(string.size(), WritePayload(string, p));
    const std::string_view bytes = string.view();
    if (bytes.size() > kMaxInline) [[unlikely]]
      return PutTagged<kTag>(bytes.size(), WriteBytes(bytes, p));
    p -= bytes.size();
    CopyInline(p, bytes.data(), bytes.size());
    *--p = static_cast<uint8_t>(bytes.size());
    return PutTag<kTag>(p);
  }

  // The numbers without a tag.
  template <Kind kKind>
  [[gnu::noinline]] uint8_t* WritePacked(ListView list, uint8_t* p) {
    constexpr uint64_t kWidth = ElementSize(kKind);
    const char* const elements = static_cast<const char*>(list.data);
    if constexpr (!IsVarint(kKind)) {
      return WriteBytes({elements, static_cast<size_t>(list.size * kWidth)}, p);
    } else {
      for (uint64_t i = list.size; i-- > 0;) {
        p = PutNumber<kKind>(elements + i * kWidth, Reserve(p));
      }
      return p;
    }
  }

  const Message& Resolve(const Message& message) const {
    if (replacements_ == nullptr) [[likely]]
      return message;
    const auto found = replacements_->find(&message);
    return found == replacements_->end() ? message : *found->second;
  }

  // Asks for the memory of an element of a list before it is needed: processors do that by
  // themselves for memory that is read upwards, but not well for this way. What a parser has made
  // for an element lies between it and the next one.
  [[gnu::always_inline]] static void Fetch(std::span<Message* const> messages, uint64_t i) {
    if (i < kFetchAhead) return;
    constexpr uintptr_t kLine = 64;
    constexpr uintptr_t kMost = 1024;
    const auto from = reinterpret_cast<uintptr_t>(messages[i - kFetchAhead]);
    const auto to = reinterpret_cast<uintptr_t>(messages[i - kFetchAhead + 1]);
    const uintptr_t size = to - from;  // huge if the next one lies below
    for (uintptr_t at = 0; at < std::min(size, kMost); at += kLine) {
      __builtin_prefetch(reinterpret_cast<const void*>(from + at));
    }
  }

  // -------------------------------------------------------------------------------------------
  // Numbers. REQUIRES: kSlack bytes were free in front of the value that they belong to.

  static constexpr bool IsVarint(Kind kind) {
    return kind != Kind::kFloat && kind != Kind::kDouble && kind != Kind::kBool;
  }

  template <Kind kKind>
  [[gnu::always_inline]] static uint8_t* PutNumber(const void* value, uint8_t* p) {
    if constexpr (!IsVarint(kKind)) {
      p -= ElementSize(kKind);
      std::memcpy(p, value, ElementSize(kKind));
      return p;
    } else if constexpr (kKind == Kind::kInt64 || kKind == Kind::kUint64) {
      return PutVarint(*static_cast<const uint64_t*>(value), p);
    } else if constexpr (kKind == Kind::kUint32) {
      return PutVarint(*static_cast<const uint32_t*>(value), p);
    } else {
      return PutVarint(AsVarint(*static_cast<const int32_t*>(value)), p);
    }
  }

  [[gnu::always_inline]] static uint8_t* PutVarint(uint64_t value, uint8_t* p) {
    if (value >= 0x80) [[unlikely]]
      return PutLongVarint(value, p);
    *--p = static_cast<uint8_t>(value);
    return p;
  }
  static uint8_t* PutLongVarint(uint64_t value, uint8_t* p);

  template <uint32_t kTag>
  [[gnu::always_inline]] static uint8_t* PutTag(uint8_t* p) {
    constexpr size_t kSize = VarintSize(kTag);
    constexpr std::array<uint8_t, kSize> kBytes = [] {
      std::array<uint8_t, kSize> bytes{};
      onnx_light::WriteVarint(kTag, bytes.data());
      return bytes;
    }();
    p -= kSize;
    std::memcpy(p, kBytes.data(), kSize);
    return p;
  }
  // A number, and in front of it its tag.
  template <uint32_t kTag>
  [[gnu::always_inline]] static uint8_t* PutTagged(uint64_t value, uint8_t* p) {
    return PutTag<kTag>(PutVarint(value, p));
  }

  // -------------------------------------------------------------------------------------------
  // Bytes

  // memcpy of at most kMaxInline bytes, as two pieces that may overlap.
  [[gnu::always_inline]] static void CopyInline(uint8_t* to, const char* from, size_t size) {
    if (size > 16) {
      CopyTwo<std::array<uint64_t, 2>>(to, from, size);
    } else if (size >= 8) {
      CopyTwo<uint64_t>(to, from, size);
    } else if (size >= 4) {
      CopyTwo<uint32_t>(to, from, size);
    } else if (size >= 2) {
      CopyTwo<uint16_t>(to, from, size);
    } else if (size == 1) {
      *to = static_cast<uint8_t>(*from);
    }
  }
  template <typename Word>
  [[gnu::always_inline]] static void CopyTwo(uint8_t* to, const char* from, size_t size) {
    Word first, last;
    std::memcpy(&first, from, sizeof(Word));
    std::memcpy(&last, from + size - sizeof(Word), sizeof(Word));
    std::memcpy(to, &first, sizeof(Word));
    std::memcpy(to + size - sizeof(Word), &last, sizeof(Word));
  }

  // Long bytes of the message are referred to: they are copied once, into the output.
  uint8_t* WriteBytes(std::string_view bytes, uint8_t* p);
  uint8_t* WritePayload(const String& string, uint8_t* p);

  // -------------------------------------------------------------------------------------------
  // The output

  // Makes kSlack bytes free in front of `p`.
  [[gnu::always_inline]] uint8_t* Reserve(uint8_t* p) {
    if (p >= limit_) [[likely]]
      return p;
    return NextPiece(0, p);
  }
  // Begins a piece of kSlack and `size` bytes, or more.
  uint8_t* NextPiece(size_t size, uint8_t* p);
  // What was written into the piece becomes a run; writing goes on in front of it.
  void FinishRun(uint8_t* p);
  // Bytes that lie elsewhere become a run.
  void AddRun(Run run, uint8_t* p);
  // The size of the output from `p` on.
  uint64_t Written(const uint8_t* p) const { return origin_ - reinterpret_cast<uintptr_t>(p); }

  const SerializeOptions& options_;
  const Replacements* replacements_;
  SerializeSizeResult& sizes_;
  uint64_t& shared_size_;
  uint8_t* limit_ = nullptr;  // kSlack bytes behind the begin of the piece that is being filled
  uint8_t* end_ = nullptr;    // of what is in it and in no run yet
  uint64_t origin_ = 0;       // the address where the output would end if all were in this piece
  BufferRef piece_;
  std::vector<Run> runs_;
};

}  // namespace onnx_light
