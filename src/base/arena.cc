#include "onnx_light/arena.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

#include "base/chunk_pool.h"

namespace onnx_light {
namespace {

// At most a quarter of such a block is rounding.
constexpr uint64_t kHugeBlockSize = 4 * kHugePageSize;
constexpr uint64_t kMaxSize = uint64_t{1} << 62;
// Free lists: one per word count up to kExactSize, four per doubling above.
constexpr uint64_t kExactSize = 1024;
constexpr uint64_t kExactLists = kExactSize / 8 + 1;

// The list whose blocks have the largest step at or below `size`. REQUIRES: at least kExactSize.
uint64_t StepBelow(uint64_t size) {
  const int doubling = static_cast<int>(std::bit_width(size)) - 1;
  return 4 * static_cast<uint64_t>(doubling - std::countr_zero(kExactSize)) +
         (size >> (doubling - 2) & 3);
}

void* Obtain(uint64_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Memory that is going to be filled: in huge pages where that saves many page faults.
void* ObtainLarge(uint64_t size) {
  if (size < kHugeBlockSize) return Obtain(size);
  const uint64_t rounded = (size + kHugePageSize - 1) & ~(kHugePageSize - 1);
  void* memory = std::aligned_alloc(kHugePageSize, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  AdviseHugePages(memory, rounded);
  return memory;
}

}  // namespace

struct Arena::FreeLists {
  static constexpr int kStepLists = 4 * std::countr_zero(kLargeSize / kExactSize) + 1;

  FreeBlock* exact[kExactLists] = {};
  FreeBlock* steps[kStepLists] = {};

  // A freed block lies in the list of the step at or below its size, a request looks in the list at
  // or above its own: whatever is found there is large enough.
  FreeBlock** ToKeep(uint64_t size) {
    return size <= kExactSize ? &exact[size / 8] : &steps[StepBelow(size)];
  }
  FreeBlock** ToServe(uint64_t size) { return ToKeep(ReusableSize(size)); }
};

uint64_t Arena::ReusableSize(uint64_t size) {
  size = (size + 7) & ~uint64_t{7};
  if (size <= kExactSize || size > kLargeSize) return size;
  const int shift = static_cast<int>(std::bit_width(size - 1)) - 3;
  return (((size - 1) >> shift) + 1) << shift;
}

Arena::~Arena() {
  for (Payload* payload = payloads_; payload != nullptr; payload = payload->next) {
    BufferRef::Adopt(payload->buffer);
  }
  while (large_ != nullptr) std::free(std::exchange(large_, large_->next));
  while (chunks_ != nullptr) {
    Chunk* chunk = std::exchange(chunks_, chunks_->next);
    if (chunk->size == kPooledChunkSize) {
      GiveChunk(chunk);
    } else {
      std::free(chunk);
    }
  }
}

void Arena::NewChunk(uint64_t size) {
  void* memory = size == kPooledChunkSize ? TakeChunk() : Obtain(size);
  auto* chunk = new (memory) Chunk{chunks_, size};
  chunks_ = chunk;
  bytes_reserved_ += size;
  position_ = reinterpret_cast<char*>(chunk + 1);
  limit_ = reinterpret_cast<char*>(chunk) + size;
}

void Arena::Expect(uint64_t size) {
  const uint64_t chunk = std::bit_floor(std::min(size | 1, kPooledChunkSize));
  next_chunk_size_ = std::max(next_chunk_size_, chunk);
}

void* Arena::AllocateSlow(uint64_t size) {
  if (size > kLargeSize) return AllocateLarge(size);
  if (free_lists_ != nullptr) {
    FreeBlock** list = free_lists_->ToServe(size);
    if (*list != nullptr) return std::exchange(*list, (*list)->next);
  }
  if (size > static_cast<uint64_t>(limit_ - position_)) {
    // What is left of the old chunk is given up: at most kLargeSize, and less than the new chunk.
    while (next_chunk_size_ < size + sizeof(Chunk)) next_chunk_size_ *= 2;
    NewChunk(next_chunk_size_);
    if (next_chunk_size_ < kPooledChunkSize) next_chunk_size_ *= 2;
  }
  char* result = position_;
  position_ += size;
  return result;
}

void* Arena::AllocateLarge(uint64_t size) {
  if (size > kMaxSize) throw std::bad_alloc();
  auto* block = static_cast<LargeBlock*>(ObtainLarge(size + sizeof(LargeBlock)));
  block->next = large_;
  block->previous = &large_;
  if (large_ != nullptr) large_->previous = &block->next;
  large_ = block;
  bytes_reserved_ += size + sizeof(LargeBlock);
  return block + 1;
}

void Arena::Free(void* memory, uint64_t size) noexcept {
  size = size > kLargeSize ? (size + 7) & ~uint64_t{7} : size;
  if (size > kLargeSize) {
    auto* block = static_cast<LargeBlock*>(memory) - 1;
    *block->previous = block->next;
    if (block->next != nullptr) block->next->previous = block->previous;
    bytes_reserved_ -= size + sizeof(LargeBlock);
    std::free(block);
    return;
  }
  if (size == 0 || ((reinterpret_cast<uintptr_t>(memory) | size) & 7) != 0) return;
  if (free_lists_ == nullptr) {
    try {
      free_lists_ = new (Allocate(sizeof(FreeLists))) FreeLists();
    } catch (const std::bad_alloc&) {
      return;  // the block stays unused until the end
    }
  }
  auto* block = static_cast<FreeBlock*>(memory);
  FreeBlock** list = free_lists_->ToKeep(size);
  block->next = *list;
  *list = block;
}

Payload* Arena::NewPayload(SharedBytes bytes) {
  auto* payload = static_cast<Payload*>(Allocate(sizeof(Payload)));
  payload->data = reinterpret_cast<const char*>(bytes.data);
  payload->size = bytes.size;
  payload->buffer = bytes.owner.Detach();
  payload->next = payloads_;
  payload->previous = &payloads_;
  if (payloads_ != nullptr) payloads_->previous = &payload->next;
  payloads_ = payload;
  return payload;
}

void Arena::FreePayload(Payload* payload) noexcept {
  *payload->previous = payload->next;
  if (payload->next != nullptr) payload->next->previous = payload->previous;
  BufferRef::Adopt(payload->buffer);
  Free(payload, sizeof(Payload));
}

}  // namespace onnx_light
