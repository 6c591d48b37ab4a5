#include <algorithm>
#include <stdexcept>

#include "onnx_light/errors.h"
#include "onnx_light/message.h"

namespace onnx_light {

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
  const bool owned = (meta_ & (kPayload | kBorrowed)) == 0;
  const uint64_t capacity = owned ? size() + slack() : 0;
  if (value.size() <= capacity) {
    std::memmove(text_, value.data(), value.size());
    // The slack is cut to its field's width; what is cut off stays unused.
    meta_ = value.size() | std::min(capacity - value.size(), kSlackMask) << kSlackShift;
    return;
  }
  const uint64_t rounded = Arena::ReusableSize(value.size());
  char* text = static_cast<char*>(arena.Allocate(rounded));
  std::memcpy(text, value.data(), value.size());
  Release(arena);
  text_ = text;
  meta_ = value.size() | (rounded - value.size()) << kSlackShift;
}

void String::SetShared(Arena& arena, SharedBytes bytes) {
  if (bytes.size > kMaxSize) {
    throw ValueError(
        "message.too_long", "",
        "a payload of " + std::to_string(bytes.size) + " bytes; at most 2^48 - 1 fit in a field");
  }
  const uint64_t size = bytes.size;
  Payload* payload = arena.NewPayload(std::move(bytes));
  Release(arena);
  payload_ = payload;
  meta_ = size | kPayload;
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
  BufferRef counted = BufferRef::Adopt(payload_->buffer);
  BufferRef result = counted;
  counted.Detach();
  return SharedBytes(payload_->data, size(), std::move(result));
}

void String::Release(Arena& arena) {
  if (is_payload()) {
    arena.FreePayload(payload_);
  } else if ((meta_ & kBorrowed) == 0 && meta_ != 0) {
    arena.Free(text_, size() + slack());
  }
  text_ = nullptr;
  meta_ = 0;
}

}  // namespace onnx_light
