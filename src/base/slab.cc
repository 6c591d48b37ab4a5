#include "base/slab.h"

#include <pthread.h>

#include <array>
#include <bit>
#include <cstddef>
#include <mutex>
#include <type_traits>

#include "base/chunk_pool.h"
#include "base/math.h"

// Its macros do nothing without AddressSanitizer.
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, size)
#define ASAN_UNPOISON_MEMORY_REGION(memory, size)
#endif

namespace onnx_light {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kLeastSize = 4096;
constexpr uint64_t kMostSlots = kPooledChunkSize / kLeastSize;

// How many slots of that size a chunk has; 0 if it does not have any. Numbers above 32 are rounded
// to five digits, so that there are few kinds of slabs.
uint64_t SlotsFor(uint64_t size) {
  if (size < kLeastSize || size > kPooledChunkSize) return 0;
  uint64_t count = kPooledChunkSize / RoundUp(size, kAlignment);
  if (count > 32) count &= ~uint64_t{0} << (std::bit_width(count) - 5);
  return count * size >= kPooledChunkSize / 8 * 7 ? count : 0;
}

uint64_t SlotSize(uint64_t slots) { return kPooledChunkSize / slots / kAlignment * kAlignment; }

}  // namespace

struct Slab {
  std::byte* chunk;
  uint64_t slots;
  uint64_t used = 0;
  std::array<uint64_t, kMostSlots / 64> free{};  // a bit for each slot
  // Its neighbours among the slabs with a free slot, if it has one.
  Slab* previous = nullptr;
  Slab* next = nullptr;
};

namespace {

class Slabs {
 public:
  void Lock() { mutex_.lock(); }
  void Unlock() { mutex_.unlock(); }

  Slot Take([[maybe_unused]] uint64_t size, uint64_t slots) {
    const std::lock_guard lock(mutex_);
    Slab* slab = first_[slots];
    if (slab == nullptr) slab = New(slots);
    const uint64_t index = TakeFree(*slab);
    if (++slab->used == slots) Unlink(slab);
    void* memory = slab->chunk + index * SlotSize(slots);
    ASAN_UNPOISON_MEMORY_REGION(memory, size);
    return {memory, slab};
  }

  void Give(const Slot& slot) noexcept {
    Slab* slab = slot.slab;
    ASAN_POISON_MEMORY_REGION(slot.memory, SlotSize(slab->slots));
    const std::lock_guard lock(mutex_);
    const auto place = static_cast<uint64_t>(static_cast<std::byte*>(slot.memory) - slab->chunk);
    const uint64_t index = place / SlotSize(slab->slots);
    slab->free[index / 64] |= uint64_t{1} << index % 64;
    if (slab->used-- == slab->slots) Link(slab);
    if (slab->used != 0) return;
    Unlink(slab);
    GiveChunk(slab->chunk);
    delete slab;
  }

 private:
  Slab* New(uint64_t slots) {
    auto* slab = new Slab{};
    try {
      slab->chunk = static_cast<std::byte*>(TakeChunk());
    } catch (...) {
      delete slab;
      throw;
    }
    *reinterpret_cast<volatile char*>(slab->chunk) = 0;
    slab->slots = slots;
    for (uint64_t i = 0; i < slots; ++i) slab->free[i / 64] |= uint64_t{1} << i % 64;
    ASAN_POISON_MEMORY_REGION(slab->chunk, kPooledChunkSize);
    Link(slab);
    return slab;
  }

  static uint64_t TakeFree(Slab& slab) {
    uint64_t word = 0;
    while (slab.free[word] == 0) ++word;
    const auto bit = static_cast<uint64_t>(std::countr_zero(slab.free[word]));
    slab.free[word] &= slab.free[word] - 1;
    return word * 64 + bit;
  }

  void Link(Slab* slab) {
    Slab*& first = first_[slab->slots];
    slab->previous = nullptr;
    slab->next = first;
    if (first != nullptr) first->previous = slab;
    first = slab;
  }
  void Unlink(Slab* slab) {
    (slab->previous != nullptr ? slab->previous->next : first_[slab->slots]) = slab->next;
    if (slab->next != nullptr) slab->next->previous = slab->previous;
  }

  std::mutex mutex_;
  std::array<Slab*, kMostSlots + 1> first_{};  // with a free slot, by the number of slots
};

// Made before any thread can fork: what is made at its first use, a forked child finds half made
// for ever if another thread was at it. Never destroyed: buffers may outlive everything else.
constinit Slabs slabs;
static_assert(std::is_trivially_destructible_v<Slabs>);
[[maybe_unused]] const int at_fork =
    pthread_atfork([] { slabs.Lock(); }, [] { slabs.Unlock(); }, [] { slabs.Unlock(); });

}  // namespace

Slot TakeSlot(uint64_t size) {
  const uint64_t slots = SlotsFor(size);
  return slots == 0 ? Slot() : slabs.Take(size, slots);
}

void GiveSlot(const Slot& slot) noexcept { slabs.Give(slot); }

}  // namespace onnx_light
