// Parsing. As for writing, each message has a function of its own, which the compiler makes from
// the message's table: fields are expected in the order of their numbers, as every writer puts
// them, and what comes in another order or form is found by the table at run time. What counts is
// the number of instructions a field.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "onnx_light/serialization.h"
#include "wire/varint.h"

namespace onnx_light {

class Parser {
 public:
  using Byte = const uint8_t*;

  Parser(Arena& arena, const ParseInput& input, const ParseOptions& options);

  // Throws ParseError.
  void Run(const MessageInfo& info, Message& message);

  // MessageInfo::parse of a message with these fields, of which the one at `kRawData` is raw_data.
  template <const auto& kFields, uint8_t kRawData>
  static Byte ParseFields(Parser& parser, const MessageInfo& info, Message& message, Byte p,
                          Byte end, int depth) {
    while (p < end) {
      const Byte start = p;
      p = parser.ParseFrom<kFields, kRawData, 0>(info, message, p, end, depth);
      if (p == start) p = parser.ParseField(info, message, p, end, depth);
      if (p == nullptr) [[unlikely]]
        return nullptr;
    }
    return p;
  }

 private:
  // Short strings are copied together with what lies behind them, in windows: strings that follow
  // cost nothing. The window grows while strings use it up and starts small after a payload, so
  // that at most kMinWindow bytes of a payload are copied in vain.
  static constexpr uint64_t kMinWindow = 256;
  static constexpr uint64_t kMaxWindow = 32 * 1024;
  // Payloads of at least this size are copied by several threads, in pieces.
  static constexpr uint64_t kParallelPiece = 1 << 20;

  // Elements that are collected before a list is made of them: most lists are shorter and get
  // exactly the memory that they need. More are moved over piece by piece; the first piece is a
  // block of its own in the arena, which goes back to the system when the list grows.
  static constexpr size_t kMaxRun = 8 * 1024;
  // The first of them are collected on the stack. Most lists have no more.
  static constexpr size_t kShortRun = 8;

  static constexpr size_t kFetchAhead = 2048;  // bytes of the arena

  struct PendingCopy {
    BufferRef buffer;  // a later occurrence of the field may have dropped it from the message
    std::byte* to;
    const uint8_t* from;
    uint64_t size = 0;
  };

  // -------------------------------------------------------------------------------------------
  // Errors

  // Records the first error and returns null, which every caller passes on.
  [[gnu::cold]] Byte Fail(const char* code, Byte at, std::string text);
  [[gnu::cold]] Byte Truncated(Byte at, const char* what);
  [[gnu::cold]] Byte TooDeep(Byte at);
  // Adds a field to the path of an error, on the way out.
  [[gnu::cold]] Byte Inside(const FieldInfo& field, std::optional<uint64_t> index = {});

  // -------------------------------------------------------------------------------------------
  // Tags and varints

  // A tag of one or two bytes as it stands in the input, the first byte lowest; of a longer one the
  // first two, and 0 if there is none.
  [[gnu::always_inline]] static uint32_t PeekTag(Byte p, Byte end) {
    if (p >= end) return 0;
    const uint32_t first = *p;
    if (first < 0x80) [[likely]]
      return first;
    return end - p < 2 ? 0 : first | uint32_t{p[1]} << 8;
  }
  // The same of a tag that is known. REQUIRES: it has at most two bytes.
  static constexpr uint32_t TagAsRead(uint32_t tag) {
    return tag < 0x80 ? tag : (tag & 0x7f) | 0x80 | tag >> 7 << 8;
  }

  Byte ReadTag(Byte p, Byte end, uint32_t* tag);

  [[gnu::always_inline]] Byte ReadValue(Byte p, Byte end, uint64_t* value) {
    if (p < end && *p < 0x80) [[likely]] {
      *value = *p;
      return p + 1;
    }
    return ReadLongValue(p, end, value);
  }
  Byte ReadLongValue(Byte p, Byte end, uint64_t* value);

  // A length that fits in what is left. Padding beyond 5 bytes is refused, as protobuf does, unless
  // the value needs it.
  [[gnu::always_inline]] Byte ReadLength(Byte p, Byte end, uint64_t* length) {
    if (p < end && *p < 0x80 && *p < end - p) [[likely]] {
      *length = *p;
      return p + 1;
    }
    return ReadLongLength(p, end, length);
  }
  Byte ReadLongLength(Byte p, Byte end, uint64_t* length);

