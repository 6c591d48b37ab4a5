// Attention against its two floors: reading the bytes of the cache, and the multiplications in
// float. All three are measured on the same caches, in turn, so that what else the machine does
// disturbs them alike. Caches take turns, too: none is found in the processor's cache.
//
//   bench_attention [THREADS [TOKENS|prefill [HEADS/KV_HEADS/WIDTH [FORMAT [mapped]]]]]
//
// "mapped": the caches lie in a snapshot file in the current folder, which is mapped and warm.
// Columns: microseconds of attend, of reading and of multiplying (medians), the GB/s that attend
// reads, and its floor over its time (the median over rounds): 1 would be perfect.
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "base/isa.h"
#include "base/thread_pool.h"
#include "onnx_light/attention.h"
#include "onnx_light/snapshot.h"

namespace onnx_light {
namespace {

constexpr int64_t kWorkingSet = 128 << 20;  // bytes of the caches that take turns
constexpr int kRounds = 15;
constexpr double kSecondsPerSample = 0.01;

struct Case {
  int64_t query_heads, heads, width, tokens;
  std::string format;
  int64_t queries = 1;
  bool mapped = false;
};

#if defined(__x86_64__)
[[gnu::target("avx512f")]] uint64_t ReadWide(const std::byte* data, uint64_t size) {
  __m512i sums[4]{};
  uint64_t i = 0;
  for (; i + 256 <= size; i += 256) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      sums[k] = _mm512_xor_si512(sums[k], _mm512_loadu_si512(data + i + 64 * k));
    }
  }
  const __m512i all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return static_cast<uint64_t>(all[0] ^ all[1] ^ all[2] ^ all[3] ^ all[4] ^ all[5] ^ all[6] ^
                               all[7]);
}

// Instructions one by one, for a compiler sees that all of these sums are the same.
[[gnu::target("avx512f")]] void MultiplyWide(int64_t products) {
  __m512 s0{}, s1{}, s2{}, s3{}, s4{}, s5{}, s6{}, s7{}, factor = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < products; i += 128) {
    asm volatile(
        "vfmadd213ps %8, %8, %0\n vfmadd213ps %8, %8, %1\n vfmadd213ps %8, %8, %2\n"
        "vfmadd213ps %8, %8, %3\n vfmadd213ps %8, %8, %4\n vfmadd213ps %8, %8, %5\n"
        "vfmadd213ps %8, %8, %6\n vfmadd213ps %8, %8, %7\n"
        : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5), "+v"(s6), "+v"(s7)
        : "v"(factor));
  }
}

[[gnu::target("avx2,fma")]] void MultiplyHalf(int64_t products) {
  __m256 s0{}, s1{}, s2{}, s3{}, s4{}, s5{}, s6{}, s7{}, s8{}, s9{};
  const __m256 factor = _mm256_set1_ps(0.999f);
  for (int64_t i = 0; i < products; i += 80) {
    asm volatile(
        "vfmadd213ps %10, %10, %0\n vfmadd213ps %10, %10, %1\n vfmadd213ps %10, %10, %2\n"
        "vfmadd213ps %10, %10, %3\n vfmadd213ps %10, %10, %4\n vfmadd213ps %10, %10, %5\n"
        "vfmadd213ps %10, %10, %6\n vfmadd213ps %10, %10, %7\n vfmadd213ps %10, %10, %8\n"
        "vfmadd213ps %10, %10, %9\n"
        : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(s4), "+x"(s5), "+x"(s6), "+x"(s7), "+x"(s8),
          "+x"(s9)
        : "x"(factor));
  }
}
#endif

uint64_t Read(const std::byte* data, uint64_t size) {
#if defined(__x86_64__)
  // Asked once: the processor's answer takes longer than reading a page.
  static const bool wide = WidestIsa() >= Isa::kAvx512;
  if (wide) return ReadWide(data, size);
#endif
  uint64_t sum = 0;
  for (uint64_t i = 0; i + 8 <= size; i += 8) {
    uint64_t part;
    __builtin_memcpy(&part, data + i, 8);
    sum ^= part;
  }
  return sum;
}

