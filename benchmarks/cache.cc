// The cache as a value: what an append, a fork and a look at a page cost, by the cache's length.
#include "onnx_light/cache.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

namespace onnx_light {
namespace {

constexpr int64_t kHeads = 8, kWidth = 64, kPageSize = 64;

struct Rows {
  explicit Rows(int64_t tokens)
      : numbers(kHeads * tokens * kWidth),
        view(ContiguousView(numbers.data(), DType::kFloat16, {1, kHeads, tokens, kWidth})) {}

  std::vector<uint16_t> numbers;
  ArrayView view;
};

// Grown in pieces: pages are all that a length costs.
PagedCache CacheOf(int64_t tokens) {
  const Rows piece(std::min<int64_t>(tokens, 1024));
  PagedCache cache(kPageSize);
  while (cache.length() < tokens) cache = cache.Append(piece.view, piece.view);
  return cache;
}

void Lengths(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("tokens")->Arg(1 << 10)->Arg(1 << 13)->Arg(1 << 16)->Arg(1 << 18);
}

// Token by token, as decoding does; now and then a page is full and the next one begins.
void AppendToken(benchmark::State& state) {
  const PagedCache past = CacheOf(state.range(0));
  const Rows token(1);
  PagedCache present = past;
  for (auto _ : state) {
    if (present.length() - past.length() == 4096) present = past;
    present = present.Append(token.view, token.view);
  }
}
BENCHMARK(AppendToken)->Apply(Lengths);

// The floor: the bytes of the token alone, into a page.
void CopyToken(benchmark::State& state) {
  const Rows token(1);
  Rows page(kPageSize);
  for (auto _ : state) {
    for (int side = 0; side < 2; ++side) {
      for (int64_t head = 0; head < kHeads; ++head) {
        std::copy_n(token.numbers.data() + head * kWidth, kWidth,
                    page.numbers.data() + head * kPageSize * kWidth);
      }
      benchmark::ClobberMemory();
    }
  }
}
BENCHMARK(CopyToken);

// A second continuation of a value, which copies its open page.
void Fork(benchmark::State& state) {
  const Rows token(1);
  const PagedCache past = CacheOf(state.range(0)).Append(token.view, token.view);
  const PagedCache first = past.Append(token.view, token.view);
  for (auto _ : state) benchmark::DoNotOptimize(past.Append(token.view, token.view));
}
BENCHMARK(Fork)->Apply(Lengths);

void Truncate(benchmark::State& state) {
  const PagedCache cache = CacheOf(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(cache.Truncate(cache.end() / 2 + 1));
}
BENCHMARK(Truncate)->Apply(Lengths);

void FindPage(benchmark::State& state) {
  const PagedCache cache = CacheOf(state.range(0));
  std::minstd_rand random(0);
  for (auto _ : state) {
    const int64_t position = static_cast<int64_t>(random()) % cache.end();
    benchmark::DoNotOptimize(cache.pages()[cache.FindPage(position)].page.get());
  }
}
BENCHMARK(FindPage)->Apply(Lengths);

void WalkPages(benchmark::State& state) {
  const PagedCache cache = CacheOf(state.range(0));
  for (auto _ : state) {
    for (const PlacedPage& placed : cache.pages()) benchmark::DoNotOptimize(placed.page.get());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * cache.pages().size());
}
BENCHMARK(WalkPages)->Apply(Lengths);

}  // namespace
}  // namespace onnx_light
