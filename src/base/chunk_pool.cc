#include "base/chunk_pool.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>

// Its macros do nothing without AddressSanitizer.
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, size)
#define ASAN_UNPOISON_MEMORY_REGION(memory, size)
#endif

namespace onnx_light {
namespace {

std::atomic<void*> kept[kPooledChunks];

void FreeChunk(void* chunk) noexcept {
  ASAN_UNPOISON_MEMORY_REGION(chunk, kPooledChunkSize);
  std::free(chunk);
}

}  // namespace

void* TakeChunk() {
  for (std::atomic<void*>& slot : kept) {
    if (slot.load(std::memory_order_relaxed) == nullptr) continue;
    if (void* chunk = slot.exchange(nullptr, std::memory_order_acquire)) {
      ASAN_UNPOISON_MEMORY_REGION(chunk, kPooledChunkSize);
      return chunk;
    }
  }
  void* chunk = std::aligned_alloc(kPooledChunkSize, kPooledChunkSize);
  if (chunk == nullptr) throw std::bad_alloc();
  AdviseHugePages(chunk, kPooledChunkSize);
  return chunk;
}

void GiveChunk(void* chunk) noexcept {
  ASAN_POISON_MEMORY_REGION(chunk, kPooledChunkSize);
  for (std::atomic<void*>& slot : kept) {
    void* none = nullptr;
    if (slot.load(std::memory_order_relaxed) == nullptr &&
        slot.compare_exchange_strong(none, chunk, std::memory_order_release,
                                     std::memory_order_relaxed)) {
      return;
    }
  }
  FreeChunk(chunk);
}

uint64_t DrainChunks() noexcept {
  uint64_t count = 0;
  for (std::atomic<void*>& slot : kept) {
    if (void* chunk = slot.exchange(nullptr, std::memory_order_acquire)) {
      FreeChunk(chunk);
      ++count;
    }
  }
  return count;
}

void AdviseHugePages(void* memory, uint64_t size) noexcept {
  constexpr uintptr_t kMask = kHugePageSize - 1;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + kMask) & ~kMask;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + size) & ~kMask;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace onnx_light
