#include "base/chunk_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "onnx_light/arena.h"

namespace onnx_light {
namespace {

TEST(ChunkPool, GivesBackWhatItGot) {
  DrainChunks();
  void* first = TakeChunk();
  void* second = TakeChunk();
  ASSERT_NE(first, second);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % kPooledChunkSize, 0u);
  std::memset(first, 1, kPooledChunkSize);
  std::memset(second, 2, kPooledChunkSize);
  GiveChunk(first);
  GiveChunk(second);
  const std::set<void*> again{TakeChunk(), TakeChunk()};
  EXPECT_EQ(again, (std::set<void*>{first, second}));
  EXPECT_EQ(DrainChunks(), 0u);
  for (void* chunk : again) GiveChunk(chunk);
  EXPECT_EQ(DrainChunks(), 2u);
}

TEST(ChunkPool, KeepsNoMoreThanItMay) {
  DrainChunks();
  std::vector<void*> chunks;
  for (uint64_t i = 0; i < kPooledChunks + 5; ++i) chunks.push_back(TakeChunk());
  for (void* chunk : chunks) GiveChunk(chunk);
  EXPECT_EQ(DrainChunks(), kPooledChunks);
}

TEST(ChunkPool, ArenasShareTheirChunksOneAfterTheOther) {
  DrainChunks();
  const auto fill = [] {
    Arena arena;
    while (arena.bytes_reserved() < 5 * kPooledChunkSize) {
      std::memset(arena.Allocate(1000), 7, 1000);
    }
  };
  fill();
  const uint64_t kept = DrainChunks();
  EXPECT_GE(kept, 4u);
  for (int i = 0; i < 3; ++i) fill();
  EXPECT_EQ(DrainChunks(), kept);
}

TEST(ChunkPool, NoChunkIsGivenToTwoThreads) {
  std::atomic<int> mixed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &mixed] {
      for (int round = 0; round < 300; ++round) {
        std::vector<int*> mine;
        for (int i = 0; i < 3; ++i) {
          mine.push_back(static_cast<int*>(TakeChunk()));
          *mine.back() = t;
        }
        std::this_thread::yield();
        for (int* chunk : mine) {
          if (*chunk != t) ++mixed;
          GiveChunk(chunk);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mixed, 0);
  EXPECT_LE(DrainChunks(), kPooledChunks);
}

// A child that is forked while threads take and give must be able to do the same.
TEST(ChunkPool, WorksInAForkedChild) {
  std::atomic<bool> stop{false};
  std::thread busy([&stop] {
    while (!stop) GiveChunk(TakeChunk());
  });
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (uint64_t n = 0; n <= 2 * kPooledChunks; ++n) {
        void* chunk = TakeChunk();
        static_cast<volatile char*>(chunk)[0] = 1;
        GiveChunk(chunk);
      }
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
  DrainChunks();
}

TEST(ChunkPool, AdviceForMemoryOfAnySizeIsHarmless) {
  std::vector<char> memory(3 * kPooledChunkSize + 123, 'x');
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, kPooledChunkSize, memory.size() - 1}) {
    AdviseHugePages(memory.data() + 1, size);
  }
  for (const char c : memory) ASSERT_EQ(c, 'x');
}

}  // namespace
}  // namespace onnx_light