  // -------------------------------------------------------------------------------------------
  // Fields in their declared form

  // The fields from `kIndex` on, as far as they come in this order.
  template <const auto& kFields, uint8_t kRawData, size_t kIndex>
  [[gnu::always_inline]] Byte ParseFrom(const MessageInfo& info, Message& message, Byte p, Byte end,
                                        int depth) {
    return ParseFrom<kFields, kRawData, kIndex>(info, message, PeekTag(p, end), p, end, depth);
  }
  template <const auto& kFields, uint8_t kRawData, size_t kIndex>
  [[gnu::always_inline]] Byte ParseFrom(const MessageInfo& info, Message& message, uint32_t tag,
                                        Byte p, Byte end, int depth) {
    if constexpr (kIndex == std::size(kFields)) {
      return p;
    } else {
      constexpr const FieldInfo& kField = kFields[kIndex];
      static_assert(kField.tag_size <= 2, "numbers of fields are below 2048");
      if (tag == TagAsRead(kField.tag)) [[unlikely]] {
        p = ParseDeclared<kFields, kRawData, kIndex>(info, message, p, end, depth);
        if (p == nullptr) [[unlikely]]
          return nullptr;
        tag = PeekTag(p, end);
      }
      return ParseFrom<kFields, kRawData, kIndex + 1>(info, message, tag, p, end, depth);
    }
  }

  template <const auto& kFields, uint8_t kRawData, size_t kIndex>
  [[gnu::always_inline]] Byte ParseDeclared(const MessageInfo& info, Message& message, Byte p,
                                            Byte end, int depth) {
    constexpr const FieldInfo& kField = kFields[kIndex];
    const Byte start = p;
    p += kField.tag_size;
    if constexpr (kField.packed) {
      p = ParsePacked(message, kField, p, end);
    } else if constexpr (kField.repeated) {
      return ParseRun<kField.kind, kField.tag>(message, kField, p, end, depth);
    } else if constexpr (kField.index == kRawData) {
      p = ParsePayload(message, kField, p, end);
    } else {
      p = ParseSingular<kField.kind>(info, message, kField, start, p, end, depth);
    }
    if (p == nullptr) [[unlikely]]
      return Inside(kField);
    return p;
  }

  // REQUIRES: it is not raw_data.
  template <Kind kKind>
  [[gnu::always_inline]] Byte ParseSingular(const MessageInfo& info, Message& message,
                                            const FieldInfo& field, Byte start, Byte p, Byte end,
                                            int depth) {
    if constexpr (kKind == Kind::kMessage) {
      Message& submessage = *MutableMessage(arena_, info, message, field);
      return ParseSubmessage(*field.message, submessage, p, end, depth);
    } else if constexpr (kKind == Kind::kEnum) {
      return ParseEnum(info, message, field, start, p, end);
    } else {
      Mark(info, message, field);
      if constexpr (kKind == Kind::kString || kKind == Kind::kBytes) {
        return ParseString(Member<String>(message, field), p, end);
      } else {
        return ParseScalar<kKind>(&Member<char>(message, field), p, end);
      }
    }
  }

  // A scalar is set.
  [[gnu::always_inline]] void Mark(const MessageInfo& info, Message& message,
                                   const FieldInfo& field) {
    if (field.oneof == kNoOneof) {
      message.presence |= uint32_t{1} << field.index;
    } else {
      Select(arena_, info, message, field);
    }
  }

  // One element, then all that follow with the same tag.
  template <Kind kKind, uint32_t kTag>
  [[gnu::always_inline]] Byte ParseRun(Message& message, const FieldInfo& field, Byte p, Byte end,
                                       int depth) {
    constexpr uint64_t kWidth = ElementSize(kKind);
    char elements[kShortRun * kWidth];
    size_t count = 0;
    do {
      p = ParseElement<kKind>(field, elements + count * kWidth, p, end, depth);
      if (p == nullptr) [[unlikely]]
        return Inside(field, ViewList(message, field).size + count);
      ++count;
      if (PeekTag(p, end) != TagAsRead(kTag)) {
        char* const to = Append(message, field, count, kWidth, true);
        for (size_t i = 0; i < count; ++i) {
          std::memcpy(to + i * kWidth, elements + i * kWidth, kWidth);
          asm volatile("");  // or GCC calls memcpy for all of these few elements
        }
        return p;
      }
      p += VarintSize(kTag);
    } while (count < kShortRun);
    const size_t first = run_.size();
    for (size_t i = 0; i < count; ++i) PushBack<kWidth>(elements + i * kWidth);
    return ParseLongRun<kKind, kTag>(message, field, first, p, end, depth);
  }

