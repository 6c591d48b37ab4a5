// Immutable bytes that are shared by reference: heap memory, a mapping, or memory that somebody
// else owns. Messages hold their payloads and caches hold their pages this way, so nothing copies
// a payload and a payload lives exactly as long as somebody refers to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "onnx_light/export.h"

namespace onnx_light {

// Alignment of every heap buffer: a cache line, and the widest vector load.
inline constexpr size_t kBufferAlignment = 64;

// The owner of one run of bytes. Reference counts are atomic; the bytes do not change once a second
// reference exists. Made by BufferRef's functions only.
class Buffer {
 public:
  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  friend class BufferRef;
  Buffer() = default;
  std::atomic<uint64_t> references_{1};
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  std::function<void()> release_;  // empty for heap memory
};

// A counted reference to a Buffer, or null.
class ONNX_LIGHT_EXPORT BufferRef {
 public:
  BufferRef() = default;
  BufferRef(const BufferRef& other) : buffer_(other.buffer_) { Retain(); }
  BufferRef(BufferRef&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~BufferRef() { Release(); }

  // Heap memory of `size` bytes, aligned to kBufferAlignment, not initialised. Write through
  // mutable_data() before the reference is shared. Throws std::bad_alloc.
  static BufferRef Allocate(uint64_t size);

  // Memory of somebody else: `release` runs once, on whatever thread drops the last reference.
  static BufferRef Wrap(const void* data, uint64_t size, std::function<void()> release);

  // Takes over, or gives up, one count: for places that hold a bare pointer.
  static BufferRef Adopt(Buffer* buffer) {
    BufferRef ref;
    ref.buffer_ = buffer;
    return ref;
  }
  Buffer* Detach() { return std::exchange(buffer_, nullptr); }

  explicit operator bool() const { return buffer_ != nullptr; }
  Buffer* get() const { return buffer_; }
  const std::byte* data() const { return buffer_ ? buffer_->data_ : nullptr; }
  uint64_t size() const { return buffer_ ? buffer_->size_ : 0; }
  // REQUIRES: this is the only reference and the buffer came from Allocate.
  std::byte* mutable_data() { return buffer_->data_; }

 private:
  void Retain() {
    if (buffer_ != nullptr) buffer_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  void Release();

  Buffer* buffer_ = nullptr;
};

// A run of bytes and the reference that keeps it alive.
struct SharedBytes {
  const std::byte* data = nullptr;
  uint64_t size = 0;
  BufferRef owner;

  SharedBytes() = default;
  explicit SharedBytes(BufferRef buffer)
      : data(buffer.data()), size(buffer.size()), owner(std::move(buffer)) {}
  SharedBytes(const void* bytes, uint64_t count, BufferRef keep)
      : data(static_cast<const std::byte*>(bytes)), size(count), owner(std::move(keep)) {}

  std::span<const std::byte> span() const { return {data, static_cast<size_t>(size)}; }
  std::string_view view() const {
    return {reinterpret_cast<const char*>(data), static_cast<size_t>(size)};
  }
  // The bytes [offset, offset + count). REQUIRES: they lie inside.
  SharedBytes Slice(uint64_t offset, uint64_t count) const {
    return SharedBytes(data + offset, count, owner);
  }
};

// A copy of `size` bytes in a buffer of its own.
ONNX_LIGHT_EXPORT SharedBytes CopyBytes(const void* data, uint64_t size);

}  // namespace onnx_light
