// Caches from messages and back.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_light/cache.h"
#include "onnx_light/export.h"
#include "onnx_light/messages.h"

namespace onnx_light {

// The cache that `proto` describes. Raw data of at least String::kPayloadSize bytes is shared with
// the message, everything else copied; rows past a block's length are never looked at. New pages
// hold `page_size` tokens, stored as `policy` says. A message without blocks is the empty cache at
// position 0. O(blocks) and the bytes that are copied.
//
// Throws ValueError with a path like "<path>.blocks[1].key": what PagedCache's Validate() and
// Page::Borrow() find, and `cache.missing` where start, length, a payload, its data type or its
// data are absent; `cache.data_type` for a type that is none of DType's; `cache.data` for typed
// data that does not fit the type, or comes together with raw data; `cache.external` for data that
// still lies in another file; `cache.unsupported` for tensors in pieces; of encoded payloads also
// `cache.logical_type`, `cache.storage_type`, `cache.scale`, `cache.zero_point`, `cache.axis`,
// `cache.block_size`, `cache.layout`, and `cache.reference` for what `model` does not resolve.
// Encodings that nobody here knows are kept and written back; only their values cannot be had.
ONNX_LIGHT_EXPORT PagedCache CacheFromProto(const PagedCacheProto& proto,
                                            int64_t page_size = PagedCache::kDefaultPageSize,
                                            const std::string& path = "",
                                            const CachePolicy& policy = {},
                                            const ModelProto* model = nullptr);

// Replaces the blocks of `proto`, which lives in `arena`, by the cache's pages, as raw data.
// Payloads of full pages are shared, all others are copied: dense ones without the rows past their
// length, encoded ones with zeros there. The position of an empty cache is not kept. O(pages) and
// the bytes that are copied.
ONNX_LIGHT_EXPORT void CacheToProto(const PagedCache& cache, Arena& arena, PagedCacheProto& proto);

}  // namespace onnx_light
