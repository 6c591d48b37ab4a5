// The operator ai.rt::PagedAttention as a function: append, attend, encode.
#pragma once

#include <cstdint>
#include <optional>

#include "onnx_light/array_view.h"
#include "onnx_light/attention.h"
#include "onnx_light/cache.h"
#include "onnx_light/cache_policy.h"
#include "onnx_light/export.h"

namespace onnx_light {

struct PagedAttentionOptions {
  int64_t block_size = 16;            // tokens of a page where the past is empty
  int64_t max_tokens = 4096;          // most tokens that the present holds; 0: no limit
  std::optional<CachePolicy> policy;  // nothing: that of the past
  AttentionOptions attention;
};

// The past and then the new tokens. The query sees them as they are stored in open pages: pages
// that became full are encoded afterwards, in what is returned. The result of the attention,
// [batch, query heads, query tokens, value width] in C order and in the query's dtype, goes to
// `output`; rows that see no token are 0, all of them where the present is empty.
//
// Errors are those of PagedCache::Append() and Attend(), and ValueErrors `runtime.max_tokens` and
// `cache.page_size`. The past stays what it was.
ONNX_LIGHT_EXPORT PagedCache PagedAttention(const PagedCache& past, const ArrayView& query,
                                            const ArrayView& key, const ArrayView& value,
                                            const PagedAttentionOptions& options, void* output);

}  // namespace onnx_light
