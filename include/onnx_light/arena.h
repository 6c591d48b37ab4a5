// The owner of one message tree. Allocation moves a pointer, destroying drops whole chunks; what a
// tree gives back (an overwritten string, a removed element) is kept in free lists and used again,
// so that loops of changes stay bounded. Arenas never refer to each other.
//
// An arena belongs to one thread at a time; it has no lock. The process keeps up to 64 MiB of the
// chunks of ended arenas for the next ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "onnx_light/bytes.h"
#include "onnx_light/export.h"

namespace onnx_light {

// A string slot's reference to shared bytes. The slot owns it; the arena only links the nodes so
// that their references are dropped at its end.
struct Payload {
  Buffer* buffer;
  const char* data;
  uint64_t size;
  Payload* next;
  Payload** previous;
};

class ONNX_LIGHT_EXPORT Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `size` bytes aligned to 8, not initialised. Throws std::bad_alloc.
  void* Allocate(uint64_t size) {
    size = (size + 7) & ~uint64_t{7};
    if (size <= static_cast<uint64_t>(limit_ - position_) && size <= kLargeSize &&
        free_lists_ == nullptr) [[likely]] {
      char* result = position_;
      position_ += size;
      return result;
    }
    return AllocateSlow(size);
  }

  // Says that about `size` bytes or more are going to be allocated, so that the first chunk is not
  // a small one.
  void Expect(uint64_t size);

  // Gives memory back for reuse. `size` is what was asked for. Memory that is not a run of whole
  // aligned words (a piece of a bigger copy) stays unused until the end.
  void Free(void* memory, uint64_t size) noexcept;

  // The smallest size of at least `size` whose blocks, once freed, serve every request for as much:
  // what to ask for if memory of changing size comes and goes. At most a quarter larger.
  static uint64_t ReusableSize(uint64_t size);

  // A node that holds `bytes` until FreePayload or the arena's end. Constant time, both.
  Payload* NewPayload(SharedBytes bytes);
  void FreePayload(Payload* payload) noexcept;

  // Keeps a buffer alive as long as the arena: the input that short strings point into.
  void Keep(BufferRef buffer) { kept_.push_back(std::move(buffer)); }

  // Bytes taken from the system, for tests and statistics.
  uint64_t bytes_reserved() const { return bytes_reserved_; }

 private:
  // Blocks above this size are allocated one by one and go back to the system when freed.
  static constexpr uint64_t kLargeSize = 32 * 1024;

  struct Chunk {
    Chunk* next;
    uint64_t size;
  };
  struct LargeBlock {
    LargeBlock* next;
    LargeBlock** previous;
  };
  struct FreeBlock {
    FreeBlock* next;
  };
  struct FreeLists;

  void* AllocateSlow(uint64_t size);
  void* AllocateLarge(uint64_t size);
  void NewChunk(uint64_t size);

  char* position_ = nullptr;
  char* limit_ = nullptr;
  FreeLists* free_lists_ = nullptr;
  Chunk* chunks_ = nullptr;
  LargeBlock* large_ = nullptr;
  Payload* payloads_ = nullptr;
  uint64_t next_chunk_size_ = 1024;
  uint64_t bytes_reserved_ = 0;
  std::vector<BufferRef> kept_;
};

}  // namespace onnx_light
