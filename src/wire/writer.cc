// Writing from the end to the front: every length is known when its place is reached, so that one
// pass is enough.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/chunk_pool.h"
#include "base/threads.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/serialization.h"
#include "wire/varint.h"

namespace onnx_light {
namespace {

// What several threads copy goes in pieces of this size.
constexpr uint64_t kParallelPiece = 1 << 20;

// An int32 goes out as the 64-bit varint of its value: ten bytes if negative.
template <typename T>
uint64_t AsVarint(T value) {
  if constexpr (std::is_signed_v<T>) return static_cast<uint64_t>(static_cast<int64_t>(value));
  return value;
}

template <typename T>
uint64_t VarintsSize(std::span<const T> values) {
  uint64_t size = 0;
  for (const T value : values) size += static_cast<uint64_t>(VarintSize(AsVarint(value)));
  return size;
}

// The bytes of all elements of a repeated number, without tags.
uint64_t NumbersSize(Kind kind, const ListView& list) {
  switch (kind) {
    case Kind::kInt32:
    case Kind::kEnum:
      return VarintsSize(list.span<int32_t>());
    case Kind::kInt64:
      return VarintsSize(list.span<int64_t>());
    case Kind::kUint32:
      return VarintsSize(list.span<uint32_t>());
    case Kind::kUint64:
      return VarintsSize(list.span<uint64_t>());
    default:
      return list.size * ElementSize(kind);
  }
}

uint64_t ScalarSize(Kind kind, const char* at) {
  switch (kind) {
    case Kind::kInt32:
    case Kind::kEnum:
      return static_cast<uint64_t>(VarintSize(AsVarint(*reinterpret_cast<const int32_t*>(at))));
    case Kind::kInt64:
    case Kind::kUint64:
      return static_cast<uint64_t>(VarintSize(*reinterpret_cast<const uint64_t*>(at)));
    case Kind::kUint32:
      return static_cast<uint64_t>(VarintSize(*reinterpret_cast<const uint32_t*>(at)));
    default:
      return ElementSize(kind);
  }
}

// memcpy, without a call where most strings are: up to 16 bytes, as two pieces that may overlap.
inline void CopyShort(uint8_t* to, const char* from, size_t size) {
  const auto copy_two = [=]<typename Word>(Word) {
    Word first, last;
    std::memcpy(&first, from, sizeof(Word));
    std::memcpy(&last, from + size - sizeof(Word), sizeof(Word));
    std::memcpy(to, &first, sizeof(Word));  // NOLINT(clang-analyzer-core.NonNullParamChecker)
    std::memcpy(to + size - sizeof(Word), &last, sizeof(Word));
  };
  if (size > 16) {
    std::memcpy(to, from, size);
  } else if (size >= 8) {
    copy_two(uint64_t{});
  } else if (size >= 4) {
    copy_two(uint32_t{});
  } else {
    for (size_t i = 0; i < size; ++i) to[i] = static_cast<uint8_t>(from[i]);
  }
}

// Bit 31 - i for bit i. The lowest bit of a word is found faster than the highest where the
// processor is not known when this is compiled.
constexpr uint32_t ReverseBits(uint32_t bits) {
  bits = (bits & 0x55555555) << 1 | (bits >> 1 & 0x55555555);
  bits = (bits & 0x33333333) << 2 | (bits >> 2 & 0x33333333);
  bits = (bits & 0x0f0f0f0f) << 4 | (bits >> 4 & 0x0f0f0f0f);
  return __builtin_bswap32(bits);
}

bool IsString(Kind kind) { return kind == Kind::kString || kind == Kind::kBytes; }

uint64_t Delimited(uint64_t size) { return static_cast<uint64_t>(VarintSize(size)) + size; }

const Message& Resolve(const Replacements* replacements, const Message& message) {
  if (replacements == nullptr) [[likely]]
    return message;
  const auto found = replacements->find(&message);
  return found == replacements->end() ? message : *found->second;
}

void CountPayload(uint64_t size, const SerializeOptions& options, SerializeSizeResult& sizes) {
  (size >= options.raw_data_threshold ? sizes.big_data_size : sizes.small_data_size) += size;
}

[[noreturn]] void ThrowTooDeep(const FieldInfo& field) {
  throw ValueError("message.depth", field.name,
                   "more than " + std::to_string(kMaxDepth) + " levels of messages");
}

// Whether skip_raw_data leaves this field out.
bool IsSkipped(const MessageInfo& info, const Message& message, const FieldInfo& field,
               const SerializeOptions& options) {
  return field.index == info.raw_data && options.skip_raw_data &&
         Member<String>(message, field).size() >= options.raw_data_threshold;
}

class Measurer {
 public:
  explicit Measurer(const SerializeOptions& options) : options_(options) {}

