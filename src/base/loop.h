// What threads that share a loop have in common.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>

namespace onnx_light {

// One parallel loop: hands out indices and keeps the exception of the lowest one.
class Loop {
 public:
  Loop(uint64_t count, const std::function<void(uint64_t)>& f) : count_(count), f_(f) {}

  // Runs indices until there are none. An index that was handed out is always run: every index
  // below one that threw has been started, which makes the lowest exception the serial one.
  void Work() {
    while (!stopped_.load(std::memory_order_relaxed)) {
      const uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count_) return;
      try {
        f_(index);
      } catch (...) {
        Keep(index, std::current_exception());
      }
    }
  }

  // REQUIRES: all workers are done.
  void Rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  void Keep(uint64_t index, std::exception_ptr exception) {
    stopped_.store(true, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    if (index >= lowest_) return;
    lowest_ = index;
    exception_ = std::move(exception);
  }

  const uint64_t count_;
  const std::function<void(uint64_t)>& f_;
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  uint64_t lowest_ = std::numeric_limits<uint64_t>::max();
  std::exception_ptr exception_;
};

}  // namespace onnx_light
