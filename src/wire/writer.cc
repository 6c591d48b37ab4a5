// Writing in two passes: the first measures and notes every length that stands in front of
// something, in the order in which the second writes them.
#include <algorithm>
#include <bit>
#include <string>
#include <utility>

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
    std::memcpy(to, &first, sizeof(Word));
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

bool IsString(Kind kind) { return kind == Kind::kString || kind == Kind::kBytes; }

uint64_t Delimited(uint64_t size) { return static_cast<uint64_t>(VarintSize(size)) + size; }

const Message& Resolve(const Replacements* replacements, const Message& message) {
  if (replacements == nullptr) [[likely]]
    return message;
  const auto found = replacements->find(&message);
  return found == replacements->end() ? message : *found->second;
}

// Whether skip_raw_data leaves this field out.
bool IsSkipped(const MessageInfo& info, const Message& message, const FieldInfo& field,
               const SerializeOptions& options) {
  return field.index == info.raw_data && options.skip_raw_data &&
         Member<String>(message, field).size() >= options.raw_data_threshold;
}

class Measurer {
 public:
  Measurer(const SerializeOptions& options, const Replacements* replacements,
           std::vector<uint64_t>& lengths, SerializeSizeResult& sizes, uint64_t& shared_size)
      : options_(options),
        replacements_(replacements),
        lengths_(lengths),
        sizes_(sizes),
        shared_size_(shared_size) {}

  uint64_t Measure(const MessageInfo& info, const Message& original, int depth) {
    const Message& message = Resolve(replacements_, original);
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
        if (field.index == info.raw_data) CountPayload(bytes);
        size += field.tag_size + StringSize(bytes);
      }
    }
    return size;
  }

 private:
  void CountPayload(uint64_t size) {
    (size >= options_.raw_data_threshold ? sizes_.big_data_size : sizes_.small_data_size) += size;
  }

  uint64_t StringSize(uint64_t bytes) {
    if (bytes >= String::kPayloadSize) shared_size_ += bytes;
    return Delimited(bytes);
  }

  uint64_t Submessage(const FieldInfo& field, const Message& message, int depth) {
    if (depth == kMaxDepth) {
      throw ValueError("message.depth", field.name,
                       "more than " + std::to_string(kMaxDepth) + " levels of messages");
    }
    const size_t slot = lengths_.size();
    lengths_.push_back(0);
    const uint64_t size = Measure(*field.message, message, depth + 1);
    lengths_[slot] = size;
    return Delimited(size);
  }

  uint64_t MeasureList(const FieldInfo& field, const ListView& list, int depth) {
    uint64_t size = list.size * field.tag_size;
    if (field.kind == Kind::kMessage) {
      for (const Message* element : list.span<Message*>()) {
        size += Submessage(field, *element, depth);
      }
    } else if (IsString(field.kind)) {
      for (const String& element : list.span<String>()) size += StringSize(element.size());
    } else if (!field.packed) {
      size += NumbersSize(field.kind, list);
    } else if (list.size != 0) {
      lengths_.push_back(NumbersSize(field.kind, list));
      size = field.tag_size + Delimited(lengths_.back());
    }
    return size;
  }

  const SerializeOptions& options_;
  const Replacements* replacements_;
  std::vector<uint64_t>& lengths_;
  SerializeSizeResult& sizes_;
  uint64_t& shared_size_;
};

// A string that is referred to, and where it belongs in the output.
struct Shared {
  uint8_t* at;
  const String* string;
};

class Writer {
 public:
  // With `shared`, strings of at least String::kPayloadSize bytes are noted there, in order, and
  // take no room in the output.
  Writer(const SerializeOptions& options, const Replacements* replacements, const uint64_t* lengths,
         uint8_t* output, std::vector<Shared>* shared)
      : options_(options),
        replacements_(replacements),
        length_(lengths),
        p_(output),
        shared_(shared) {}

  void Write(const MessageInfo& info, const Message& original) {
    const Message& message = Resolve(replacements_, original);
    for (uint32_t bits = message.presence; bits != 0; bits &= bits - 1) {
      const FieldInfo& field = info.fields[std::countr_zero(bits)];
      if (field.repeated) {
        WriteList(field, ViewList(message, field));
      } else if (field.kind == Kind::kMessage) {
        WriteSubmessage(field, *Member<Message*>(message, field));
      } else if (!IsString(field.kind)) {
        WriteTag(field);
        WriteScalar(field.kind, &Member<char>(message, field));
      } else if (!IsSkipped(info, message, field, options_)) {
        WriteTag(field);
        WriteString(Member<String>(message, field));
      }
    }
    WriteBytes(UnknownFields(message));
  }

 private:
  void WriteTag(const FieldInfo& field) {
    if (field.tag < 0x80) [[likely]] {
      *p_++ = static_cast<uint8_t>(field.tag);
    } else {
      p_ = WriteVarint(field.tag, p_);
    }
  }

