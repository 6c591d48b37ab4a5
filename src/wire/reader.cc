// Parsing, table driven. One check of the end per field; fields of one number in a row are read in
// a loop of their own. What counts is the number of instructions a field: the memory that is made
// is a tenth of the time.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/threads.h"
#include "onnx_light/errors.h"
#include "onnx_light/serialization.h"
#include "wire/packed_varints.h"
#include "wire/table.h"
#include "wire/varint.h"

namespace onnx_light {
namespace {

// Short strings are copied together with what lies behind them, in windows: strings that follow
// cost nothing. The window grows while strings use it up and starts small after a payload, so that
// at most kMinWindow bytes of a payload are copied in vain.
constexpr uint64_t kMinWindow = 256;
constexpr uint64_t kMaxWindow = 32 * 1024;
// Payloads of at least this size are copied by several threads, in pieces.
constexpr uint64_t kParallelPiece = 1 << 20;

// Elements that are collected before a list is made of them: most lists are shorter and get exactly
// the memory that they need. More are moved over piece by piece; the first piece is a block of its
// own in the arena, which goes back to the system when the list grows.
constexpr size_t kMaxRun = 8 * 1024;
// The first of them are collected on the stack. Most lists have no more.
constexpr size_t kShortRun = 8;

struct PendingCopy {
  BufferRef buffer;  // a later occurrence of the field may have dropped it from the message
  std::byte* to;
  const uint8_t* from;
  uint64_t size = 0;
};

class Parser {
 public:
  Parser(Arena& arena, const ParseInput& input, const ParseOptions& options)
      : arena_(arena),
        options_(options),
        owner_(options.no_copy ? input.owner : BufferRef()),
        begin_(reinterpret_cast<const uint8_t*>(input.bytes.data())),
        end_(begin_ + input.bytes.size()) {}

  void Run(const MessageInfo& info, Message& message) {
    arena_.Expect(static_cast<uint64_t>(end_ - begin_));
    if (begin_ != end_ &&
        ParseMessage(info, message, begin_, end_, options_.max_recursion_depth) == nullptr) {
      throw ParseError(code_, path_, static_cast<uint64_t>(at_ - begin_), text_);
    }
    if (borrowed_) arena_.Keep(owner_);
    CopyPending();
  }

 private:
  using Byte = const uint8_t*;

  // Records the first error and returns null, which every caller passes on.
  [[gnu::cold, gnu::noinline]] Byte Fail(const char* code, Byte at, std::string text) {
    code_ = code;
    at_ = at;
    text_ = std::move(text);
    return nullptr;
  }
  [[gnu::cold, gnu::noinline]] Byte Truncated(Byte at, const char* what) {
    return Fail("wire.truncated", at, std::string("the message ends inside ") + what);
  }
  // Adds a field to the path of an error, on the way out.
  [[gnu::cold, gnu::noinline]] Byte Inside(const FieldInfo& field,
                                           std::optional<uint64_t> index = {}) {
    std::string step = field.name;
    if (index) step += '[' + std::to_string(*index) + ']';
    path_ = path_.empty() ? step : step + '.' + path_;
    return nullptr;
  }

  [[gnu::noinline]] Byte ReadTag(Byte p, Byte end, uint32_t* tag) {
    const Byte start = p;
    uint64_t value = *p++;
    for (int shift = 7; p[-1] >= 0x80; shift += 7) {
      if (p == end) return Truncated(start, "a tag");
      if (shift == 35) return Fail("wire.tag", start, "a tag is longer than 5 bytes");
      value = (value & ((uint64_t{1} << shift) - 1)) | static_cast<uint64_t>(*p++) << shift;
    }
    if (value > std::numeric_limits<uint32_t>::max()) {
      return Fail("wire.tag", start, "a tag is over 32 bits");
    }
    *tag = static_cast<uint32_t>(value);
    return p;
  }

