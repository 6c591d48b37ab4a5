// Attention of queries on a cache, straight on its pages.
//
//   Attend(cache, query, {}, output);        // query [batch, query heads, tokens, key width]
//
// Query head h looks at KV head h / (query heads / KV heads). Query i of S has the position
// end() - S + i: the last query sits on the last token. A score is scale * (query, key); after the
// softcap c, c * tanh(score / c); then the mask is added, or hides where it is false. A query sees
// the tokens that the cache holds from its position - left_window_size on (all if that is
// negative), up to its position (to the end unless causal). Its result is the sum of their values,
// weighted by the softmax of their scores; exactly 0 where it sees none.
//
// Rows that no query sees are never touched. Sums are float, and the error is within the bound that
// docs/attention.md derives. Weights below 2^-64 of the largest are 0. The bits of a result do not
// depend on the number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "onnx_light/array_view.h"
#include "onnx_light/cache.h"
#include "onnx_light/export.h"

namespace onnx_light {

// Calls f(0) ... f(count - 1), each once, in any order and on any threads, and returns when all are
// done.
using ParallelLoop = std::function<void(uint64_t count, const std::function<void(uint64_t)>& f)>;

// A mask to be broadcast to [batch, query heads, query tokens, length of the cache]: each dim is
// that or 1. Strides are in bytes.
struct MaskView {
  const std::byte* data = nullptr;
  std::optional<DType> dtype;  // of what is added to scores; nothing: bools, where false hides
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> strides{};
};

struct AttentionOptions {
  std::optional<float> scale;  // nothing: 1 / sqrt(key width)
  bool is_causal = true;
  int64_t left_window_size = -1;  // L >= 0: the query's own position and L before it
  float softcap = 0;              // 0: none
  std::optional<MaskView> mask;
  // For each query head a score that takes part in the softmax and has no value; empty: none.
  std::span<const float> sinks;
  int num_threads = -1;  // 0 and 1: the calling one; below 0: one for each core
  // What runs the loops instead of threads of this library.
  const ParallelLoop* parallel_for = nullptr;
};

// The dims of what Attend() writes. ValueError `attention.shape` at "query" unless the query is
// [batch, a multiple of the KV heads, tokens, key width].
ONNX_LIGHT_EXPORT std::array<int64_t, 4> AttendShape(const PagedCache& cache,
                                                     const ArrayView& query);

// Writes the result to `output`, [batch, query heads, query tokens, value width] in C order and in
// the query's dtype.
//
// ValueError with the argument's name as the path: `attention.shape` where query, mask or sinks do
// not fit the cache, or the cache is empty, which has no shape; `attention.dtype` unless the query
// is FLOAT, FLOAT16 or BFLOAT16; `attention.option` for a scale or softcap that is not finite, a
// negative softcap, and a left_window_size below -1; `quant.unknown_layout` at "key" or "value" for
// pages whose values are not known. Nothing is written then.
ONNX_LIGHT_EXPORT void Attend(const PagedCache& cache, const ArrayView& query,
                              const AttentionOptions& options, void* output);

}  // namespace onnx_light
