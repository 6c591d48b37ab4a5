// The checksum of snapshots: XXH3, 64 bits, seed 0. It finds damage; it does not prove who wrote
// the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace onnx_light {

// The checksum of one run of bytes.
uint64_t Checksum(std::span<const std::byte> bytes);

// The checksum of bytes that come in pieces: the same value as Checksum of all of them together,
// however they are cut.
class StreamingChecksum {
 public:
  StreamingChecksum();
  StreamingChecksum(StreamingChecksum&&) noexcept;
  StreamingChecksum& operator=(StreamingChecksum&&) noexcept;
  ~StreamingChecksum();

  void Update(std::span<const std::byte> bytes);
  // The checksum of everything so far; more may follow.
  uint64_t Digest() const;
  // Forgets everything.
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onnx_light