  Byte ReadValue(Byte p, Byte end, uint64_t* value) {
    if (p < end && *p < 0x80) [[likely]] {
      *value = *p;
      return p + 1;
    }
    return ReadLongValue(p, end, value);
  }

  [[gnu::noinline]] Byte ReadLongValue(Byte p, Byte end, uint64_t* value) {
    const Byte start = p;
    p = ReadVarint(p, end, value);
    if (p != nullptr) [[likely]]
      return p;
    if (end - start >= kMaxVarintSize) {
      return Fail("wire.varint", start, "a varint is longer than 10 bytes");
    }
    return Truncated(start, "a varint");
  }

  // A length that fits in what is left. Padding beyond 5 bytes is refused, as protobuf does, unless
  // the value needs it.
  Byte ReadLength(Byte p, Byte end, uint64_t* length) {
    if (p < end && *p < 0x80 && *p < end - p) [[likely]] {
      *length = *p;
      return p + 1;
    }
    return ReadLongLength(p, end, length);
  }

  [[gnu::noinline]] Byte ReadLongLength(Byte p, Byte end, uint64_t* length) {
    const Byte start = p;
    p = ReadValue(p, end, length);
    if (p == nullptr) return nullptr;
    if (p - start > 5 && *length <= std::numeric_limits<uint32_t>::max()) {
      return Fail("wire.length", start, "a length is padded beyond 5 bytes");
    }
    if (*length > static_cast<uint64_t>(end - p)) {
      return Fail("wire.truncated", start,
                  "a length of " + std::to_string(*length) + " bytes, but only " +
                      std::to_string(end - p) + " are left");
    }
    return p;
  }

  Byte ParseMessage(const MessageInfo& info, Message& message, Byte p, Byte end, int depth);
  [[gnu::noinline]] Byte ParseField(const MessageInfo& info, Message& message, Byte p, Byte end,
                                    int depth);
  Byte ParseEnum(Message& message, const FieldInfo& field, Byte start, Byte p, Byte end);
  Byte ParseSingular(const MessageInfo& info, Message& message, const FieldInfo& field, Byte start,
                     Byte p, Byte end, int depth);
  Byte ParseRun(Message& message, const FieldInfo& field, uint32_t tag, Byte p, Byte end,
                int depth);
  template <Kind kKind>
  Byte ParseElement(const FieldInfo& field, uint64_t* element, Byte p, Byte end, int depth);
  template <Kind kKind>
  [[gnu::noinline]] Byte ParseRunOf(Message& message, const FieldInfo& field, uint32_t tag, Byte p,
                                    Byte end, int depth);
  template <Kind kKind>
  [[gnu::noinline]] Byte ParseLongRun(Message& message, const FieldInfo& field, uint32_t tag,
                                      size_t first, Byte p, Byte end, int depth);
  template <uint64_t kWidth>
  char* Append(Message& message, const FieldInfo& field, size_t count, bool last);
  template <uint64_t kWidth>
  [[gnu::noinline]] void AppendRun(Message& message, const FieldInfo& field, size_t first,
                                   bool last);
  void* Extend(Message& message, const FieldInfo& field, uint64_t count, uint64_t width);
  Byte ParseSubmessage(const MessageInfo& info, Message& message, Byte p, Byte end, int depth);
  Byte ParsePacked(Message& message, const FieldInfo& field, Byte p, Byte end);
  Byte ParseScalar(Kind kind, void* to, Byte p, Byte end);
  Byte ParseString(String& string, Byte p, Byte end);
  Byte ParsePayload(Message& message, const FieldInfo& field, Byte p, Byte end);
  Byte ParseUnknown(Message& message, uint32_t tag, Byte start, Byte p, Byte end, int depth);
  Byte SkipGroup(uint32_t number, Byte p, Byte end, int depth);
  Byte SkipValue(uint32_t tag, Byte start, Byte p, Byte end, int depth, bool in_group);

