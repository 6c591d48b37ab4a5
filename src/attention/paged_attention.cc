#include "onnx_light/paged_attention.h"

#include <cstring>
#include <string>

#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

// The past, with what the operator says of pages to come.
PagedCache Prepared(const PagedCache& past, const ArrayView& key, const ArrayView& value,
                    const PagedAttentionOptions& options) {
  const CachePolicy& policy = options.policy ? *options.policy : past.policy();
  if (!past.empty()) return past.WithPolicy(policy);
  return PagedCache::FromArrays(key.Tokens(0, 0), value.Tokens(0, 0), options.block_size,
                                past.end(), policy);
}

void CheckLimit(const PagedCache& past, const ArrayView& key, int64_t limit) {
  if (limit == 0 || key.tokens() <= limit - past.length()) return;
  throw ValueError("runtime.max_tokens", "K",
                   std::to_string(key.tokens()) + " tokens after " + std::to_string(past.length()) +
                       " exceed the limit of " + std::to_string(limit) +
                       ", the attribute max_tokens");
}

}  // namespace

PagedCache PagedAttention(const PagedCache& past, const ArrayView& query, const ArrayView& key,
                          const ArrayView& value, const PagedAttentionOptions& options,
                          void* output) {
  CheckLimit(past, key, options.max_tokens);
  return Prepared(past, key, value, options).Append(key, value, [&](const PagedCache& stored) {
    if (!stored.empty()) return Attend(stored, query, options.attention, output);
    const int64_t rows = query.batch() * query.heads() * query.tokens();
    std::memset(output, 0, rows * value.width() * ElementSize(query.dtype));
  });
}

}  // namespace onnx_light
