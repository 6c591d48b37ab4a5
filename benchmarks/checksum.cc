// The checksum of snapshots, beside reading the same bytes with memcpy.
#include "base/checksum.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

namespace onnx_light {
namespace {

void SetSpeed(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}

void ChecksumOnce(benchmark::State& state) {
  const std::vector<std::byte> bytes(state.range(0), std::byte{1});
  for (auto _ : state) benchmark::DoNotOptimize(Checksum(bytes));
  SetSpeed(state);
}
BENCHMARK(ChecksumOnce)->ArgName("bytes")->Arg(64)->Arg(64 << 10)->Arg(256 << 20);

void ChecksumInPieces(benchmark::State& state) {
  const std::vector<std::byte> bytes(state.range(0), std::byte{1});
  for (auto _ : state) {
    StreamingChecksum checksum;
    for (size_t at = 0; at < bytes.size(); at += 4096) {
      checksum.Update(std::span(bytes).subspan(at, std::min<size_t>(4096, bytes.size() - at)));
    }
    benchmark::DoNotOptimize(checksum.Digest());
  }
  SetSpeed(state);
}
BENCHMARK(ChecksumInPieces)->ArgName("bytes")->Arg(64 << 10)->Arg(256 << 20);

void Copy(benchmark::State& state) {
  const std::vector<std::byte> bytes(state.range(0), std::byte{1});
  std::vector<std::byte> target(state.range(0));
  for (auto _ : state) {
    std::memcpy(target.data(), bytes.data(), bytes.size());
    benchmark::ClobberMemory();
  }
  SetSpeed(state);
}
BENCHMARK(Copy)->ArgName("bytes")->Arg(64 << 10)->Arg(256 << 20);

}  // namespace
}  // namespace onnx_light
