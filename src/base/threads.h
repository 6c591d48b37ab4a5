// Parallel loops.
#pragma once

#include <cstdint>
#include <functional>

namespace onnx_light {

// How many threads, at least 1, an option `num_threads` means: 0 and 1 are serial work on the
// calling thread, n > 1 is n threads, below 0 is one for every core that this process may use (its
// affinity mask, not the machine's size).
int ResolveThreads(int num_threads);

// Calls f(0) ... f(count - 1), each once, on up to ResolveThreads(num_threads) threads, the calling
// one among them, and returns when all are done. Indices are handed out in ascending order, one at
// a time, so a call of f should be worth at least some microseconds.
//
// If calls of f throw, no further index is started, and the exception with the lowest index is
// rethrown here: the same one that a serial loop would throw, whatever the number of threads.
// If the system refuses threads, the ones that there are do the work. No thread outlives the call,
// so a process may fork between calls. Calls may be nested.
void ParallelFor(int num_threads, uint64_t count, const std::function<void(uint64_t)>& f);

}  // namespace onnx_light
