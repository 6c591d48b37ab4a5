#include "base/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/loop.h"
#include "base/threads.h"

namespace onnx_light {
namespace {

// How often a thread looks for news before it sleeps: some tens of microseconds. The gap between
// two loops of one operation is shorter, that between operations longer.
constexpr int kLooks = 2000;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadPool::Job {
  Job(uint64_t count, const std::function<void(uint64_t)>& f, int threads)
      : loop(count, f), wanted(threads) {}

  Loop loop;
  int wanted;                  // more threads that may join; guarded by the state's mutex
  std::atomic<int> active{0};  // threads of the pool at work; grows under the mutex only
};

// Reached through a pointer that a forked child forgets: its copies of the mutex and of the list
// may be in the middle of anything, and the threads do not exist there.
class ThreadPool::State {
 public:
  static State& Current() {
    State* state = current.load(std::memory_order_acquire);
    if (state != nullptr) return *state;
    auto* made = new State;
    if (current.compare_exchange_strong(state, made, std::memory_order_acq_rel)) return *made;
    delete made;
    return *state;
  }

  void Offer(Job& job) {
    std::lock_guard lock(mutex_);
    StartThreads(job.wanted);
    jobs_.push_back(&job);
    news_.fetch_add(1, std::memory_order_release);
    if (asleep_ == 0) return;
    job.wanted > 1 ? wake_.notify_all() : wake_.notify_one();
  }

  // Returns when no thread of the pool is at work on the job, and none will be.
  void Retire(Job& job) {
    {
      std::lock_guard lock(mutex_);
      std::erase(jobs_, &job);
    }
    for (int look = 0; look < kLooks; ++look) {
      if (job.active.load(std::memory_order_acquire) == 0) return;
      Pause();
    }
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return job.active.load(std::memory_order_acquire) == 0; });
  }

 private:
  void StartThreads(int wanted) {
    try {
      for (; threads_ < wanted; ++threads_) std::thread([this] { Serve(); }).detach();
    } catch (const std::system_error&) {
      // No more threads to be had: the work gets done with fewer.
    }
  }

  [[noreturn]] void Serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (Job* job = TakeJob()) {
        lock.unlock();
        job->loop.Work();
        lock.lock();
        // The last touch of the job: its owner may be gone as soon as this is seen.
        if (job->active.fetch_sub(1, std::memory_order_acq_rel) == 1) done_.notify_all();
      } else {
        WaitForNews(lock);
      }
    }
  }

  Job* TakeJob() {
    for (Job* job : jobs_) {
      if (job->wanted == 0) continue;
      --job->wanted;
      job->active.fetch_add(1, std::memory_order_relaxed);
      return job;
    }
    return nullptr;
  }

  void WaitForNews(std::unique_lock<std::mutex>& lock) {
    const uint64_t seen = news_.load(std::memory_order_relaxed);
    const auto is_new = [&] { return news_.load(std::memory_order_acquire) != seen; };
    lock.unlock();
    for (int look = 0; look < kLooks && !is_new(); ++look) Pause();
    lock.lock();
    ++asleep_;
    wake_.wait(lock, is_new);
    --asleep_;
  }

  static void Forget() { current = nullptr; }

  static constinit inline std::atomic<State*> current{nullptr};
  // Once for all processes: a child inherits the handler.
  [[maybe_unused]] static inline const int at_fork = pthread_atfork(nullptr, nullptr, Forget);

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Job*> jobs_;
  std::atomic<uint64_t> news_{0};
  int threads_ = 0;
  int asleep_ = 0;
};

ThreadPool& ThreadPool::Shared() {
  static constinit ThreadPool pool;
  return pool;
}

void ThreadPool::ForEach(int num_threads, uint64_t count, const std::function<void(uint64_t)>& f) {
  const auto threads = std::min(static_cast<uint64_t>(ResolveThreads(num_threads)), count);
  if (threads <= 1) {
    for (uint64_t i = 0; i < count; ++i) f(i);
    return;
  }
  Job job(count, f, static_cast<int>(threads - 1));
  State& state = State::Current();
  state.Offer(job);
  job.loop.Work();
  state.Retire(job);
  job.loop.Rethrow();
}

}  // namespace onnx_light
