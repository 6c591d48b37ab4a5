#include "onnx_light/bytes.h"

#include <cstring>
#include <limits>
#include <new>

#include "base/chunk_pool.h"
#include "base/slab.h"

namespace onnx_light {
namespace {

// The header sits in front of the bytes, in a cache line of its own, so one allocation serves both.
constexpr uint64_t kHeaderSize =
    (sizeof(Buffer) + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;

}  // namespace

BufferRef BufferRef::Allocate(uint64_t size) {
  if (size > std::numeric_limits<uint64_t>::max() / 2) throw std::bad_alloc();
  if (const Slot slot = TakeSlot(size); slot.memory != nullptr) {
    return Wrap(slot.memory, size, [slot] { GiveSlot(slot); });
  }
  void* memory = ::operator new(kHeaderSize + size, std::align_val_t{kBufferAlignment});
  AdviseHugePages(memory, kHeaderSize + size);
  auto* buffer = new (memory) Buffer();
  buffer->data_ = static_cast<std::byte*>(memory) + kHeaderSize;
  buffer->size_ = size;
  return Adopt(buffer);
}

BufferRef BufferRef::Wrap(const void* data, uint64_t size, std::function<void()> release) {
  void* memory = ::operator new(kHeaderSize, std::align_val_t{kBufferAlignment});
  auto* buffer = new (memory) Buffer();
  buffer->data_ = const_cast<std::byte*>(static_cast<const std::byte*>(data));
  buffer->size_ = size;
  buffer->release_ = std::move(release);
  return Adopt(buffer);
}

void BufferRef::Release() {
  if (buffer_ == nullptr) return;
  if (buffer_->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (buffer_->release_) buffer_->release_();
  buffer_->~Buffer();
  ::operator delete(static_cast<void*>(buffer_), std::align_val_t{kBufferAlignment});
}

SharedBytes CopyBytes(const void* data, uint64_t size) {
  BufferRef buffer = BufferRef::Allocate(size);
  if (size != 0) std::memcpy(buffer.mutable_data(), data, size);
  return SharedBytes(std::move(buffer));
}

}  // namespace onnx_light
