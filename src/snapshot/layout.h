// Where everything in a record lies. It follows from the index and the sizes of the extents: the
// writer fills the offsets of the index in from here, the reader compares them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "onnx_light/cache_policy.h"
#include "snapshot/block.h"
#include "snapshot/index.h"

namespace onnx_light::snapshot {

// The form of a run's blocks; nothing where a format is unknown.
std::optional<BlockForm> FormOf(const CacheEntry& cache, const Run& run);

// The policy of a cache; nothing where its text is none.
std::optional<CachePolicy> PolicyOf(const CacheEntry& cache);

struct CacheLayout {
  uint64_t offset = 0;              // of the cache's field
  std::string header;               // its tag, length, name and filler
  std::vector<BlockLayout> blocks;  // of each run
  std::vector<uint64_t> offsets;    // of the first block of each run
  uint64_t end = 0;
};

struct RecordLayout {
  uint64_t graph_offset = 0;
  std::string graph_header;  // its tag and length
  uint64_t catalogue_offset = 0;
  uint64_t tokens_offset = 0;
  std::vector<CacheLayout> caches;
  uint64_t graph_end = 0;
};

// Of the index it uses the caches without their checksums, offsets and strides. Nothing where a
// format is unknown or something does not fit.
std::optional<RecordLayout> LayOutRecord(const Index& index, uint64_t model_size,
                                         uint64_t catalogue_size, uint64_t tokens_size);

// The bytes between the graph and the index. REQUIRES: both are below kMaxPadded.
uint64_t FillerBeforeIndex(const RecordLayout& layout, uint64_t index_size);

// Everything of the initializer onnx_light.tokens but its payload, for ids [batch, length], or
// [length] where batch is 0, at `offset` of the record. Nothing where it does not fit.
std::optional<std::string> TokensHeader(uint64_t offset, int64_t batch, int64_t length);

}  // namespace onnx_light::snapshot
