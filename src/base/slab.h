// Slots of equal size in large chunks, for buffers of a few kilobytes to two megabytes: pages of
// caches above all. A chunk lies in one huge page, where the first use of memory costs a fraction
// of what it costs in small ones, and slots that were given back are used again. A chunk without a
// used slot goes to the pool of chunks.
//
// Any thread may take and give, also after a fork.
#pragma once

#include <cstdint>

namespace onnx_light {

struct Slab;

struct Slot {
  void* memory = nullptr;  // aligned to 64, not initialised; null where there are no such slots
  Slab* slab = nullptr;
};

// At least `size` bytes, and less than an eighth of the chunk is lost. Null if the size is not one
// of which a whole number fills a chunk so well. Throws std::bad_alloc.
Slot TakeSlot(uint64_t size);
void GiveSlot(const Slot& slot) noexcept;

}  // namespace onnx_light
