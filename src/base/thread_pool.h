// Threads that wait for loops, where starting threads for each loop would cost more than the loop.
#pragma once

#include <cstdint>
#include <functional>

namespace onnx_light {

// Threads start when they are needed first and stay. Without work they sleep, after a moment of
// waiting awake. A process may fork at any time outside of ForEach(): the child has a pool without
// threads, which starts its own.
class ThreadPool {
 public:
  // The pool of this process, which is never destroyed.
  static ThreadPool& Shared();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // As ParallelFor() (base/threads.h): the same order, exceptions and meaning of `num_threads`. Any
  // threads may call it at once, and calls may be nested: a caller works on its own loop and never
  // waits for threads that are busy elsewhere.
  void ForEach(int num_threads, uint64_t count, const std::function<void(uint64_t)>& f);

 private:
  struct Job;
  class State;
  ThreadPool() = default;
};

}  // namespace onnx_light
