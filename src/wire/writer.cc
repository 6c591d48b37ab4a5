// Sizes of messages, and what is done with the runs that an encoder makes.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/threads.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/serialization.h"
#include "wire/encoder.h"

namespace onnx_light {
namespace {

// What several threads copy goes in pieces of this size.
constexpr uint64_t kParallelPiece = 1 << 20;

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

bool IsString(Kind kind) { return kind == Kind::kString || kind == Kind::kBytes; }

uint64_t Delimited(uint64_t size) { return static_cast<uint64_t>(VarintSize(size)) + size; }

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
      } else if (field.index == info.raw_data) {
        size += MeasureRawData(field, Member<String>(message, field).size());
      } else {
        size += field.tag_size + Delimited(Member<String>(message, field).size());
      }
    }
    return size;
  }

  uint64_t MeasureRawData(const FieldInfo& field, uint64_t size) {
    if (IsSkipped(size, options_)) return 0;
    CountPayload(size, options_, sizes_);
    return field.tag_size + Delimited(size);
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
