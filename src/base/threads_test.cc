#include "base/threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace onnx_light {
namespace {

int ThreadsOfThisProcess() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                        std::filesystem::directory_iterator()));
}

TEST(ResolveThreads, ZeroAndOneAreSerial) {
  EXPECT_EQ(ResolveThreads(0), 1);
  EXPECT_EQ(ResolveThreads(1), 1);
  EXPECT_EQ(ResolveThreads(7), 7);
}

TEST(ResolveThreads, BelowZeroIsTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(ResolveThreads(-1), CPU_COUNT(&before));
  EXPECT_EQ(ResolveThreads(-100), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(ResolveThreads(-1), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(ParallelFor, CallsEveryIndexOnce) {
  for (int threads : {-1, 0, 1, 2, 5, 64}) {
    for (uint64_t count : {0u, 1u, 2u, 3u, 1000u}) {
      std::vector<std::atomic<int>> calls(count);
      ParallelFor(threads, count, [&](uint64_t i) { ++calls[i]; });
      for (uint64_t i = 0; i < count; ++i) EXPECT_EQ(calls[i], 1) << i << " of " << count;
    }
  }
}

TEST(ParallelFor, OneThreadIsTheCallerInOrder) {
  std::vector<uint64_t> order;
  ParallelFor(1, 5, [&](uint64_t i) { order.push_back(i); });
  EXPECT_EQ(order, (std::vector<uint64_t>{0, 1, 2, 3, 4}));
}

TEST(ParallelFor, UsesAsManyThreadsAsAskedFor) {
  // Each call waits for the two others, so fewer than three threads would never finish.
  std::barrier meeting(3);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  ParallelFor(3, 3, [&](uint64_t) {
    meeting.arrive_and_wait();
    std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_TRUE(ids.contains(std::this_thread::get_id()));
}

TEST(ParallelFor, ThrowsWhatASerialLoopWouldThrow) {
  for (int round = 0; round < 200; ++round) {
    try {
      ParallelFor(4, 100, [](uint64_t i) {
        if (i < 13) return;
        if (i == 13) std::this_thread::yield();  // let a later index throw first
        throw std::out_of_range(std::to_string(i));
      });
      FAIL() << "no exception";
    } catch (const std::out_of_range& error) {
      EXPECT_STREQ(error.what(), "13");
    }
  }
}

TEST(ParallelFor, StopsEarlyAfterAnException) {
  std::atomic<uint64_t> calls = 0;
  EXPECT_THROW(ParallelFor(2, 1ull << 40,
                           [&](uint64_t) {
                             ++calls;
                             throw std::runtime_error("stop");
                           }),
               std::runtime_error);
  EXPECT_LE(calls, 2u);
}

TEST(ParallelFor, Nests) {
  std::atomic<uint64_t> sum = 0;
  ParallelFor(2, 4, [&](uint64_t i) { ParallelFor(2, 4, [&](uint64_t j) { sum += 4 * i + j; }); });
  EXPECT_EQ(sum, 120u);
}

TEST(ParallelFor, LeavesNoThreadAndSurvivesFork) {
  // A sanitizer's runtime begins a thread of its own with the first one of the program.
  std::thread([] {}).join();
  const int before = ThreadsOfThisProcess();
  ParallelFor(4, 100, [](uint64_t) {});
  // The system lists a thread that was joined until it is quite gone.
  for (int i = 0; i < 10000 && ThreadsOfThisProcess() > before; ++i) std::this_thread::yield();
  EXPECT_LE(ThreadsOfThisProcess(), before);
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> calls = 0;
    ParallelFor(4, 100, [&](uint64_t) { ++calls; });
    _exit(calls == 100 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(ParallelFor, WorksWhenTheSystemRefusesThreads) {
  const pid_t child = fork();
  if (child == 0) {
    // The limit counts a user's threads and does not bind root: become nobody in the child.
    if (geteuid() == 0 && setuid(65534) != 0) _exit(3);
    const rlimit none{0, 0};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(4);
    std::atomic<int> calls = 0;
    ParallelFor(4, 100, [&](uint64_t) { ++calls; });
    _exit(calls == 100 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace onnx_light
