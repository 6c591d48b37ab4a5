// Parsing, table driven. One check of the end per field; fields of one number in a row are read in
// a loop of their own.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/threads.h"
#include "onnx_light/errors.h"
#include "onnx_light/serialization.h"
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

WireType WireTypeOf(Kind kind) {
  switch (kind) {
    case Kind::kFloat:
      return WireType::kFixed32;
    case Kind::kDouble:
      return WireType::kFixed64;
    case Kind::kString:
    case Kind::kBytes:
    case Kind::kMessage:
      return WireType::kLengthDelimited;
    default:
      return WireType::kVarint;
  }
}

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
  Byte Fail(const char* code, Byte at, std::string text) {
    code_ = code;
    at_ = at;
    text_ = std::move(text);
    return nullptr;
  }
  Byte Truncated(Byte at, const char* what) {
    return Fail("wire.truncated", at, std::string("the message ends inside ") + what);
  }
  // Adds a field to the path of an error, on the way out.
  Byte Inside(const FieldInfo& field, std::optional<uint64_t> index = {}) {
    std::string step = field.name;
    if (index) step += '[' + std::to_string(*index) + ']';
    path_ = path_.empty() ? step : step + '.' + path_;
    return nullptr;
  }

  Byte ReadTag(Byte p, Byte end, uint32_t* tag) {
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
  Byte ParseField(const MessageInfo& info, Message& message, const FieldInfo& field, uint32_t tag,
                  Byte start, Byte p, Byte end, int depth);
  Byte ParseSingular(const MessageInfo& info, Message& message, const FieldInfo& field, Byte start,
                     Byte p, Byte end, int depth);
  Byte ParseRepeated(Message& message, const FieldInfo& field, uint32_t tag, Byte p, Byte end,
                     int depth);
  Byte ParseSubmessage(const MessageInfo& info, Message& message, Byte p, Byte end, int depth);
  Byte ParsePacked(RepeatedBase& list, Kind kind, Byte p, Byte end);
  Byte ParseScalar(Kind kind, void* to, Byte p, Byte end);
  Byte ParseString(String& string, Byte p, Byte end);
  Byte ParsePayload(Message& message, const FieldInfo& field, Byte p, Byte end);
  Byte ParseUnknown(Message& message, uint32_t tag, Byte start, Byte p, Byte end, int depth);
  Byte SkipGroup(uint32_t number, Byte p, Byte end, int depth);
  Byte SkipValue(uint32_t tag, Byte start, Byte p, Byte end, int depth, bool in_group);

  void SetBytes(String& string, Byte p, uint64_t size);
  char* OwnBytes(Byte p, uint64_t size);
  SharedBytes SharePayload(Byte p, uint64_t size);
  void AppendUnknown(Message& message, Byte start, Byte end);
  void CopyPending();

  Arena& arena_;
  const ParseOptions& options_;
  const BufferRef owner_;  // of the input, if it may be borrowed
  const Byte begin_;
  const Byte end_;
  bool borrowed_ = false;

  Byte window_end_ = nullptr;
  char* window_text_ = nullptr;  // the copy of the byte at window_begin_
  Byte window_begin_ = nullptr;
  uint64_t window_size_ = kMinWindow;
  std::vector<PendingCopy> copies_;

  const char* code_ = nullptr;
  std::string text_;
  std::string path_;
  Byte at_ = nullptr;
};

// ---------------------------------------------------------------------------------------------
// Bytes