  SerializeSizeResult Run(const MessageInfo& info, const Message& message) {
    const uint64_t size = Measure(info, message, 0);
    sizes_.proto_size = size - sizes_.small_data_size - sizes_.big_data_size;
    return sizes_;
  }

 private:
  uint64_t Measure(const MessageInfo& info, const Message& message, int depth) {
    uint64_t size = UnknownFields(message).size();
    for (uint32_t bits = message.presence; bits != 0; bits &= bits - 1) {
      const FieldInfo& field = info.fields[std::countr_zero(bits)];
      if (field.repeated) {
        size += MeasureList(field, ViewList(message, field), depth);
      } else if (field.kind == Kind::kMessage) {
        size += field.tag_size + Submessage(field, *Member<Message*>(message, field), depth);
      } else if (!IsString(field.kind)) {
        size += field.tag_size + ScalarSize(field.kind, &Member<char>(message, field));
      } else if (!IsSkipped(info, message, field, options_)) {
        const uint64_t bytes = Member<String>(message, field).size();
        if (field.index == info.raw_data) CountPayload(bytes, options_, sizes_);
        size += field.tag_size + Delimited(bytes);
      }
    }
    return size;
  }

  uint64_t Submessage(const FieldInfo& field, const Message& message, int depth) {
    if (depth == kMaxDepth) ThrowTooDeep(field);
    return Delimited(Measure(*field.message, message, depth + 1));
  }

  uint64_t MeasureList(const FieldInfo& field, const ListView& list, int depth) {
    uint64_t size = list.size * field.tag_size;
    if (field.kind == Kind::kMessage) {
      for (const Message* element : list.span<Message*>()) {
        size += Submessage(field, *element, depth);
      }
    } else if (IsString(field.kind)) {
      for (const String& element : list.span<String>()) size += Delimited(element.size());
    } else if (!field.packed) {
      size += NumbersSize(field.kind, list);
    } else if (list.size != 0) {
      size = field.tag_size + Delimited(NumbersSize(field.kind, list));
    }
    return size;
  }

  const SerializeOptions& options_;
  SerializeSizeResult sizes_;
};

// Writes the last byte first. The place in the output goes from call to call by value: a member
// would be loaded again after every byte that is stored.
class Encoder {
 public:
  using Run = Serializer::Segments::Run;

  Encoder(const SerializeOptions& options, const Replacements* replacements,
          SerializeSizeResult& sizes, uint64_t& shared_size)
      : options_(options), replacements_(replacements), sizes_(sizes), shared_size_(shared_size) {}

  // The whole message, as runs in the order of the output. Runs without an owner lie in the
  // message.
  std::vector<Run> Encode(const MessageInfo& info, const Message& message) {
    FinishRun(Write(info, message, nullptr, 0));
    sizes_.proto_size = finished_ - sizes_.small_data_size - sizes_.big_data_size;
    std::reverse(runs_.begin(), runs_.end());
    return std::move(runs_);
  }

 private:
  // A tag and a varint.
  static constexpr size_t kNumberRoom = 16;
  static constexpr uint64_t kFirstPiece = 1024;
  static constexpr size_t kFetchAhead = 4;  // elements of a list

  uint8_t* Write(const MessageInfo& info, const Message& original, uint8_t* p, int depth) {
    const Message& message = Resolve(replacements_, original);
    if (message.unknown != nullptr) [[unlikely]]
      p = WriteBytes(UnknownFields(message), p);
    const FieldInfo* const fields = info.fields.data();
    for (uint32_t bits = ReverseBits(message.presence); bits != 0; bits &= bits - 1) {
      const FieldInfo& field = fields[static_cast<unsigned>(std::countr_zero(bits)) ^ 31];
      p = field.repeated ? WriteList(field, ViewList(message, field), p, depth)
                         : WriteSingular(info, message, field, p, depth);
    }
    return p;
  }

