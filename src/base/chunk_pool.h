// The large chunks that ended arenas gave back, for the next ones. Memory that the process has
// touched already costs no page faults, which take longer than parsing into it.
//
// Any thread may take and give; nothing here waits, so a fork in the middle does no harm (at worst
// the child loses the chunk that another thread was moving).
#pragma once

#include <cstdint>

#include "onnx_light/export.h"

namespace onnx_light {

inline constexpr uint64_t kHugePageSize = uint64_t{2} << 20;
inline constexpr uint64_t kPooledChunkSize = kHugePageSize;
// At most this much is kept, for the rest of the process's life: 64 MiB.
inline constexpr uint64_t kPooledChunks = 32;

// kPooledChunkSize bytes, aligned to as much, not initialised. Throws std::bad_alloc.
void* TakeChunk();
// Takes a chunk back: keeps it, or frees it if the pool is full.
void GiveChunk(void* chunk) noexcept;
// Frees what the pool holds, and says how many chunks that was.
uint64_t DrainChunks() noexcept;

// Asks for huge pages under memory that is about to be filled. The system may ignore it.
ONNX_LIGHT_EXPORT void AdviseHugePages(void* memory, uint64_t size) noexcept;

}  // namespace onnx_light