  void SetBytes(String& string, Byte p, uint64_t size);
  void OpenWindow(Byte p, uint64_t size);
  SharedBytes SharePayload(Byte p, uint64_t size);
  void AppendUnknown(Message& message, Byte start, Byte end);
  void CopyPending();

  Arena& arena_;
  const ParseOptions& options_;
  const BufferRef owner_;  // of the input, if it may be borrowed
  const Byte begin_;
  const Byte end_;
  bool borrowed_ = false;

  // The part of the input that has been copied last, and where.
  Byte window_begin_ = nullptr;
  Byte window_end_ = nullptr;
  const char* window_text_ = nullptr;
  uint64_t window_size_ = kMinWindow;
  std::vector<uint64_t>
      run_;  // elements of the lists that are being read, those of inner ones last
  std::vector<PendingCopy> copies_;

  const char* code_ = nullptr;
  std::string text_;
  std::string path_;
  Byte at_ = nullptr;
};

// ---------------------------------------------------------------------------------------------
// Bytes

void Parser::OpenWindow(Byte p, uint64_t size) {
  const uint64_t window = std::max(size, std::min(window_size_, static_cast<uint64_t>(end_ - p)));
  char* text = static_cast<char*>(arena_.Allocate(window));
  std::memcpy(text, p, window);
  window_text_ = text;
  window_begin_ = p;
  window_end_ = p + window;
  window_size_ = std::min(window_size_ * 2, kMaxWindow);
}

SharedBytes Parser::SharePayload(Byte p, uint64_t size) {
  if (owner_) return SharedBytes(p, size, owner_);
  BufferRef buffer = BufferRef::Allocate(size);
  if (options_.num_threads == 1 || size < kParallelPiece) {
    std::memcpy(buffer.mutable_data(), p, size);
  } else {
    for (uint64_t done = 0; done < size; done += kParallelPiece) {
      copies_.push_back(
          {buffer, buffer.mutable_data() + done, p + done, std::min(kParallelPiece, size - done)});
    }
  }
  return SharedBytes(std::move(buffer));
}

void Parser::CopyPending() {
  ParallelFor(options_.num_threads, copies_.size(),
              [&](uint64_t i) { std::memcpy(copies_[i].to, copies_[i].from, copies_[i].size); });
}

// REQUIRES: `string` is null.
inline void Parser::SetBytes(String& string, Byte p, uint64_t size) {
  if (size - 1 >= String::kPayloadSize - 1) [[unlikely]] {  // 0 or a payload
    if (size == 0) return;
    string.SetShared(arena_, SharePayload(p, size));
    window_size_ = kMinWindow;
  } else if (owner_) {
    string.SetBorrowed(arena_, reinterpret_cast<const char*>(p), size);
    borrowed_ = true;
  } else {
    // The parser only moves forward: nothing lies before the window.
    if (p + size > window_end_) [[unlikely]]
      OpenWindow(p, size);
    string.SetBorrowed(arena_, window_text_ + (p - window_begin_), size);
  }
}

void Parser::AppendUnknown(Message& message, Byte start, Byte end) {
  AppendUnknownFields(arena_, message,
                      {reinterpret_cast<const char*>(start), static_cast<size_t>(end - start)});
}

inline Parser::Byte Parser::ParseString(String& string, Byte p, Byte end) {
  uint64_t size = 0;
  p = ReadLength(p, end, &size);
  if (p == nullptr) return nullptr;
  if (!string.is_null()) [[unlikely]]
    string.Release(arena_);
  SetBytes(string, p, size);
  return p + size;
}

Parser::Byte Parser::ParsePayload(Message& message, const FieldInfo& field, Byte p, Byte end) {
  const Byte start = p;
  uint64_t size = 0;
  p = ReadLength(p, end, &size);
  if (p == nullptr) return nullptr;
  if (options_.max_tensor_size_bytes != 0 && size > options_.max_tensor_size_bytes) {
    return Fail("wire.payload_limit", start,
                "a payload of " + std::to_string(size) + " bytes, at most " +
                    std::to_string(options_.max_tensor_size_bytes) + " are allowed");
  }
  if (options_.skip_raw_data && size >= options_.raw_data_threshold) return p + size;
  message.presence |= uint32_t{1} << field.index;
  auto& string = Member<String>(message, field);
  string.Release(arena_);
  SetBytes(string, p, size);
  return p + size;
}

// ---------------------------------------------------------------------------------------------
// Unknown fields

Parser::Byte Parser::SkipGroup(uint32_t number, Byte p, Byte end, int depth) {
  const Byte group = p;
  if (depth == 0) {
    return Fail(
        "wire.depth", p,
        "more than " + std::to_string(options_.max_recursion_depth) + " levels of messages");
  }
  while (p < end) {
    const Byte start = p;
    uint32_t tag = 0;
    p = ReadTag(p, end, &tag);
    if (p == nullptr) return nullptr;
    if (static_cast<WireType>(tag & 7) == WireType::kEndGroup) {
      if (tag >> 3 == number) return p;
      return Fail("wire.group", start,
                  "an end-group tag of field " + std::to_string(tag >> 3) +
                      " in a group of field " + std::to_string(number));
    }
    p = SkipValue(tag, start, p, end, depth - 1, true);
    if (p == nullptr) return nullptr;
  }
  return Truncated(group, "a group");
}

// The end of a field that is not ours. protobuf lets number 0 pass inside an unknown group.
Parser::Byte Parser::SkipValue(uint32_t tag, Byte start, Byte p, Byte end, int depth,
                               bool in_group) {
  if (tag >> 3 == 0 && !in_group) return Fail("wire.tag", start, "field number 0");
  uint64_t value = 0;
  switch (static_cast<WireType>(tag & 7)) {
    case WireType::kVarint:
      return ReadValue(p, end, &value);
    case WireType::kFixed64:
      return end - p < 8 ? Truncated(start, "a 64-bit value") : p + 8;
    case WireType::kFixed32:
      return end - p < 4 ? Truncated(start, "a 32-bit value") : p + 4;
    case WireType::kLengthDelimited:
      p = ReadLength(p, end, &value);
      return p == nullptr ? nullptr : p + value;
    case WireType::kStartGroup:
      return SkipGroup(tag >> 3, p, end, depth);
    case WireType::kEndGroup:
      return Fail("wire.group", start, "an end-group tag without its group");
  }
  return Fail("wire.tag", start, "wire type " + std::to_string(tag & 7) + " does not exist");
}

Parser::Byte Parser::ParseUnknown(Message& message, uint32_t tag, Byte start, Byte p, Byte end,
                                  int depth) {
  p = SkipValue(tag, start, p, end, depth, false);
  if (p != nullptr) AppendUnknown(message, start, p);
  return p;
}

// ---------------------------------------------------------------------------------------------
// Known fields

inline Parser::Byte Parser::ParseScalar(Kind kind, void* to, Byte p, Byte end) {
  const WireType wire = WireTypeOf(kind);
  if (wire == WireType::kVarint) [[likely]] {
    uint64_t value = 0;
    p = ReadValue(p, end, &value);
    if (p == nullptr) return nullptr;
    if (kind == Kind::kBool) {
      *static_cast<bool*>(to) = value != 0;
    } else if (kind == Kind::kInt64 || kind == Kind::kUint64) {
      std::memcpy(to, &value, 8);
    } else {
      std::memcpy(to, &value, 4);
    }
    return p;
  }
  const int size = wire == WireType::kFixed32 ? 4 : 8;
  if (end - p < size) return Truncated(p, size == 4 ? "a 32-bit value" : "a 64-bit value");
  std::memcpy(to, p, static_cast<size_t>(size));
  return p + size;
}

[[gnu::always_inline]] inline Parser::Byte Parser::ParseSubmessage(const MessageInfo& info,
                                                                   Message& message, Byte p,
                                                                   Byte end, int depth) {
  const Byte start = p;
  uint64_t size = 0;
  p = ReadLength(p, end, &size);
  if (p == nullptr) return nullptr;
  if (depth == 0) [[unlikely]] {
    return Fail(
        "wire.depth", start,
        "more than " + std::to_string(options_.max_recursion_depth) + " levels of messages");
  }
  return ParseMessage(info, message, p, p + size, depth - 1);
}

template <typename T>
const uint8_t* DecodeInto(const RepeatedBase& list, uint64_t count, const uint8_t* p,
                          const uint8_t* end) {
  T* to = static_cast<T*>(list.data) + list.size;
  return DecodeVarints(p, end, to, to + count);
}

Parser::Byte Parser::ParsePacked(Message& message, const FieldInfo& field, Byte p, Byte end) {
  RepeatedBase& list = *MutableRepeated(arena_, message, field);
  uint64_t size = 0;
  p = ReadLength(p, end, &size);
  if (p == nullptr) return nullptr;
  end = p + size;
  const uint64_t width = ElementSize(field.kind);
  if (field.wire != WireType::kVarint) {
    if (size % width != 0) return Truncated(p, "a packed value");
    Reserve(arena_, list, list.size + size / width, width);
    if (size != 0) std::memcpy(static_cast<char*>(list.data) + list.size * width, p, size);
    list.size += size / width;
    return end;
  }
  // Every varint ends in one byte below 0x80, so the room is known before the first is decoded.
  const uint64_t count = CountVarints(p, end);
  Reserve(arena_, list, list.size + count, width);
  const Byte stop = width == 8   ? DecodeInto<uint64_t>(list, count, p, end)
                    : width == 4 ? DecodeInto<uint32_t>(list, count, p, end)
                                 : DecodeInto<bool>(list, count, p, end);
  if (stop != end) {
    uint64_t ignored = 0;
    if (ReadValue(stop, end, &ignored) == nullptr) return nullptr;
    return Fail("wire.changed", stop, "the input changed while it was read");
  }
  list.size += count;
  return end;
}

// Leaves the other members of a oneof as they are. REQUIRES: it is not raw_data.
[[gnu::always_inline]] inline Parser::Byte Parser::ParseSingular(const MessageInfo& info,
                                                                 Message& message,
                                                                 const FieldInfo& field, Byte start,
                                                                 Byte p, Byte end, int depth) {
  switch (field.kind) {
    case Kind::kString:
    case Kind::kBytes:
      message.presence |= uint32_t{1} << field.index;
      return ParseString(Member<String>(message, field), p, end);
    case Kind::kEnum:
      return ParseEnum(message, field, start, p, end);
    case Kind::kMessage:
      return ParseSubmessage(*field.message, *MutableMessage(arena_, info, message, field), p, end,
                             depth);
    default:
      message.presence |= uint32_t{1} << field.index;
      return ParseScalar(field.kind, &Member<char>(message, field), p, end);
  }
}

inline Parser::Byte Parser::ParseEnum(Message& message, const FieldInfo& field, Byte start, Byte p,
                                      Byte end) {
  uint64_t value = 0;
  p = ReadValue(p, end, &value);
  if (p == nullptr) return nullptr;
  const auto number = static_cast<int32_t>(value);
  if (!field.enumeration->Contains(number)) [[unlikely]] {
    AppendUnknown(message, start, p);
    return p;
  }
  message.presence |= uint32_t{1} << field.index;
  Member<int32_t>(message, field) = number;
  return p;
}

// Makes room for the field's next `count` elements. `last` says that they may be all.
template <uint64_t kWidth>
inline char* Parser::Append(Message& message, const FieldInfo& field, size_t count, bool last) {
  auto& slot = Member<ListSlot>(message, field);
  void* to = last && slot.is_null() ? arena_.Allocate(count * kWidth) : nullptr;
  if (to != nullptr && PackedPointer::Fits(to)) [[likely]] {
    slot.SetBare(to, count);
    message.presence |= uint32_t{1} << field.index;
  } else {
    to = Extend(message, field, count, kWidth);
  }
  return static_cast<char*>(to);
}

// Moves the elements of the run from `first` on into the field's list.
template <uint64_t kWidth>
void Parser::AppendRun(Message& message, const FieldInfo& field, size_t first, bool last) {
  char* const to = Append<kWidth>(message, field, run_.size() - first, last);
  for (size_t i = first; i < run_.size(); ++i) {
    std::memcpy(to + (i - first) * kWidth, &run_[i], kWidth);
  }
  run_.resize(first);
}

// Room for `count` more elements at the end of the field's list.
void* Parser::Extend(Message& message, const FieldInfo& field, uint64_t count, uint64_t width) {
  RepeatedBase& list = *MutableRepeated(arena_, message, field);
  Reserve(arena_, list, list.size + count, width);
  void* to = static_cast<char*>(list.data) + list.size * width;
  list.size += count;
  return to;
}

// One element of a repeated field, into the first bytes of a word that is zero.
template <Kind kKind>
inline Parser::Byte Parser::ParseElement(const FieldInfo& field, uint64_t* element, Byte p,
                                         Byte end, int depth) {
  if constexpr (kKind == Kind::kMessage) {
    Message* made = NewMessage(arena_, *field.message);
    std::memcpy(element, &made, sizeof(made));
    return ParseSubmessage(*field.message, *made, p, end, depth);
  } else if constexpr (kKind == Kind::kString) {
    String string{};
    p = ParseString(string, p, end);
    std::memcpy(element, &string, sizeof(string));
    return p;
  } else {
    return ParseScalar(kKind, element, p, end);
  }
}

// One element, then all that follow with the same tag.
template <Kind kKind>
Parser::Byte Parser::ParseRunOf(Message& message, const FieldInfo& field, uint32_t tag, Byte p,
                                Byte end, int depth) {
  uint64_t elements[kShortRun];
  size_t count = 0;
  do {
    elements[count] = 0;
    p = ParseElement<kKind>(field, &elements[count], p, end, depth);
    if (p == nullptr) [[unlikely]]
      return Inside(field, ViewList(message, field).size + count);
    ++count;
    // Tags of fields below 16 are one byte: most repeated fields.
    if (p == end || *p != tag || tag >= 0x80) {
      constexpr uint64_t kWidth = ElementSize(kKind);
      char* const to = Append<kWidth>(message, field, count, true);
      for (size_t i = 0; i < count; ++i) {
        std::memcpy(to + i * kWidth, &elements[i], kWidth);
        asm volatile("");  // or GCC calls memcpy for all of these few elements
      }
      return p;
    }
    ++p;
  } while (count < kShortRun);
  const size_t first = run_.size();
  run_.insert(run_.end(), elements, elements + count);
  return ParseLongRun<kKind>(message, field, tag, first, p, end, depth);
}

// The rest of a run whose first elements lie in run_ from `first` on.
template <Kind kKind>
Parser::Byte Parser::ParseLongRun(Message& message, const FieldInfo& field, uint32_t tag,
                                  size_t first, Byte p, Byte end, int depth) {
  for (;;) {
    uint64_t element = 0;
    p = ParseElement<kKind>(field, &element, p, end, depth);
    if (p == nullptr) [[unlikely]] {
      const uint64_t index = ViewList(message, field).size + run_.size() - first;
      run_.resize(first);
      return Inside(field, index);
    }
    run_.push_back(element);
    if (p == end || *p != tag) break;
    ++p;
    if (run_.size() - first == kMaxRun) [[unlikely]] {
      AppendRun<ElementSize(kKind)>(message, field, first, false);
    }
  }
  AppendRun<ElementSize(kKind)>(message, field, first, true);
  return p;
}

inline Parser::Byte Parser::ParseRun(Message& message, const FieldInfo& field, uint32_t tag, Byte p,
                                     Byte end, int depth) {
  switch (field.kind) {
    case Kind::kMessage:
      return ParseRunOf<Kind::kMessage>(message, field, tag, p, end, depth);
    case Kind::kString:
    case Kind::kBytes:
      return ParseRunOf<Kind::kString>(message, field, tag, p, end, depth);
    case Kind::kInt64:
    case Kind::kUint64:
      return ParseRunOf<Kind::kUint64>(message, field, tag, p, end, depth);
    case Kind::kInt32:
    case Kind::kUint32:
    case Kind::kEnum:
      return ParseRunOf<Kind::kUint32>(message, field, tag, p, end, depth);
    case Kind::kFloat:
      return ParseRunOf<Kind::kFloat>(message, field, tag, p, end, depth);
    case Kind::kDouble:
      return ParseRunOf<Kind::kDouble>(message, field, tag, p, end, depth);
    case Kind::kBool:
      return ParseRunOf<Kind::kBool>(message, field, tag, p, end, depth);
  }
  return nullptr;
}

// A field of any form.
Parser::Byte Parser::ParseField(const MessageInfo& info, Message& message, Byte p, Byte end,
                                int depth) {
  const Byte start = p;
  uint32_t tag = 0;
  p = ReadTag(p, end, &tag);
  if (p == nullptr) return nullptr;
  const FieldInfo* field = info.Find(tag >> 3);
  const auto wire = static_cast<WireType>(tag & 7);
  if (field == nullptr) return ParseUnknown(message, tag, start, p, end, depth);
  if (field->repeated && wire == field->wire) return ParseRun(message, *field, tag, p, end, depth);
  if (field->repeated && wire == WireType::kLengthDelimited) {
    p = ParsePacked(message, *field, p, end);
  } else if (wire != field->wire) {
    return ParseUnknown(message, tag, start, p, end, depth);
  } else if (field->index == info.raw_data) {
    p = ParsePayload(message, *field, p, end);
  } else {
    p = ParseSingular(info, message, *field, start, p, end, depth);
    // Afterwards: a number that an enum does not list changes nothing.
    if (field->oneof != kNoOneof && Has(message, *field)) Select(arena_, info, message, *field);
  }
  return p == nullptr ? Inside(*field) : p;
}

Parser::Byte Parser::ParseMessage(const MessageInfo& info, Message& message, Byte p, Byte end,
                                  int depth) {
  while (p < end) {
    const Byte start = p;
    uint32_t tag = *p++;
    if (tag >= 0x80) {
      // A tag of more than two bytes, or less than all of its bytes, becomes one that is not found.
      tag = p < end ? (tag & 0x7f) | uint32_t{*p++} << 7 : info.plain.size();
    }
    const uint8_t index = tag < info.plain.size() ? info.plain[tag] : MessageInfo::kNoField;
    if (index == MessageInfo::kNoField) [[unlikely]] {
      p = ParseField(info, message, start, end, depth);
    } else if (const FieldInfo& field = info.fields[index]; field.repeated) {
      p = ParseRun(message, field, tag, p, end, depth);
    } else {
      p = ParseSingular(info, message, field, start, p, end, depth);
      if (p == nullptr) [[unlikely]]
        return Inside(field);
    }
    if (p == nullptr) [[unlikely]]
      return nullptr;
  }
  return p;
}

}  // namespace

void Parse(Arena& arena, const MessageInfo& info, Message& message, const ParseInput& input,
           const ParseOptions& options) {
  Parser(arena, input, options).Run(info, message);
}

}  // namespace onnx_light
