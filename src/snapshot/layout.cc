#include "snapshot/layout.h"

#include <utility>

#include "base/math.h"
#include "onnx_light/errors.h"
#include "snapshot/fields.h"

namespace onnx_light::snapshot {
namespace {

// Field numbers of ModelProto, GraphProto, PagedCacheProto and TensorProto.
constexpr uint32_t kGraph = 7, kInitializer = 5, kPagedCacheInitializer = 1002, kCacheName = 2;
constexpr uint32_t kDims = 1, kDataType = 2, kName = 8, kRawData = 9;
constexpr uint64_t kInt64DataType = 7;

constexpr uint64_t kGraphHeaderSize = 1 + kPaddedSize;
constexpr uint64_t kCacheHeaderSize = 2 + kPaddedSize;

// Adds to a position that must stay below kMaxPadded.
bool Advance(uint64_t* position, std::optional<uint64_t> by) {
  if (!by || *position > kMaxPadded || *by > kMaxPadded - *position) return false;
  *position += *by;
  return true;
}

// Fills in all but the header's length, which depends on the blocks behind it.
bool LayOutCache(const CacheEntry& cache, uint64_t offset, CacheLayout* layout) {
  std::string name;
  PutText(name, kCacheName, cache.name);
  uint64_t position = offset + kCacheHeaderSize + name.size();
  PutFiller(name, FillerSize(position));
  position = offset + kCacheHeaderSize + name.size();
  for (const Run& run : cache.runs) {
    const auto form = FormOf(cache, run);
    const auto block = form ? LayOutBlock(*form) : std::nullopt;
    if (!block || run.count <= 0) return false;
    layout->blocks.push_back(*block);
    layout->offsets.push_back(position);
    if (!Advance(&position, CheckedMul(block->size, static_cast<uint64_t>(run.count)))) {
      return false;
    }
  }
  layout->offset = offset;
  layout->end = position;
  PutPaddedHeader(layout->header, kPagedCacheInitializer, position - offset - kCacheHeaderSize);
  layout->header += name;
  return true;
}

}  // namespace

std::optional<BlockForm> FormOf(const CacheEntry& cache, const Run& run) {
  const auto key = ParseForm(run.key_format), value = ParseForm(run.value_format);
  if (!key || !value) return std::nullopt;
  const CacheShape shape{cache.batch, cache.heads, cache.key_width, cache.value_width};
  return BlockForm{shape, run.length, run.capacity, *key, *value};
}

std::optional<CachePolicy> PolicyOf(const CacheEntry& cache) {
  if (cache.policy.empty()) return CachePolicy();
  try {
    return CachePolicy::Parse(cache.policy);
  } catch (const ValueError&) {
    return std::nullopt;
  }
}

std::optional<RecordLayout> LayOutRecord(const Index& index, uint64_t model_size,
                                         uint64_t catalogue_size, uint64_t tokens_size) {
  RecordLayout layout;
  uint64_t position = kHeadSize;
  if (!Advance(&position, model_size)) return std::nullopt;
  layout.graph_offset = position;
  layout.catalogue_offset = position += kGraphHeaderSize;
  if (!Advance(&position, catalogue_size)) return std::nullopt;
  layout.tokens_offset = position;
  if (!Advance(&position, tokens_size)) return std::nullopt;
  for (const CacheEntry& cache : index.caches) {
    CacheLayout& next = layout.caches.emplace_back();
    if (cache.name.size() > kMaxPadded || !LayOutCache(cache, position, &next)) return std::nullopt;
    position = next.end;
  }
  if (position > kMaxPadded) return std::nullopt;
  layout.graph_end = position;
  PutPaddedHeader(layout.graph_header, kGraph, position - layout.catalogue_offset);
  return layout;
}

uint64_t FillerBeforeIndex(const RecordLayout& layout, uint64_t index_size) {
  return FillerSize(layout.graph_end + index_size);
}

std::optional<std::string> TokensHeader(uint64_t offset, int64_t batch, int64_t length) {
  const auto ids = CheckedMul(batch == 0 ? 1 : batch, length);
  const auto size = ids ? CheckedMul(*ids, int64_t{8}) : std::nullopt;
  if (!size || static_cast<uint64_t>(*size) > kMaxPadded) return std::nullopt;
  std::string content;
  if (batch != 0) PutNumber(content, kDims, batch);
  PutNumber(content, kDims, length);
  PutNumber(content, kDataType, kInt64DataType);
  PutText(content, kName, kTokensName);
  constexpr uint64_t kTensorHeaderSize = 1 + kPaddedSize;
  const uint64_t payload = offset + 2 * kTensorHeaderSize + content.size();
  PutFiller(content, FillerSize(payload));
  PutPaddedHeader(content, kRawData, *size);
  std::string header;
  PutPaddedHeader(header, kInitializer, content.size() + *size);
  return header + content;
}

}  // namespace onnx_light::snapshot
