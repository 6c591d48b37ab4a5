// One call of attention: what is to be computed, checked and in numbers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/kernels.h"
#include "onnx_light/attention.h"

namespace onnx_light {

struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
};

// A value, with the cache and the arrays of the call behind it.
struct AttentionProblem {
  // Checks everything that Attend() says.
  AttentionProblem(const PagedCache& cache, const ArrayView& query,
                   const AttentionOptions& options);

  const PagedCache& cache;
  const ArrayView& query;
  const AttentionOptions& options;
  float scale;
  int64_t group;       // query heads of a KV head
  int64_t key_stride;  // floats of a widened row
  int64_t value_stride;

  // The position of a query.
  int64_t Position(int64_t query_token) const { return cache.end() - query.tokens() + query_token; }

  // The positions that a query sees, if masks hide none.
  TokenRange Visible(int64_t query_token) const {
    const int64_t position = Position(query_token), left = options.left_window_size;
    TokenRange range{cache.start(), cache.end()};
    if (options.is_causal) range.end = std::max(range.begin, position + 1);
    // Compared before it is subtracted, so nothing overflows.
    if (left >= 0 && position > cache.start() && left < position - cache.start()) {
      range.begin = std::min(position - left, range.end);
    }
    return range;
  }
};

}  // namespace onnx_light