// As many products and sums as that, in the instruction set of the kernels.
void MultiplyAndAdd(int64_t products) {
#if defined(__x86_64__)
  if (SelectedIsa() >= Isa::kAvx512) return MultiplyWide(products);
  if (SelectedIsa() == Isa::kAvx2) return MultiplyHalf(products);
#endif
  volatile float sum = 0;
  for (int64_t i = 0; i < products; ++i) sum = sum * 0.999f + 0.999f;
}

volatile uint64_t sink;

struct Bytes {
  const std::byte* data;
  uint64_t size;
};

// All payloads of a cache.
std::vector<Bytes> BytesOf(const PagedCache& cache) {
  std::vector<Bytes> bytes;
  for (const PlacedPage& placed : cache.pages()) {
    for (const PagePayload* payload : {&placed.page->key(), &placed.page->value()}) {
      if (const auto* dense = std::get_if<DensePayload>(payload)) {
        bytes.push_back({dense->bytes.data, dense->bytes.size});
      } else {
        const auto& encoded = std::get<EncodedPayload>(*payload);
        bytes.push_back({encoded.codes.data, encoded.codes.size});
        bytes.push_back({encoded.scales.data, encoded.scales.size});
      }
    }
  }
  return bytes;
}

class Bench {
 public:
  Bench(const Case& test, int threads) : test_(test), threads_(threads) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const int64_t row = test.heads * test.width, count = test.tokens * row;
    std::vector<float> numbers(count);
    for (float& number : numbers) number = normal(random);
    const ArrayView rows =
        ContiguousView(numbers.data(), DType::kFloat32, {1, test.heads, test.tokens, test.width});
    const PagedCache first =
        PagedCache::FromArrays(rows, rows, 64, 0, CachePolicy::Parse(test.format));
    const int64_t copies =
        test.queries > 1
            ? 1
            : std::max<int64_t>(1, (std::getenv("HOT") ? 1 : kWorkingSet) / first.nbytes());
    for (int64_t i = 0; i < copies; ++i) {
      caches_.push_back(PagedCache::FromArrays(rows, rows, 64, 0, CachePolicy::Parse(test.format)));
    }
    if (test.mapped) MapCaches();
    for (const PagedCache& cache : caches_) bytes_.push_back(BytesOf(cache));
    nbytes_ = first.nbytes();
    query_.resize(test.query_heads * test.queries * test.width);
    for (float& number : query_) number = normal(random);
    output_.resize(query_.size());
  }

  void Run() {
    std::vector<double> attend, read, multiply, ratio;
    for (int round = 0; round < kRounds; ++round) {
      read.push_back(Time([this](int64_t i) { Read(i); }));
      attend.push_back(Time([this](int64_t i) { AttendOn(i); }));
      multiply.push_back(Time([this](int64_t) { Multiply(); }));
      ratio.push_back(std::max(read.back(), multiply.back()) / attend.back());
    }
    const double us = Median(attend);
    std::printf("%2ld/%ld/%-3ld %6ld %4ld %-44s %d  %9.1f %9.1f %9.1f  %6.1f GB/s  %.2f\n",
                test_.query_heads, test_.heads, test_.width, test_.tokens, test_.queries,
                (test_.format + (test_.mapped ? ", mapped" : "")).c_str(), threads_, us,
                Median(read), Median(multiply), static_cast<double>(nbytes_) / us * 1e-3,
                Median(ratio));
    std::fflush(stdout);
  }

 private:
  static double Median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }

  // The same caches from a file, which is deleted: the mapping keeps its bytes.
  void MapCaches() {
    const std::string path = "bench_attention.kvcache";
    SnapshotContent content;
    for (size_t i = 0; i < caches_.size(); ++i) {
      content.caches.push_back({"layers." + std::to_string(i), caches_[i]});
    }
    SnapshotWriter(content).WriteToFile(path);
    const Snapshot snapshot = Snapshot::OpenFile(path);
    for (size_t i = 0; i < caches_.size(); ++i) {
      caches_[i] = snapshot.Cache(static_cast<int64_t>(i));
    }
    std::remove(path.c_str());
  }

  // Seconds; of one thread those that it had a core, so that a busy machine disturbs less.
  double Now() const {
    timespec now{};
    clock_gettime(threads_ == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }

  // Microseconds of one call of f.
  template <typename F>
  double Time(F f) {
    int64_t calls = 0;
    f(next_++);
    const double start = Now();
    double spent = 0;
    do {
      f(next_++);
      ++calls;
      spent = Now() - start;
    } while (spent < kSecondsPerSample);
    return spent * 1e6 / static_cast<double>(calls);
  }

  void AttendOn(int64_t i) {
    AttentionOptions options;
    options.num_threads = threads_;
    const ArrayView query = ContiguousView(query_.data(), DType::kFloat32,
                                           {1, test_.query_heads, test_.queries, test_.width});
    Attend(caches_[i % caches_.size()], query, options, output_.data());
  }

  void Read(int64_t i) {
    const std::vector<Bytes>& bytes = bytes_[i % bytes_.size()];
    ThreadPool::Shared().ForEach(threads_, threads_, [&](uint64_t thread) {
      uint64_t sum = 0;
      const uint64_t end = bytes.size() * (thread + 1) / threads_;
      for (uint64_t k = bytes.size() * thread / threads_; k < end; ++k) {
        sum ^= onnx_light::Read(bytes[k].data, bytes[k].size);
      }
      sink = sum;
    });
  }

  void Multiply() {
    const int64_t pairs =
        test_.queries == 1 ? test_.tokens
                           : test_.queries * test_.tokens - test_.queries * (test_.queries - 1) / 2;
    const int64_t products = test_.query_heads * pairs * test_.width * 2 / threads_;
    ThreadPool::Shared().ForEach(threads_, threads_, [&](uint64_t) { MultiplyAndAdd(products); });
  }

  const Case test_;
  const int threads_;
  std::vector<PagedCache> caches_;
  std::vector<std::vector<Bytes>> bytes_;
  std::vector<float> query_, output_;
  int64_t nbytes_ = 0;
  int64_t next_ = 0;
};

}  // namespace
}  // namespace onnx_light

