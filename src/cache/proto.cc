#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "cache/payload.h"
#include "check/block.h"
#include "check/pages.h"
#include "onnx_light/cache_proto.h"
#include "onnx_light/errors.h"
#include "quant/encoded_proto.h"
#include "quant/encoded_rows.h"

namespace onnx_light {
namespace {

void WriteTensor(const PlacedPage& placed, Side side, int64_t capacity, Arena& arena,
                 TensorProto& tensor) {
  const CacheShape& shape = placed.page->shape();
  for (int64_t dim : {shape.batch, shape.heads, capacity, shape.width(side)}) {
    tensor.add_dims(arena, dim);
  }
  const auto& payload = std::get<DensePayload>(placed.page->payload(side));
  tensor.set_data_type(arena, TensorDataType(payload.dtype));
  SharedBytes bytes = DenseBytes(placed, side, capacity);
  if (bytes.size < String::kPayloadSize) {
    tensor.set_raw_data(arena, bytes.view());
  } else {
    tensor.set_raw_data(arena, std::move(bytes));
  }
}

void WriteBlock(const PlacedPage& placed, Arena& arena, PagedCacheBlockProto& block) {
  block.set_start(arena, placed.start);
  block.set_length(arena, placed.length);
  const auto* key = std::get_if<EncodedPayload>(&placed.page->key());
  const auto* value = std::get_if<EncodedPayload>(&placed.page->value());
  const int64_t capacity = WrittenCapacity(placed);
  if (key != nullptr) {
    WriteEncodedValue(WithoutRowsFrom(*key, placed.length), arena,
                      *block.mutable_encoded_key(arena));
  } else {
    WriteTensor(placed, Side::kKey, capacity, arena, *block.mutable_key(arena));
  }
  if (value != nullptr) {
    WriteEncodedValue(WithoutRowsFrom(*value, placed.length), arena,
                      *block.mutable_encoded_value(arena));
  } else {
    WriteTensor(placed, Side::kValue, capacity, arena, *block.mutable_value(arena));
  }
}

}  // namespace

PagedCache CacheFromProto(const PagedCacheProto& proto, int64_t page_size, const std::string& path,
                          const CachePolicy& policy, const ModelProto* model) {
  std::vector<PlacedPage> pages;
  pages.reserve(proto.blocks().size());
  for (const PagedCacheBlockProto* block : proto.blocks()) {
    const std::string where = PagePath(path, static_cast<int64_t>(pages.size()));
    Block read = ReadBlock(*block, {model}, where);
    const PageExtent& extent = read.extent;
    pages.push_back({extent.start, extent.length,
                     Page::Borrow(extent.shape, extent.capacity, std::move(read.key),
                                  std::move(read.value), where)});
  }
  return PagedCache::FromPages(pages, page_size, path, policy);
}

void CacheToProto(const PagedCache& cache, Arena& arena, PagedCacheProto& proto) {
  proto.clear_blocks(arena);
  const PageRange pages = cache.pages();
  for (const PlacedPage& placed : pages) {
    WriteBlock(placed, arena, *proto.add_blocks(arena));
  }
}

}  // namespace onnx_light