  // The rest of a run whose first elements lie in run_ from `first` on.
  template <Kind kKind, uint32_t kTag>
  [[gnu::noinline]] Byte ParseLongRun(Message& message, const FieldInfo& field, size_t first,
                                      Byte p, Byte end, int depth) {
    constexpr uint64_t kWidth = ElementSize(kKind);
    for (;;) {
      char element[kWidth] = {};
      p = ParseElement<kKind>(field, element, p, end, depth);
      if (p == nullptr) [[unlikely]] {
        const uint64_t index = ViewList(message, field).size + run_.size() - first;
        run_.resize(first);
        return Inside(field, index);
      }
      PushBack<kWidth>(element);
      if (PeekTag(p, end) != TagAsRead(kTag)) break;
      p += VarintSize(kTag);
      if (run_.size() - first == kMaxRun) [[unlikely]]
        AppendRun<kWidth>(message, field, first, false);
    }
    AppendRun<kWidth>(message, field, first, true);
    return p;
  }

  template <uint64_t kWidth>
  void PushBack(const char* element) {
    uint64_t word = 0;
    std::memcpy(&word, element, kWidth);
    run_.push_back(word);
  }

  // One element of a repeated field.
  template <Kind kKind>
  [[gnu::always_inline]] Byte ParseElement(const FieldInfo& field, char* element, Byte p, Byte end,
                                           int depth) {
    if constexpr (kKind == Kind::kMessage) {
      Message* const made = NewElement(field.message_size);
      std::memcpy(element, &made, sizeof(made));
      return ParseSubmessage(*field.message, *made, p, end, depth);
    } else if constexpr (kKind == Kind::kString || kKind == Kind::kBytes) {
      String string{};
      p = ParseString(string, p, end);
      std::memcpy(element, &string, sizeof(string));
      return p;
    } else {
      return ParseScalar<kKind>(element, p, end);
    }
  }

  // An empty message. Asks for the memory of later ones, which processors do not do by themselves
  // for memory that is only written.
  [[gnu::always_inline]] Message* NewElement(size_t size) {
    auto* const memory = static_cast<char*>(arena_.Allocate(size));
    for (size_t i = 0; i < size; i += 64) __builtin_prefetch(memory + kFetchAhead + i, 1);
    asm(""
        : "+r"(size));  // of a size that they know compilers make `rep stos`, which starts slowly
    return static_cast<Message*>(std::memset(memory, 0, size));
  }

  [[gnu::always_inline]] Byte ParseSubmessage(const MessageInfo& info, Message& message, Byte p,
                                              Byte end, int depth) {
    const Byte start = p;
    uint64_t size = 0;
    p = ReadLength(p, end, &size);
    if (p == nullptr) [[unlikely]]
      return nullptr;
    if (depth == 0) [[unlikely]]
      return TooDeep(start);
    return info.parse(*this, info, message, p, p + size, depth - 1);
  }

  template <Kind kKind>
  [[gnu::always_inline]] Byte ParseScalar(void* to, Byte p, Byte end) {
    if constexpr (kKind == Kind::kFloat || kKind == Kind::kDouble) {
      constexpr size_t kSize = ElementSize(kKind);
      if (end - p < static_cast<ptrdiff_t>(kSize)) [[unlikely]]
        return Truncated(p, kSize == 4 ? "a 32-bit value" : "a 64-bit value");
      std::memcpy(to, p, kSize);
      return p + kSize;
    } else {
      uint64_t value = 0;
      p = ReadValue(p, end, &value);
      if constexpr (kKind == Kind::kBool) value = value != 0 ? 1 : 0;
      std::memcpy(to, &value, ElementSize(kKind));  // the low bytes come first
      return p;
    }
  }