  [[gnu::always_inline]] uint8_t* WriteSingular(const MessageInfo& info, const Message& message,
                                                const FieldInfo& field, uint8_t* p, int depth) {
    switch (field.kind) {
      case Kind::kBytes:
        if (field.index == info.raw_data) {
          if (IsSkipped(info, message, field, options_)) return p;
          CountPayload(Member<String>(message, field).size(), options_, sizes_);
        }
        [[fallthrough]];
      case Kind::kString:
        return WriteString(field, Member<String>(message, field), p);
      case Kind::kMessage:
        return WriteSubmessage(field, *Member<Message*>(message, field), p, depth);
      case Kind::kInt32:
      case Kind::kEnum:
        return WriteVarint(field, AsVarint(Member<int32_t>(message, field)), p);
      case Kind::kInt64:
      case Kind::kUint64:
        return WriteVarint(field, Member<uint64_t>(message, field), p);
      case Kind::kUint32:
        return WriteVarint(field, Member<uint32_t>(message, field), p);
      case Kind::kFloat:
        return WriteFixed<uint32_t>(field, &Member<char>(message, field), p);
      case Kind::kDouble:
        return WriteFixed<uint64_t>(field, &Member<char>(message, field), p);
      case Kind::kBool:
        return WriteFixed<bool>(field, &Member<char>(message, field), p);
    }
    __builtin_unreachable();
  }

  // Makes `size` bytes free in front of `p`.
  uint8_t* Room(size_t size, uint8_t* p) {
    if (static_cast<size_t>(p - begin_) >= size) [[likely]]
      return p;
    return NextPiece(size, p);
  }

  [[gnu::noinline]] uint8_t* NextPiece(size_t size, uint8_t* p) {
    FinishRun(p);
    const uint64_t wanted = std::max<uint64_t>(size, std::max(kFirstPiece, finished_));
    uint64_t capacity = wanted;
    if (wanted < kPooledChunkSize / 2) {
      piece_ = BufferRef::Allocate(wanted);
      begin_ = reinterpret_cast<uint8_t*>(piece_.mutable_data());
    } else {
      void* chunk = TakeChunk();
      capacity = kPooledChunkSize;
      piece_ = BufferRef::Wrap(chunk, capacity, [chunk] { GiveChunk(chunk); });
      begin_ = static_cast<uint8_t*>(chunk);
    }
    end_ = begin_ + capacity;
    return end_;
  }

  // What was written into the piece becomes a run; writing goes on in front of it.
  void FinishRun(uint8_t* p) {
    if (p == end_) return;
    AddRun({{reinterpret_cast<const std::byte*>(p), static_cast<size_t>(end_ - p)}, piece_});
    end_ = p;
  }

  void AddRun(Run run) {
    finished_ += run.bytes.size();
    runs_.push_back(std::move(run));
  }

  uint64_t Written(const uint8_t* p) const { return finished_ + static_cast<uint64_t>(end_ - p); }

  // REQUIRES of these: there is room.
  static uint8_t* PutVarint(uint64_t value, uint8_t* p) {
    if (value < 0x80) [[likely]] {
      *--p = static_cast<uint8_t>(value);  // NOLINT(clang-analyzer-core.NullDereference)
      return p;
    }
    if (value < 0x4000) [[likely]] {
      *--p = static_cast<uint8_t>(value >> 7);
      *--p = static_cast<uint8_t>(value | 0x80);
      return p;
    }
    p -= VarintSize(value);
    onnx_light::WriteVarint(value, p);
    return p;
  }
  static uint8_t* WriteTag(const FieldInfo& field, uint8_t* p) { return PutVarint(field.tag, p); }

  uint8_t* WriteLengthAndTag(const FieldInfo& field, uint64_t length, uint8_t* p) {
    return WriteTag(field, PutVarint(length, Room(kNumberRoom, p)));
  }

