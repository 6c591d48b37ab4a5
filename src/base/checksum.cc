#include "base/checksum.h"

// Compiled in here: no library to link, and the compiler's options choose the vector width.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace onnx_light {

struct StreamingChecksum::State {
  XXH3_state_t xxh3;  // asks for 64-byte alignment, which new respects since C++17
};

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

StreamingChecksum::StreamingChecksum() : state_(std::make_unique<State>()) { Reset(); }
StreamingChecksum::StreamingChecksum(StreamingChecksum&&) noexcept = default;
StreamingChecksum& StreamingChecksum::operator=(StreamingChecksum&&) noexcept = default;
StreamingChecksum::~StreamingChecksum() = default;

// XXH3's update and reset fail only for null pointers, which are not passed.
void StreamingChecksum::Update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

uint64_t StreamingChecksum::Digest() const { return XXH3_64bits_digest(&state_->xxh3); }

void StreamingChecksum::Reset() { XXH3_64bits_reset(&state_->xxh3); }

}  // namespace onnx_light
