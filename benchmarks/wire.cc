// Reading and writing protobuf's wire format.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "onnx_light/messages.h"
#include "onnx_light/serialization.h"

namespace onnx_light {
namespace {

template <typename M>
std::string Write(const Owned<M>& message) {
  const Serializer serializer(M::kInfo, *message);
  std::string bytes(serializer.size(), '\0');
  serializer.WriteTo(reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

template <typename M>
void Read(Owned<M>& message, const std::string& bytes) {
  Parse(message.arena(), M::kInfo, *message, {std::as_bytes(std::span(bytes)), {}});
}

// A million numbers of at most `bits` bits.
void FillPacked(Owned<TensorProto>& tensor, int64_t bits) {
  std::mt19937_64 random(0);
  for (int i = 0; i < 1'000'000; ++i) {
    tensor->add_int64_data(tensor.arena(), static_cast<int64_t>(random() >> (64 - bits)));
  }
}

void FillNodes(Owned<GraphProto>& graph, int64_t count) {
  Arena& arena = graph.arena();
  for (int64_t i = 0; i < count; ++i) {
    NodeProto& node = *graph->add_node(arena);
    node.set_op_type(arena, "Conv");
    node.set_name(arena, "node_" + std::to_string(i));
    node.add_input(arena, "x" + std::to_string(i));
    node.add_input(arena, "w" + std::to_string(i));
    node.add_output(arena, "x" + std::to_string(i + 1));
    AttributeProto& attribute = *node.add_attribute(arena);
    attribute.set_name(arena, "kernel_shape");
    attribute.set_type(arena, AttributeProto::INTS);
    for (int dim = 0; dim < 2; ++dim) attribute.add_ints(arena, 3);
  }
}

template <typename M>
void MeasureRead(benchmark::State& state, const Owned<M>& filled, int64_t items) {
  const std::string bytes = Write(filled);
  for (auto _ : state) {
    Owned<M> message;
    Read(message, bytes);
    benchmark::DoNotOptimize(&*message);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes.size()));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * items);
}

template <typename M>
void MeasureWrite(benchmark::State& state, const Owned<M>& filled, int64_t items) {
  std::string bytes = Write(filled);
  for (auto _ : state) {
    const Serializer serializer(M::kInfo, *filled);
    serializer.WriteTo(reinterpret_cast<std::byte*>(bytes.data()));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes.size()));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * items);
}

void ParsePacked(benchmark::State& state) {
  Owned<TensorProto> tensor;
  FillPacked(tensor, state.range(0));
  MeasureRead(state, tensor, 1'000'000);
}
BENCHMARK(ParsePacked)->ArgName("bits")->Arg(7)->Arg(14)->Arg(28)->Arg(63);

void WritePacked(benchmark::State& state) {
  Owned<TensorProto> tensor;
  FillPacked(tensor, state.range(0));
  MeasureWrite(state, tensor, 1'000'000);
}
BENCHMARK(WritePacked)->ArgName("bits")->Arg(7)->Arg(28)->Arg(63);

void ParseNodes(benchmark::State& state) {
  Owned<GraphProto> graph;
  FillNodes(graph, state.range(0));
  MeasureRead(state, graph, state.range(0));
}
BENCHMARK(ParseNodes)->ArgName("nodes")->Arg(1000)->Arg(100'000)->Unit(benchmark::kMicrosecond);

void WriteNodes(benchmark::State& state) {
  Owned<GraphProto> graph;
  FillNodes(graph, state.range(0));
  MeasureWrite(state, graph, state.range(0));
}
BENCHMARK(WriteNodes)->ArgName("nodes")->Arg(1000)->Arg(100'000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace onnx_light