  // Long bytes of the message are referred to: they are copied once, into the output.
  uint8_t* WriteBytes(std::string_view bytes, uint8_t* p) {
    if (bytes.size() >= String::kPayloadSize) [[unlikely]] {
      FinishRun(p);
      AddRun({std::as_bytes(std::span(bytes)), {}});
      return p;
    }
    p = Room(bytes.size(), p) - bytes.size();
    CopyShort(p, bytes.data(), bytes.size());
    return p;
  }

  uint8_t* WriteString(const FieldInfo& field, const String& string, uint8_t* p) {
    const std::string_view bytes = string.view();
    if (bytes.size() < String::kPayloadSize) [[likely]] {
      p = Room(bytes.size() + kNumberRoom, p) - bytes.size();
      CopyShort(p, bytes.data(), bytes.size());
      return WriteTag(field, PutVarint(bytes.size(), p));
    }
    FinishRun(p);
    shared_size_ += bytes.size();
    SharedBytes shared = string.Shared();
    AddRun({shared.span(), std::move(shared.owner)});
    return WriteLengthAndTag(field, bytes.size(), p);
  }

  uint8_t* WriteVarint(const FieldInfo& field, uint64_t value, uint8_t* p) {
    return WriteTag(field, PutVarint(value, Room(kNumberRoom, p)));
  }

  template <typename T>
  uint8_t* WriteFixed(const FieldInfo& field, const char* at, uint8_t* p) {
    p = Room(kNumberRoom, p) - sizeof(T);
    std::memcpy(p, at, sizeof(T));
    return WriteTag(field, p);
  }

  uint8_t* WriteSubmessage(const FieldInfo& field, const Message& message, uint8_t* p, int depth) {
    if (depth == kMaxDepth) ThrowTooDeep(field);
    const uint64_t behind = Written(p);
    p = Write(*field.message, message, p, depth + 1);
    return WriteLengthAndTag(field, Written(p) - behind, p);
  }

  // Asks for the memory of an element of a list before it is needed: processors do that by
  // themselves for memory that is read upwards, but not well for this way. What a parser has made
  // for an element lies between it and the next one.
  [[gnu::always_inline]] static void Fetch(const Message* element, const Message* next) {
    constexpr uintptr_t kLine = 64;
    constexpr uintptr_t kMost = 1024;
    const auto from = reinterpret_cast<uintptr_t>(element);
    const uintptr_t size = reinterpret_cast<uintptr_t>(next) - from;  // huge if `next` lies below
    for (uintptr_t i = 0; i < std::min(size, kMost); i += kLine) {
      __builtin_prefetch(reinterpret_cast<const void*>(from + i));
    }
  }

  // The elements of a repeated number, each with its tag or, packed, without.
  template <typename T>
  [[gnu::noinline]] uint8_t* WriteVarints(const FieldInfo& field, ListView list, uint8_t* p) {
    const std::span<const T> values = list.span<T>();
    if (field.packed) {
      const uint64_t behind = Written(p);
      for (size_t i = values.size(); i-- > 0;) {
        p = PutVarint(AsVarint(values[i]), Room(kMaxVarintSize, p));
      }
      return FinishPacked(field, behind, p);
    }
    for (size_t i = values.size(); i-- > 0;) p = WriteVarint(field, AsVarint(values[i]), p);
    return p;
  }

  template <typename T>
  [[gnu::noinline]] uint8_t* WriteFixeds(const FieldInfo& field, ListView list, uint8_t* p) {
    const char* const values = static_cast<const char*>(list.data);
    const size_t size = static_cast<size_t>(list.size) * sizeof(T);
    if (field.packed) {
      const uint64_t behind = Written(p);
      return FinishPacked(field, behind, WriteBytes({values, size}, p));
    }
    for (size_t at = size; at > 0; at -= sizeof(T)) {
      p = WriteFixed<T>(field, values + at - sizeof(T), p);
    }
    return p;
  }

  // An empty list is left out.
  uint8_t* FinishPacked(const FieldInfo& field, uint64_t behind, uint8_t* p) {
    const uint64_t size = Written(p) - behind;
    return size == 0 ? p : WriteLengthAndTag(field, size, p);
  }