  // A number that the enum does not list becomes an unknown field.
  [[gnu::always_inline]] Byte ParseEnum(const MessageInfo& info, Message& message,
                                        const FieldInfo& field, Byte start, Byte p, Byte end) {
    uint64_t value = 0;
    p = ReadValue(p, end, &value);
    if (p == nullptr) [[unlikely]]
      return nullptr;
    const auto number = static_cast<int32_t>(value);
    if (!field.enumeration->Contains(number)) [[unlikely]] {
      AppendUnknown(message, start, p);
      return p;
    }
    Mark(info, message, field);
    Member<int32_t>(message, field) = number;
    return p;
  }

  [[gnu::always_inline]] Byte ParseString(String& string, Byte p, Byte end) {
    uint64_t size = 0;
    p = ReadLength(p, end, &size);
    if (p == nullptr) [[unlikely]]
      return nullptr;
    if (!string.is_null()) [[unlikely]]
      string.Release(arena_);
    // The parser only moves forward: nothing lies before the window.
    if (size - 1 < String::kPayloadSize - 1 && p + size <= window_end_) [[likely]] {
      string.SetBorrowed(arena_, window_text_ + (p - window_begin_), size);
    } else {
      SetBytes(string, p, size);
    }
    return p + size;
  }

  // Makes room for the field's next `count` elements. `last` says that they may be all.
  [[gnu::always_inline]] char* Append(Message& message, const FieldInfo& field, size_t count,
                                      uint64_t width, bool last) {
    auto& slot = Member<ListSlot>(message, field);
    void* to = last && slot.is_null() ? arena_.Allocate(count * width) : nullptr;
    if (to != nullptr && PackedPointer::Fits(to)) [[likely]] {
      slot.SetBare(to, count);
      message.presence |= uint32_t{1} << field.index;
    } else {
      to = Extend(message, field, count, width);
    }
    return static_cast<char*>(to);
  }

  // -------------------------------------------------------------------------------------------
  // Everything else

  // A field of any form.
  Byte ParseField(const MessageInfo& info, Message& message, Byte p, Byte end, int depth);
  // One element of a repeated field that is not packed.
  Byte ParseOne(Message& message, const FieldInfo& field, Byte p, Byte end, int depth);
  Byte ParsePacked(Message& message, const FieldInfo& field, Byte p, Byte end);
  Byte ParsePayload(Message& message, const FieldInfo& field, Byte p, Byte end);
  Byte ParseUnknown(Message& message, uint32_t tag, Byte start, Byte p, Byte end, int depth);
  Byte SkipGroup(uint32_t number, Byte p, Byte end, int depth);
  Byte SkipValue(uint32_t tag, Byte start, Byte p, Byte end, int depth, bool in_group);

  // REQUIRES: `string` is null.
  void SetBytes(String& string, Byte p, uint64_t size);
  void OpenWindow(Byte p, uint64_t size);
  SharedBytes SharePayload(Byte p, uint64_t size);
  void AppendUnknown(Message& message, Byte start, Byte end);
  // Moves the elements of the run from `first` on into the field's list.
  template <uint64_t kWidth>
  void AppendRun(Message& message, const FieldInfo& field, size_t first, bool last);
  // Room for `count` more elements at the end of the field's list.
  void* Extend(Message& message, const FieldInfo& field, uint64_t count, uint64_t width);
  void CopyPending();

  Arena& arena_;
  const ParseOptions& options_;
  const BufferRef owner_;  // of the input, if it may be borrowed
  const Byte begin_;
  const Byte end_;
  bool borrowed_ = false;

  // The part of the input that strings need no copy of, and where its text is: a part that has been
  // copied or, if the input may be borrowed, all.
  Byte window_begin_ = nullptr;
  Byte window_end_ = nullptr;
  const char* window_text_ = nullptr;
  uint64_t window_size_ = kMinWindow;
  // Elements of the lists that are being read, those of inner ones last.
  std::vector<uint64_t> run_;
  std::vector<PendingCopy> copies_;

  const char* code_ = nullptr;
  std::string text_;
  std::string path_;
  Byte at_ = nullptr;
};

}  // namespace onnx_light