  void WriteBytes(std::string_view bytes) {
    CopyShort(p_, bytes.data(), bytes.size());
    p_ += bytes.size();
  }

  void WriteString(const String& string) {
    p_ = WriteVarint(string.size(), p_);
    if (shared_ == nullptr || string.size() < String::kPayloadSize) {
      WriteBytes(string.view());
    } else {
      shared_->push_back({p_, &string});
    }
  }

  void WriteScalar(Kind kind, const char* at) {
    switch (kind) {
      case Kind::kInt32:
      case Kind::kEnum:
        p_ = WriteVarint(AsVarint(*reinterpret_cast<const int32_t*>(at)), p_);
        return;
      case Kind::kInt64:
      case Kind::kUint64:
        p_ = WriteVarint(*reinterpret_cast<const uint64_t*>(at), p_);
        return;
      case Kind::kUint32:
        p_ = WriteVarint(*reinterpret_cast<const uint32_t*>(at), p_);
        return;
      default:
        WriteBytes({at, static_cast<size_t>(ElementSize(kind))});
    }
  }

  void WriteSubmessage(const FieldInfo& field, const Message& message) {
    WriteTag(field);
    p_ = WriteVarint(*length_++, p_);
    Write(*field.message, message);
  }

  template <typename T>
  void WriteVarints(const ListView& list) {
    uint8_t* p = p_;
    for (const T value : list.span<T>()) p = WriteVarint(AsVarint(value), p);
    p_ = p;
  }

  void WritePacked(const FieldInfo& field, const ListView& list) {
    if (list.size == 0) return;
    WriteTag(field);
    p_ = WriteVarint(*length_++, p_);
    switch (field.kind) {
      case Kind::kInt32:
      case Kind::kEnum:
        return WriteVarints<int32_t>(list);
      case Kind::kInt64:
        return WriteVarints<int64_t>(list);
      case Kind::kUint32:
        return WriteVarints<uint32_t>(list);
      case Kind::kUint64:
        return WriteVarints<uint64_t>(list);
      default:
        WriteBytes({static_cast<const char*>(list.data),
                    static_cast<size_t>(list.size * ElementSize(field.kind))});
    }
  }

  void WriteList(const FieldInfo& field, const ListView& list) {
    if (field.kind == Kind::kMessage) {
      for (const Message* element : list.span<Message*>()) WriteSubmessage(field, *element);
    } else if (IsString(field.kind)) {
      for (const String& element : list.span<String>()) {
        WriteTag(field);
        WriteString(element);
      }
    } else if (field.packed) {
      WritePacked(field, list);
    } else {
      const uint64_t width = ElementSize(field.kind);
      for (uint64_t i = 0; i < list.size; ++i) {
        WriteTag(field);
        WriteScalar(field.kind, static_cast<const char*>(list.data) + i * width);
      }
    }
  }

  const SerializeOptions& options_;
  const Replacements* replacements_;
  const uint64_t* length_;
  uint8_t* p_;
  std::vector<Shared>* shared_;
};

}  // namespace

Serializer::Serializer(const MessageInfo& info, const Message& message,
                       const SerializeOptions& options, const Replacements* replacements)
    : info_(info), message_(message), options_(options), replacements_(replacements) {
  const uint64_t size =
      Measurer(options_, replacements_, lengths_, sizes_, shared_size_).Measure(info_, message_, 0);
  sizes_.proto_size = size - sizes_.small_data_size - sizes_.big_data_size;
  if (options_.max_serialized_size_bytes != 0 && size > options_.max_serialized_size_bytes) {
    throw ValueError("message.size", info_.full_name,
                     "the message takes " + std::to_string(size) + " bytes, at most " +
                         std::to_string(options_.max_serialized_size_bytes) + " are allowed");
  }
}

void Serializer::WriteTo(std::byte* output) const {
  Writer(options_, replacements_, lengths_.data(), reinterpret_cast<uint8_t*>(output), nullptr)
      .Write(info_, message_);
}

Serializer::Segments Serializer::Gather() const {
  Segments result;
  std::vector<Shared> shared;
  result.structure_.resize(size() - shared_size_);
  auto* begin = reinterpret_cast<uint8_t*>(result.structure_.data());
  Writer(options_, replacements_, lengths_.data(), begin, &shared).Write(info_, message_);
  size_t position = 0;
  const auto add_structure = [&](size_t end) {
    if (end > position) {
      result.runs_.push_back({std::span(result.structure_).subspan(position, end - position), {}});
    }
    position = end;
  };
  for (const auto& [at, payload] : shared) {
    add_structure(static_cast<size_t>(at - begin));
    SharedBytes bytes = payload->Shared();
    result.runs_.push_back({bytes.span(), std::move(bytes.owner)});
  }
  add_structure(result.structure_.size());
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