char* Parser::OwnBytes(Byte p, uint64_t size) {
  if (size > static_cast<uint64_t>(window_end_ - p) || window_end_ == nullptr || p > window_end_) {
    const uint64_t left = static_cast<uint64_t>(end_ - p);
    const uint64_t window = std::max(size, std::min(window_size_, left));
    window_text_ = static_cast<char*>(arena_.Allocate(window));
    std::memcpy(window_text_, p, window);
    window_begin_ = p;
    window_end_ = p + window;
    window_size_ = std::min(window_size_ * 2, kMaxWindow);
  }
  return window_text_ + (p - window_begin_);
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

void Parser::SetBytes(String& string, Byte p, uint64_t size) {
  if (string.size() != 0) string.Release(arena_);
  if (size >= String::kPayloadSize) {
    string.SetShared(arena_, SharePayload(p, size));
    window_size_ = kMinWindow;
  } else if (size == 0) {
    string.Set(arena_, {});
  } else if (owner_) {
    string.SetBorrowed(reinterpret_cast<const char*>(p), size);
    borrowed_ = true;
  } else {
    string.SetOwned(OwnBytes(p, size), size);
  }
}

void Parser::AppendUnknown(Message& message, Byte start, Byte end) {
  AppendUnknownFields(arena_, message,
                      {reinterpret_cast<const char*>(start), static_cast<size_t>(end - start)});
}

Parser::Byte Parser::ParseString(String& string, Byte p, Byte end) {
  uint64_t size = 0;
  p = ReadLength(p, end, &size);
  if (p == nullptr) return nullptr;
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
  SetBytes(Member<String>(message, field), p, size);
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
  if (wire == WireType::kVarint) {
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

Parser::Byte Parser::ParseSubmessage(const MessageInfo& info, Message& message, Byte p, Byte end,
                                     int depth) {
  const Byte start = p;
  uint64_t size = 0;
  p = ReadLength(p, end, &size);
  if (p == nullptr) return nullptr;
  if (depth == 0) {
    return Fail(
        "wire.depth", start,
        "more than " + std::to_string(options_.max_recursion_depth) + " levels of messages");
  }
  return ParseMessage(info, message, p, p + size, depth - 1);
}

// Decodes varints up to `end` into [to, limit). Returns where it stopped: the end, a bad varint, or
// the limit (the bytes of a mapped file may change between counting and decoding).
template <typename T>
const uint8_t* DecodePacked(const uint8_t* p, const uint8_t* end, T* to, const T* limit) {
  uint64_t value = 0;
  while (end - p >= kMaxVarintSize && to != limit) {
    const uint8_t* next = ReadVarintUnchecked(p, &value);
    if (next == nullptr) return p;
    *to++ = static_cast<T>(value);  // a bool becomes "not zero"
    p = next;
  }
  while (p < end && to != limit) {
    const uint8_t* next = ReadVarint(p, end, &value);
    if (next == nullptr) return p;
    *to++ = static_cast<T>(value);
    p = next;
  }
  return p;
}

template <typename T>
const uint8_t* DecodeInto(const RepeatedBase& list, uint64_t count, const uint8_t* p,
                          const uint8_t* end) {
  T* to = static_cast<T*>(list.data) + list.size;
  return DecodePacked(p, end, to, to + count);
}

Parser::Byte Parser::ParsePacked(RepeatedBase& list, Kind kind, Byte p, Byte end) {
  uint64_t size = 0;
  p = ReadLength(p, end, &size);
  if (p == nullptr) return nullptr;
  end = p + size;
  const uint64_t width = ElementSize(kind);
  if (WireTypeOf(kind) != WireType::kVarint) {
    if (size % width != 0) return Truncated(p, "a packed value");
    Reserve(arena_, list, list.size + size / width, width);
    if (size != 0) std::memcpy(static_cast<char*>(list.data) + list.size * width, p, size);
    list.size += size / width;
    return end;
  }
  // Every varint ends in one byte below 0x80, so the room is known before the first is decoded.
  const auto count =
      static_cast<uint64_t>(std::count_if(p, end, [](uint8_t b) { return b < 128; }));
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

Parser::Byte Parser::ParseSingular(const MessageInfo& info, Message& message,
                                   const FieldInfo& field, Byte start, Byte p, Byte end,
                                   int depth) {
  switch (field.kind) {
    case Kind::kMessage:
      return ParseSubmessage(*field.message, *MutableMessage(arena_, info, message, field), p, end,
                             depth);
    case Kind::kString:
    case Kind::kBytes:
      if (field.index == info.raw_data) return ParsePayload(message, field, p, end);
      Select(arena_, info, message, field);
      return ParseString(Member<String>(message, field), p, end);
    case Kind::kEnum: {
      uint64_t value = 0;
      p = ReadValue(p, end, &value);
      if (p == nullptr) return nullptr;
      const auto number = static_cast<int32_t>(value);
      if (!field.enumeration->Contains(number)) {
        AppendUnknown(message, start, p);
        return p;
      }
      Select(arena_, info, message, field);
      Member<int32_t>(message, field) = number;
      return p;
    }
    default:
      Select(arena_, info, message, field);
      return ParseScalar(field.kind, &Member<char>(message, field), p, end);
  }
}

// One element, then all that follow with the same tag.
Parser::Byte Parser::ParseRepeated(Message& message, const FieldInfo& field, uint32_t tag, Byte p,
                                   Byte end, int depth) {
  RepeatedBase& list = *MutableRepeated(arena_, message, field);
  const uint64_t width = ElementSize(field.kind);
  const bool scalar = WireTypeOf(field.kind) != WireType::kLengthDelimited;
  if (scalar && static_cast<WireType>(tag & 7) == WireType::kLengthDelimited) {
    p = ParsePacked(list, field.kind, p, end);
    return p == nullptr ? Inside(field) : p;
  }
  for (;;) {
    if (field.kind == Kind::kMessage) {
      Message* element = AddMessage(arena_, *field.message, list);
      p = ParseSubmessage(*field.message, *element, p, end, depth);
    } else {
      if (list.size == list.capacity) Reserve(arena_, list, list.size + 1, width);
      char* element = static_cast<char*>(list.data) + list.size * width;
      if (scalar) {
        p = ParseScalar(field.kind, element, p, end);
      } else {
        std::memset(element, 0, sizeof(String));
        p = ParseString(*reinterpret_cast<String*>(element), p, end);
      }
      ++list.size;
    }
    if (p == nullptr) return Inside(field, list.size - 1);
    // Tags of fields below 16 are one byte: most repeated fields.
    if (p == end || *p != tag || tag >= 0x80) return p;
    ++p;
  }
}

Parser::Byte Parser::ParseField(const MessageInfo& info, Message& message, const FieldInfo& field,
                                uint32_t tag, Byte start, Byte p, Byte end, int depth) {
  const auto wire = static_cast<WireType>(tag & 7);
  const WireType natural = WireTypeOf(field.kind);
  if (field.repeated) {
    const bool packed = wire == WireType::kLengthDelimited && natural != wire;
    if (wire == natural || packed) return ParseRepeated(message, field, tag, p, end, depth);
  } else if (wire == natural) {
    p = ParseSingular(info, message, field, start, p, end, depth);
    return p == nullptr ? Inside(field) : p;
  }
  return ParseUnknown(message, tag, start, p, end, depth);
}

Parser::Byte Parser::ParseMessage(const MessageInfo& info, Message& message, Byte p, Byte end,
                                  int depth) {
  while (p < end) {
    const Byte start = p;
    uint32_t tag = *p;
    if (tag < 0x80) [[likely]] {
      ++p;
    } else {
      p = ReadTag(p, end, &tag);
      if (p == nullptr) return nullptr;
    }
    const FieldInfo* field = info.Find(tag >> 3);
    p = field != nullptr ? ParseField(info, message, *field, tag, start, p, end, depth)
                         : ParseUnknown(message, tag, start, p, end, depth);
    if (p == nullptr) return nullptr;
  }
  return p;
}

}  // namespace

void Parse(Arena& arena, const MessageInfo& info, Message& message, const ParseInput& input,
           const ParseOptions& options) {
  Parser(arena, input, options).Run(info, message);
}

}  // namespace onnx_light
