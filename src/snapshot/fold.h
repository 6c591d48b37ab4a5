// What a file of several records means: later records continue earlier ones or supersede them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "snapshot/record.h"

namespace onnx_light::snapshot {

// Pages of one run of one record that still count.
struct PageSpan {
  size_t record = 0;
  size_t cache = 0;  // in that record
  size_t run = 0;
  int64_t first_block = 0;  // in the record's cache: the index of its checksum
  int64_t start = 0;
  int64_t length = 0;  // of every page but the last
  int64_t count = 0;
  int64_t last_length = 0;  // of the last page, which may be cut
  uint64_t offset = 0;      // of the first block in the file
  uint64_t stride = 0;

  int64_t end() const { return start + (count - 1) * length + last_length; }
};

struct FoldedCache {
  std::string name;
  CacheShape shape;
  int64_t page_size = 0;
  CachePolicy policy;
  std::vector<PageSpan> spans;  // in order, each starts where the one before ends

  bool empty() const { return spans.empty(); }
  int64_t start() const { return spans.front().start; }
  int64_t pages() const {
    int64_t count = 0;
    for (const PageSpan& span : spans) count += span.count;
    return count;
  }
};

// The ids of [first, last), which lie in one record's extent.
struct TokenSpan {
  size_t record = 0;
  int64_t first = 0;
  int64_t last = 0;
};

struct Folded {
  std::vector<FoldedCache> caches;
  int64_t end = 0;
  // From 0 to the end; nothing if some record has none.
  std::optional<std::vector<TokenSpan>> tokens;
  KeyValues identity;
  KeyValues metadata;
};

// Throws Failure `snapshot.corrupt` where the records do not go together.
Folded Fold(const std::vector<Record>& records);

}  // namespace onnx_light::snapshot
