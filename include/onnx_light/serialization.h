// Reading and writing messages as protobuf's wire format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "onnx_light/message.h"

namespace onnx_light {

// ---------------------------------------------------------------------------------------------
// Options

// How a message file gets into memory. kAuto maps files of at least 64 KiB.
enum class FileLoadMode : int { kAuto = 0, kMmap = 1, kStream = 2 };

struct TensorBufferOptions {
  // Payloads (raw_data of TensorProto and EncodedValueProto) of at least this many bytes are
  // "big": left out by skip_raw_data, moved out by external data.
  uint64_t raw_data_threshold = 64;
  // Offsets of payloads in an external file: a multiple of this power of two; 0 and 1: any.
  uint64_t alignment = 0;
};

struct ParseOptions : TensorBufferOptions {
  bool skip_raw_data = false;
  // Threads that copy large payloads: 1 serial, n that many, below 0 all cores.
  int num_threads = 1;
  // Point into the input instead of copying; see Parse.
  bool no_copy = false;
  // Levels of submessages (and groups) below the root.
  int max_recursion_depth = 100;
  // Largest payload that is accepted, in bytes; 0: no limit.
  uint64_t max_tensor_size_bytes = 0;
  // External payloads below this many bytes are read inline with a file; negative: none.
  int64_t tiny_external_data_threshold = -1;
  FileLoadMode file_load_mode = FileLoadMode::kAuto;
  // Lets external data lie behind links, as model caches that are made of links need.
  bool trusted_links = false;
};

struct SerializeOptions : TensorBufferOptions {
  bool skip_raw_data = false;
  int num_threads = 1;
  // Payloads that are external already keep their location.
  bool use_external_data_location = true;
  // Over it nothing is written: ValueError. 0: no limit.
  uint64_t max_serialized_size_bytes = 0;
  // Largest external file; a payload that does not fit begins the next one (".1", ".2", ...).
  // 0: one file.
  uint64_t max_external_file_size = 0;
};

// ---------------------------------------------------------------------------------------------
// Reading

// Where the bytes of a message come from.
struct ParseInput {
  std::span<const std::byte> bytes;
  // Keeps `bytes` alive and unchanged; with no_copy the arena holds it. Null: always copied.
  BufferRef owner;
};

// Parses `input` into `message` as protobuf's merge does: fields that are set already are merged
// or replaced. Throws ParseError; the message is then partly changed, so callers parse into a fresh
// arena. Time linear in the input; memory at most a small multiple of it.
ONNX_LIGHT_EXPORT void Parse(Arena& arena, const MessageInfo& info, Message& message,
                             const ParseInput& input, const ParseOptions& options = {});

// ---------------------------------------------------------------------------------------------
// Writing

// Messages that are written in place of others: how a writer changes what it writes without
// changing what is in memory (external data). The replacement has the same class.
using Replacements = std::unordered_map<const Message*, const Message*>;

struct SerializeSizeResult {
  uint64_t small_data_size = 0;  // payloads below raw_data_threshold
  uint64_t big_data_size = 0;    // payloads of at least raw_data_threshold
  uint64_t proto_size = 0;       // everything else

  uint64_t size() const { return small_data_size + big_data_size + proto_size; }
  SerializeSizeResult& operator+=(const SerializeSizeResult& other) {
    small_data_size += other.small_data_size;
    big_data_size += other.big_data_size;
    proto_size += other.proto_size;
    return *this;
  }
};

// The size of a message, which is not written for it. Throws as Serializer does.
ONNX_LIGHT_EXPORT SerializeSizeResult MeasureSize(const MessageInfo& info, const Message& message,
                                                  const SerializeOptions& options = {});

// A message ready for writing: its structure encoded, its payloads by reference. It refers to the
// message, which must not change or go before the last call. Canonical: fields in ascending number,
// unknown fields last, minimal varints.
class ONNX_LIGHT_EXPORT Serializer {
 public:
  // Throws ValueError `message.depth` over 1,000 levels, `message.size` over the options' limit.
  Serializer(const MessageInfo& info, const Message& message, const SerializeOptions& options = {},
             const Replacements* replacements = nullptr);

  const SerializeSizeResult& sizes() const { return sizes_; }
  uint64_t size() const { return sizes_.size(); }

  // Bytes of payloads that Gather refers to instead of copying.
  uint64_t shared_size() const { return shared_size_; }

  // Writes all size() bytes to `output`.
  void WriteTo(std::byte* output) const;

  // The output in runs: payloads of at least String::kPayloadSize are referred to, not copied. The
  // result does not need the message any more.
  class Segments {
   public:
    struct Run {
      std::span<const std::byte> bytes;
      BufferRef owner;
    };
    std::span<const Run> runs() const { return runs_; }
    // Copies all runs to `output`, one behind the other; `num_threads` as in SerializeOptions.
    ONNX_LIGHT_EXPORT void CopyTo(std::byte* output, int num_threads) const;

   private:
    friend class Serializer;
    std::vector<Run> runs_;
  };
  Segments Gather() const;

 private:
  std::vector<Segments::Run> runs_;  // without an owner: bytes of the message
  SerializeSizeResult sizes_;
  uint64_t shared_size_ = 0;
};

}  // namespace onnx_light
