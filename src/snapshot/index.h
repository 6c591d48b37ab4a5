// The index of a record: what lies where, and the checksums of it all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onnx_light::snapshot {

// Offsets count from the record's first byte. All numbers are 0 or more and fit 63 bits.

// A part of the record that has a checksum of its own, other than a block.
struct Extent {
  std::string name;
  int64_t offset = 0;
  int64_t length = 0;
  uint64_t checksum = 0;
};

// Blocks that differ in their starts and contents only, one right behind the other.
struct Run {
  int64_t start = 0;     // of the first block
  int64_t length = 0;    // of every block, in tokens
  int64_t capacity = 0;  // of every block, in tokens
  std::string key_format;
  std::string value_format;
  int64_t offset = 0;  // of the first block
  int64_t stride = 0;  // bytes of a block
  int64_t count = 0;
};

struct CacheEntry {
  std::string name;
  // All zero if the record has no block of this cache.
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t key_width = 0;
  int64_t value_width = 0;
  int64_t start = 0;  // the first position that the cache keeps, in this record or an earlier one
  int64_t page_size = 0;
  std::string policy;
  std::vector<Run> runs;
  std::vector<uint64_t> checksums;  // of the blocks in order
};

struct Index {
  std::vector<std::string> required_features;
  std::vector<Extent> extents;
  std::vector<CacheEntry> caches;

  // The extent of that name, or null.
  const Extent* Find(std::string_view name) const;
};

// The field with its tag.
std::string EncodeIndex(const Index& index);

// Reads what EncodeIndex wrote. Fields that it does not know are skipped: what must not be skipped
// is a required feature. Throws Failure `snapshot.corrupt`; `offset` and `place` are those of
// `bytes`.
Index DecodeIndex(std::span<const std::byte> bytes, uint64_t offset, const std::string& place);

}  // namespace onnx_light::snapshot
