#include "wire/parser.h"

#include <limits>
#include <utility>

#include "base/threads.h"
#include "onnx_light/errors.h"
#include "wire/packed_varints.h"
#include "wire/table.h"

namespace onnx_light {

Parser::Parser(Arena& arena, const ParseInput& input, const ParseOptions& options)
    : arena_(arena),
      options_(options),
      owner_(options.no_copy ? input.owner : BufferRef()),
      begin_(reinterpret_cast<const uint8_t*>(input.bytes.data())),
      end_(begin_ + input.bytes.size()) {}

void Parser::Run(const MessageInfo& info, Message& message) {
  arena_.Expect(static_cast<uint64_t>(end_ - begin_));
  if (begin_ != end_ &&
      info.parse(*this, info, message, begin_, end_, options_.max_recursion_depth) == nullptr) {
    throw ParseError(code_, path_, static_cast<uint64_t>(at_ - begin_), text_);
  }
  if (borrowed_) arena_.Keep(owner_);
  CopyPending();
}

// ---------------------------------------------------------------------------------------------
// Errors

Parser::Byte Parser::Fail(const char* code, Byte at, std::string text) {
  code_ = code;
  at_ = at;
  text_ = std::move(text);
  return nullptr;
}

Parser::Byte Parser::Truncated(Byte at, const char* what) {
  return Fail("wire.truncated", at, std::string("the message ends inside ") + what);
}

Parser::Byte Parser::TooDeep(Byte at) {
  return Fail("wire.depth", at,
              "more than " + std::to_string(options_.max_recursion_depth) + " levels of messages");
}

Parser::Byte Parser::Inside(const FieldInfo& field, std::optional<uint64_t> index) {
  std::string step = field.name;
  if (index) step += '[' + std::to_string(*index) + ']';
  path_ = path_.empty() ? step : step + '.' + path_;
  return nullptr;
}

// ---------------------------------------------------------------------------------------------
// Tags and varints

Parser::Byte Parser::ReadTag(Byte p, Byte end, uint32_t* tag) {
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

Parser::Byte Parser::ReadLongValue(Byte p, Byte end, uint64_t* value) {
  const Byte start = p;
  p = ReadVarint(p, end, value);
  if (p != nullptr) [[likely]]
    return p;
  if (end - start >= kMaxVarintSize) {
    return Fail("wire.varint", start, "a varint is longer than 10 bytes");
  }
  return Truncated(start, "a varint");
}

Parser::Byte Parser::ReadLongLength(Byte p, Byte end, uint64_t* length) {
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

// ---------------------------------------------------------------------------------------------
// Bytes

void Parser::OpenWindow(Byte p, uint64_t size) {
  if (owner_) {
    window_text_ = reinterpret_cast<const char*>(begin_);
    window_begin_ = begin_;
    window_end_ = end_;
    borrowed_ = true;
    return;
  }
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

void Parser::SetBytes(String& string, Byte p, uint64_t size) {
  if (size == 0) return;
  if (size >= String::kPayloadSize) {
    string.SetShared(arena_, SharePayload(p, size));
    window_size_ = kMinWindow;
    return;
  }
  if (p + size > window_end_) OpenWindow(p, size);
  string.SetBorrowed(arena_, window_text_ + (p - window_begin_), size);
}

void Parser::AppendUnknown(Message& message, Byte start, Byte end) {
  AppendUnknownFields(arena_, message,
                      {reinterpret_cast<const char*>(start), static_cast<size_t>(end - start)});
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
// Lists

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

// Room for `count` more elements at the end of the field's list.
void* Parser::Extend(Message& message, const FieldInfo& field, uint64_t count, uint64_t width) {
  RepeatedBase& list = *MutableRepeated(arena_, message, field);
  Reserve(arena_, list, list.size + count, width);
  void* to = static_cast<char*>(list.data) + list.size * width;
  list.size += count;
  return to;
}

template <uint64_t kWidth>
void Parser::AppendRun(Message& message, const FieldInfo& field, size_t first, bool last) {
  char* const to = Append(message, field, run_.size() - first, kWidth, last);
  for (size_t i = first; i < run_.size(); ++i) {
    std::memcpy(to + (i - first) * kWidth, &run_[i], kWidth);
  }
  run_.resize(first);
}

template void Parser::AppendRun<1>(Message&, const FieldInfo&, size_t, bool);
template void Parser::AppendRun<4>(Message&, const FieldInfo&, size_t, bool);
template void Parser::AppendRun<8>(Message&, const FieldInfo&, size_t, bool);

// ---------------------------------------------------------------------------------------------
// Fields in any form

namespace {

// Calls f.template operator()<kind>().
template <typename F>
const uint8_t* WithKind(Kind kind, const F& f) {
  switch (kind) {
    case Kind::kInt32:
    case Kind::kUint32:
    case Kind::kEnum:
      return f.template operator()<Kind::kUint32>();
    case Kind::kInt64:
    case Kind::kUint64:
      return f.template operator()<Kind::kUint64>();
    case Kind::kBool:
      return f.template operator()<Kind::kBool>();
    case Kind::kFloat:
      return f.template operator()<Kind::kFloat>();
    case Kind::kDouble:
      return f.template operator()<Kind::kDouble>();
    case Kind::kString:
    case Kind::kBytes:
      return f.template operator()<Kind::kString>();
    case Kind::kMessage:
      return f.template operator()<Kind::kMessage>();
  }
  return nullptr;
}

}  // namespace

Parser::Byte Parser::ParseField(const MessageInfo& info, Message& message, Byte p, Byte end,
                                int depth) {
  const Byte start = p;
  uint32_t tag = 0;
  p = ReadTag(p, end, &tag);
  if (p == nullptr) return nullptr;
  const FieldInfo* field = info.Find(tag >> 3);
  const auto wire = static_cast<WireType>(tag & 7);
  if (field == nullptr) return ParseUnknown(message, tag, start, p, end, depth);
  if (field->repeated && wire == field->wire) return ParseOne(message, *field, p, end, depth);
  if (field->repeated && wire == WireType::kLengthDelimited) {
    p = ParsePacked(message, *field, p, end);
  } else if (wire != field->wire) {
    return ParseUnknown(message, tag, start, p, end, depth);
  } else if (field->index == info.raw_data) {
    p = ParsePayload(message, *field, p, end);
  } else if (field->kind == Kind::kEnum) {
    p = ParseEnum(info, message, *field, start, p, end);
  } else {
    p = WithKind(field->kind, [&]<Kind kKind> {
      return ParseSingular<kKind>(info, message, *field, start, p, end, depth);
    });
  }
  return p == nullptr ? Inside(*field) : p;
}

Parser::Byte Parser::ParseOne(Message& message, const FieldInfo& field, Byte p, Byte end,
                              int depth) {
  const uint64_t width = ElementSize(field.kind);
  char element[sizeof(uint64_t)] = {};
  p = WithKind(field.kind,
               [&]<Kind kKind> { return ParseElement<kKind>(field, element, p, end, depth); });
  if (p == nullptr) return Inside(field, ViewList(message, field).size);
  std::memcpy(Extend(message, field, 1, width), element, width);
  return p;
}

void Parse(Arena& arena, const MessageInfo& info, Message& message, const ParseInput& input,
           const ParseOptions& options) {
  Parser(arena, input, options).Run(info, message);
}

}  // namespace onnx_light
