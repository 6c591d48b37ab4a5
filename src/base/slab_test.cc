#include "base/slab.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/chunk_pool.h"

namespace onnx_light {
namespace {

TEST(Slab, SlotsOfRandomSizesDoNotOverlap) {
  std::mt19937 random(1);
  std::map<std::byte*, std::pair<Slot, uint64_t>> taken;
  for (int step = 0; step < 3000; ++step) {
    if (taken.size() > 40 || (!taken.empty() && random() % 3 == 0)) {
      auto it = taken.begin();
      std::advance(it, random() % taken.size());
      const auto fill = static_cast<std::byte>(it->second.second);
      for (uint64_t i = 0; i < it->second.second; i += 997) ASSERT_EQ(it->first[i], fill);
      GiveSlot(it->second.first);
      taken.erase(it);
      continue;
    }
    const uint64_t size = 1 + random() % (uint64_t{1} << (5 + random() % 17));
    const Slot slot = TakeSlot(size);
    if (slot.memory == nullptr) continue;
    auto* begin = static_cast<std::byte*>(slot.memory);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(begin) % 64, 0u);
    const auto next = taken.lower_bound(begin);
    if (next != taken.end()) {
      ASSERT_LE(begin + size, next->first);
    }
    if (next != taken.begin()) {
      ASSERT_LE(std::prev(next)->first + std::prev(next)->second.second, begin);
    }
    std::memset(begin, static_cast<int>(size & 255), size);
    taken[begin] = {slot, size};
  }
  for (const auto& [begin, slot] : taken) GiveSlot(slot.first);
}

TEST(Slab, SizesThatFillChunksHaveSlots) {
  for (uint64_t size = 4096; size <= kPooledChunkSize; size *= 2) {
    const Slot slot = TakeSlot(size);
    EXPECT_NE(slot.memory, nullptr) << size;
    GiveSlot(slot);
  }
  for (const uint64_t size :
       {uint64_t{0}, uint64_t{100}, kPooledChunkSize / 4 * 3, kPooledChunkSize + 1, ~uint64_t{0}}) {
    EXPECT_EQ(TakeSlot(size).memory, nullptr) << size;
  }
}

TEST(Slab, EqualSlotsShareChunksWhichGoBackWhenTheyAreEmpty) {
  DrainChunks();
  constexpr uint64_t kSize = kPooledChunkSize / 8;
  for (int round = 0; round < 3; ++round) {
    std::vector<Slot> slots;
    for (int i = 0; i < 16; ++i) slots.push_back(TakeSlot(kSize));
    for (const Slot& slot : slots) GiveSlot(slot);
    EXPECT_EQ(DrainChunks(), 2u);
  }
}

TEST(Slab, ASlotIsUsedAgain) {
  constexpr uint64_t kSize = 50'000;
  const Slot kept = TakeSlot(kSize), first = TakeSlot(kSize);
  GiveSlot(first);
  const Slot second = TakeSlot(kSize);
  EXPECT_EQ(second.memory, first.memory);
  GiveSlot(second);
  GiveSlot(kept);
}

TEST(Slab, ThreadsAndForkedChildrenTakeAndGive) {
  std::atomic<bool> stop{false};
  std::atomic<int> mixed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([t, &stop, &mixed] {
      while (!stop) {
        const Slot slot = TakeSlot(60'000);
        auto* number = static_cast<volatile int*>(slot.memory);
        *number = t;
        std::this_thread::yield();
        if (*number != t) ++mixed;
        GiveSlot(slot);
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int n = 0; n < 100; ++n) GiveSlot(TakeSlot(60'000));
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mixed, 0);
}

}  // namespace
}  // namespace onnx_light