int main(int argc, char** argv) {
  // Options of Google Benchmark, which other benchmarks are, mean nothing here.
  while (argc > 1 && std::string(argv[1]).starts_with("--")) --argc, ++argv;
  using onnx_light::Bench, onnx_light::Case;
  const auto given = [&](int i) { return argc > i ? std::string(argv[i]) : ""; };
  std::vector<int> threads{1, 2};
  std::vector<int64_t> tokens{512, 4096, 32768};
  std::vector<std::string> shapes{"32/8/128", "32/8/64", "8/8/128", "8/8/64", "9/3/128", "9/3/64"};
  std::vector<std::string> formats{"float32", "float16", "bfloat16", "float8_e4m3fn",
                                   "int8",    "int4",    "q8_0"};
  if (!given(1).empty()) threads = {std::atoi(argv[1])};
  if (given(2) == "prefill")
    tokens = {};
  else if (!given(2).empty())
    tokens = {std::atol(argv[2])};
  if (!given(3).empty()) shapes = {given(3)};
  if (!given(4).empty()) formats = {given(4)};
  const bool mapped = given(5) == "mapped";
  for (const std::string& shape : shapes) {
    Case test{};
    test.mapped = mapped;
    std::sscanf(shape.c_str(), "%ld/%ld/%ld", &test.query_heads, &test.heads, &test.width);
    for (const int count : threads) {
      for (const int64_t length : tokens) {
        for (const std::string& format : formats) {
          test.tokens = length, test.format = format, test.queries = 1;
          Bench(test, count).Run();
        }
      }
      if (!given(2).empty() && given(2) != "prefill") continue;
      test.tokens = 1024, test.queries = 1024, test.format = formats[0];
      Bench(test, count).Run();
    }
  }
}
