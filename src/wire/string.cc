#include <cstring>
#include <stdexcept>

#include "onnx_light/errors.h"
#include "onnx_light/message.h"

namespace onnx_light {

namespace {

// In front of an owned text stands the size of its block, which is the text's room for growing.
constexpr uint64_t kOwnedHeader = sizeof(uint16_t);
static_assert(String::kPayloadSize * 5 / 4 + 8 <= UINT16_MAX);

uint64_t BlockSize(const char* text) {
  uint16_t size = 0;
  std::memcpy(&size, text - kOwnedHeader, kOwnedHeader);
  return size;
}

}  // namespace

void String::Set(Arena& arena, std::string_view value) {
  if (value.size() >= kPayloadSize) {
    // Copied before the old bytes go: `value` may lie in them.
    SetShared(arena, CopyBytes(value.data(), value.size()));
    return;
  }
  if (value.empty()) {
    Release(arena);
    return;
  }
  if (is_owned() && value.size() <= BlockSize(text()) - kOwnedHeader) {
    std::memmove(text(), value.data(), value.size());
    word_ = (word_ & ~(kSizeMask << kSizeShift)) | value.size() << kSizeShift;
    return;
  }
  const uint64_t block = Arena::ReusableSize(value.size() + kOwnedHeader);
  char* fresh = static_cast<char*>(arena.Allocate(block)) + kOwnedHeader;
  const auto stored = static_cast<uint16_t>(block);
  std::memcpy(fresh - kOwnedHeader, &stored, kOwnedHeader);
  std::memcpy(fresh, value.data(), value.size());
  Release(arena);
  SetBorrowed(arena, fresh, value.size());
  if (!is_payload()) word_ |= kOwned;
}

void String::SetShared(Arena& arena, SharedBytes bytes) {
  if (bytes.size > kMaxSize) {
    throw ValueError(
        "message.too_long", "",
        "a payload of " + std::to_string(bytes.size) + " bytes; at most 2^48 - 1 fit in a field");
  }
  Payload* payload = arena.NewPayload(std::move(bytes));
  Release(arena);
  word_ = reinterpret_cast<uintptr_t>(payload) | kPayload;
}

void String::CopyFrom(Arena& arena, const String& other) {
  if (this == &other) return;
  if (other.is_payload()) {
    SetShared(arena, other.Shared());
  } else {
    Set(arena, other.view());
  }
}

SharedBytes String::Share(Arena& arena) {
  if (!is_payload()) SetShared(arena, CopyBytes(data(), size()));
  return Shared();
}

SharedBytes String::Shared() const {
  BufferRef counted = BufferRef::Adopt(payload()->buffer);
  BufferRef result = counted;
  counted.Detach();
  return SharedBytes(payload()->data, payload()->size, std::move(result));
}

void String::Release(Arena& arena) {
  if (is_payload()) {
    arena.FreePayload(payload());
  } else if (is_owned()) {
    arena.Free(text() - kOwnedHeader, BlockSize(text()));
  }
  word_ = 0;
}

}  // namespace onnx_light