  [[gnu::noinline]] uint8_t* WriteMessages(const FieldInfo& field, ListView list, uint8_t* p,
                                           int depth) {
    const std::span<Message* const> messages = list.span<Message*>();
    for (size_t i = messages.size(); i-- > 0;) {
      if (i >= kFetchAhead) Fetch(messages[i - kFetchAhead], messages[i - kFetchAhead + 1]);
      p = WriteSubmessage(field, *messages[i], p, depth);
    }
    return p;
  }

  [[gnu::noinline]] uint8_t* WriteStrings(const FieldInfo& field, ListView list, uint8_t* p) {
    const std::span<const String> strings = list.span<String>();
    for (size_t i = strings.size(); i-- > 0;) p = WriteString(field, strings[i], p);
    return p;
  }

  [[gnu::always_inline]] uint8_t* WriteList(const FieldInfo& field, ListView list, uint8_t* p,
                                            int depth) {
    switch (field.kind) {
      case Kind::kMessage:
        return WriteMessages(field, list, p, depth);
      case Kind::kString:
      case Kind::kBytes:
        return WriteStrings(field, list, p);
      case Kind::kInt32:
      case Kind::kEnum:
        return WriteVarints<int32_t>(field, list, p);
      case Kind::kInt64:
      case Kind::kUint64:
        return WriteVarints<uint64_t>(field, list, p);
      case Kind::kUint32:
        return WriteVarints<uint32_t>(field, list, p);
      case Kind::kFloat:
        return WriteFixeds<uint32_t>(field, list, p);
      case Kind::kDouble:
        return WriteFixeds<uint64_t>(field, list, p);
      case Kind::kBool:
        return WriteFixeds<bool>(field, list, p);
    }
    __builtin_unreachable();
  }

  const SerializeOptions& options_;
  const Replacements* replacements_;
  SerializeSizeResult& sizes_;
  uint64_t& shared_size_;
  uint8_t* begin_ = nullptr;  // of the piece that is being filled
  uint8_t* end_ = nullptr;    // of what is in it and in no run yet
  BufferRef piece_;
  uint64_t finished_ = 0;  // bytes in runs
  std::vector<Run> runs_;
};

void CheckSize(const MessageInfo& info, uint64_t size, const SerializeOptions& options) {
  if (options.max_serialized_size_bytes != 0 && size > options.max_serialized_size_bytes) {
    throw ValueError("message.size", info.full_name,
                     "the message takes " + std::to_string(size) + " bytes, at most " +
                         std::to_string(options.max_serialized_size_bytes) + " are allowed");
  }
}

}  // namespace

SerializeSizeResult MeasureSize(const MessageInfo& info, const Message& message,
                                const SerializeOptions& options) {
  const SerializeSizeResult sizes = Measurer(options).Run(info, message);
  CheckSize(info, sizes.size(), options);
  return sizes;
}

Serializer::Serializer(const MessageInfo& info, const Message& message,
                       const SerializeOptions& options, const Replacements* replacements) {
  runs_ = Encoder(options, replacements, sizes_, shared_size_).Encode(info, message);
  CheckSize(info, size(), options);
}

void Serializer::WriteTo(std::byte* output) const {
  for (const Segments::Run& run : runs_) {
    std::memcpy(output, run.bytes.data(), run.bytes.size());
    output += run.bytes.size();
  }
}

Serializer::Segments Serializer::Gather() const {
  Segments result;
  result.runs_ = runs_;
  for (Segments::Run& run : result.runs_) {
    if (run.owner) continue;
    SharedBytes copy = CopyBytes(run.bytes.data(), run.bytes.size());
    run = {copy.span(), std::move(copy.owner)};
  }
  return result;
}

void Serializer::Segments::CopyTo(std::byte* output, int num_threads) const {
  struct Piece {
    std::byte* to;
    std::span<const std::byte> from;
  };
  std::vector<Piece> pieces;
  for (const Run& run : runs_) {
    for (size_t done = 0; done < run.bytes.size(); done += kParallelPiece) {
      const size_t count = std::min<size_t>(kParallelPiece, run.bytes.size() - done);
      pieces.push_back({output + done, run.bytes.subspan(done, count)});
    }
    output += run.bytes.size();
  }
  ParallelFor(num_threads, pieces.size(), [&](uint64_t i) {
    std::memcpy(pieces[i].to, pieces[i].from.data(), pieces[i].from.size());
  });
}

}  // namespace onnx_light
