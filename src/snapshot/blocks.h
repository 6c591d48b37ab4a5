// Pages as they lie in a file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "onnx_light/bytes.h"
#include "onnx_light/cache.h"
#include "snapshot/fold.h"
#include "snapshot/record.h"

namespace onnx_light::snapshot {

// Consecutive blocks of one run.
struct BlockRange {
  const Record* record = nullptr;
  size_t cache = 0;
  size_t run = 0;
  int64_t first = 0;  // in the run
  int64_t count = 0;
  int64_t first_block = 0;  // the first one's index in the record's cache

  const CacheEntry& entry() const { return record->index.caches[cache]; }
  const Run& run_entry() const { return entry().runs[run]; }
  const BlockLayout& layout() const { return record->layout.caches[cache].blocks[run]; }
  uint64_t offset(int64_t i) const {  // in the record
    return run_entry().offset + (first + i) * run_entry().stride;
  }
  std::span<const std::byte> bytes(int64_t i) const {
    return record->bytes.subspan(offset(i), run_entry().stride);
  }
};

// Cuts a range into parts of some MiB, one for a thread at a time.
template <typename F>
void ForEachPart(const BlockRange& range, F f) {
  constexpr int64_t kPartSize = 4 << 20;
  const int64_t step = std::max<int64_t>(1, kPartSize / range.run_entry().stride);
  for (int64_t i = 0; i < range.count; i += step) {
    BlockRange part = range;
    part.first += i;
    part.first_block += i;
    part.count = std::min(step, range.count - i);
    f(part);
  }
}

// What is wrong with a block, or empty. `text` is that of its run.
std::string DamageOf(const BlockRange& range, int64_t i, BlockText& text);

// The pages of a cache, verified. Throws Failure for the first one that is damaged.
PagedCache ReadPages(const SharedBytes& source, const std::vector<Record>& records,
                     const Folded& folded, size_t cache);

}  // namespace onnx_light::snapshot
