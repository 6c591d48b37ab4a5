// What the fuzz targets share: reading the input, checking, and message trees of any class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>

#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/messages.h"
#include "onnx_light/serialization.h"

namespace onnx_light::fuzz {

// Ends the process where a property does not hold, so that the input is kept.
inline void Check(bool holds, const char* property,
                  std::source_location place = std::source_location::current()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%u: not true: %s\n", place.file_name(),
               static_cast<unsigned>(place.line()), property);
  std::abort();
}

// The input, from the front. Behind its end come zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const std::byte*>(data), size) {}

  uint8_t Byte() {
    const std::span<const std::byte> byte = Bytes(1);
    return byte.empty() ? 0 : static_cast<uint8_t>(byte.front());
  }
  // At most `size` bytes.
  std::span<const std::byte> Bytes(size_t size) {
    const std::span<const std::byte> taken = left_.first(std::min(size, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  size_t left() const { return left_.size(); }
  std::span<const std::byte> Rest() { return Bytes(left_.size()); }

 private:
  std::span<const std::byte> left_;
};

// The message class that a byte stands for: its index in AllMessages(), round and round.
inline const MessageInfo& ClassOf(uint8_t byte) {
  return *AllMessages()[byte % AllMessages().size()];
}

// A message of a class that is known only here, with its arena.
struct Tree {
  explicit Tree(const MessageInfo& message_info)
      : info(message_info), message(NewMessage(arena, info)) {}

  void Parse(const ParseInput& input, const ParseOptions& options = {}) {
    onnx_light::Parse(arena, info, *message, input, options);
  }

  Arena arena;
  const MessageInfo& info;
  Message* message;
};

// The message, or null where the bytes are none.
inline std::unique_ptr<Tree> TryParse(const MessageInfo& info, const ParseInput& input,
                                      const ParseOptions& options = {}) {
  auto tree = std::make_unique<Tree>(info);
  try {
    tree->Parse(input, options);
  } catch (const ParseError& error) {
    Check(error.offset() <= input.bytes.size(), "an error lies in the input");
    Check(!error.code().empty(), "an error has a code");
    return nullptr;
  }
  return tree;
}

inline std::string Write(const MessageInfo& info, const Message& message) {
  const Serializer serializer(info, message);
  std::string bytes(serializer.size(), '\xff');
  serializer.WriteTo(std::as_writable_bytes(std::span(bytes)).data());
  return bytes;
}
inline std::string Write(const Tree& tree) { return Write(tree.info, *tree.message); }

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace onnx_light::fuzz
