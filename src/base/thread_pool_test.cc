#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace onnx_light {
namespace {

uint64_t SumOfIndices(int threads, uint64_t count) {
  std::atomic<uint64_t> sum{0};
  ThreadPool::Shared().ForEach(threads, count, [&](uint64_t i) { sum += i + 1; });
  return sum;
}

TEST(ThreadPool, CallsEveryIndexOnce) {
  for (int threads : {-1, 0, 1, 2, 3, 7}) {
    for (uint64_t count : {0u, 1u, 2u, 3u, 1000u}) {
      std::vector<std::atomic<int>> calls(count);
      ThreadPool::Shared().ForEach(threads, count, [&](uint64_t i) { ++calls[i]; });
      for (uint64_t i = 0; i < count; ++i) EXPECT_EQ(calls[i], 1) << i << " of " << count;
    }
  }
}

TEST(ThreadPool, AsManyThreadsAsAskedForWorkAtOnce) {
  constexpr int kThreads = 4;
  std::barrier everybody(kThreads);  // hangs unless all of them are at work
  ThreadPool::Shared().ForEach(kThreads, kThreads, [&](uint64_t) { everybody.arrive_and_wait(); });
}

TEST(ThreadPool, ThreadsAreUsedAgain) {
  std::mutex mutex;
  std::set<std::thread::id> seen;
  for (int round = 0; round < 50; ++round) {
    std::barrier both(2);
    ThreadPool::Shared().ForEach(2, 2, [&](uint64_t) {
      both.arrive_and_wait();
      std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
  }
  EXPECT_LE(seen.size(), 8u);  // those of this pool and the caller, not two for each round
}

TEST(ThreadPool, TheExceptionOfTheLowestIndexComesOut) {
  for (int threads : {1, 2, 4}) {
    for (int round = 0; round < 20; ++round) {
      try {
        ThreadPool::Shared().ForEach(threads, 100, [](uint64_t i) {
          if (i % 10 == 7) throw std::runtime_error(std::to_string(i));
        });
        FAIL() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "7");
      }
    }
  }
  EXPECT_EQ(SumOfIndices(4, 100), 5050u);
}

TEST(ThreadPool, CallsMayBeNested) {
  std::atomic<uint64_t> sum{0};
  ThreadPool::Shared().ForEach(3, 8, [&](uint64_t) {
    ThreadPool::Shared().ForEach(3, 8, [&](uint64_t i) { sum += SumOfIndices(2, i); });
  });
  EXPECT_EQ(sum, 8u * (0 + 1 + 3 + 6 + 10 + 15 + 21 + 28));
}

TEST(ThreadPool, ManyCallersAtOnce) {
  std::vector<std::jthread> callers;
  std::atomic<int> right{0};
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) right += SumOfIndices(3, 10) == 55;
    });
  }
  callers.clear();
  EXPECT_EQ(right, 1200);
}

// ThreadSanitizer does not let a forked process start threads; in g++ 12, AddressSanitizer's
// allocator may be locked for ever in one that was forked while another thread allocated.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// Sleeping threads of the pool, and those that are busy for somebody else while a process forks.
TEST(ThreadPool, AForkedProcessHasThreadsOfItsOwn) {
  EXPECT_EQ(SumOfIndices(3, 100), 5050u);
  std::atomic<bool> stop{false};
  std::jthread other([&] {
    while (!stop) SumOfIndices(2, 10);
  });
  for (int round = 0; round < 10; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::barrier both(2);
      ThreadPool::Shared().ForEach(2, 2, [&](uint64_t) { both.arrive_and_wait(); });
      _exit(SumOfIndices(3, 100) == 5050 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  stop = true;
}
#endif

}  // namespace
}  // namespace onnx_light
