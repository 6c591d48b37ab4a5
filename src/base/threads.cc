#include "base/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "base/loop.h"

namespace onnx_light {
namespace {

// The mask has room for 1024 cores; a kernel made for more refuses a short one, so double it.
int UsableCores() {
  for (int capacity = CPU_SETSIZE; capacity <= (1 << 20); capacity *= 2) {
    std::vector<cpu_set_t> mask(CPU_ALLOC_SIZE(capacity) / sizeof(cpu_set_t) + 1);
    const size_t size = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, size, mask.data()) == 0) {
      return std::max(1, CPU_COUNT_S(size, mask.data()));
    }
    if (errno != EINVAL) break;
  }
  // A sandbox that forbids the question: what is online is the best answer left.
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

int ResolveThreads(int num_threads) {
  return num_threads < 0 ? UsableCores() : std::max(1, num_threads);
}

void ParallelFor(int num_threads, uint64_t count, const std::function<void(uint64_t)>& f) {
  const auto threads = std::min(static_cast<uint64_t>(ResolveThreads(num_threads)), count);
  if (threads <= 1) {
    for (uint64_t i = 0; i < count; ++i) f(i);
    return;
  }
  Loop loop(count, f);
  {
    std::vector<std::jthread> helpers;  // joined at the end of the block
    helpers.reserve(threads - 1);
    for (uint64_t i = 1; i < threads; ++i) {
      try {
        helpers.emplace_back([&loop] { loop.Work(); });
      } catch (const std::system_error&) {
        break;  // no more threads to be had; the work gets done with fewer
      }
    }
    loop.Work();
  }
  loop.Rethrow();
}

}  // namespace onnx_light
