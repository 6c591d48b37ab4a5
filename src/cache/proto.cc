#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "cache/payload.h"
#include "cache/sizes.h"
#include "onnx/tensor_data.h"
#include "onnx_light/cache_proto.h"
#include "onnx_light/errors.h"
#include "quant/encoded_proto.h"
#include "quant/encoded_rows.h"

namespace onnx_light {
namespace {

// The keys or the values of a message's block.
struct SidePayload {
  std::array<int64_t, 4> dims;
  PagePayload payload;
};

[[noreturn]] void ThrowMissing(const std::string& path, const std::string& what) {
  throw ValueError("cache.missing", path, "has no " + what);
}

DType ReadDataType(const TensorProto& tensor, const std::string& path) {
  if (!tensor.has_data_type()) ThrowMissing(path, "data_type");
  const auto dtype = DTypeOfTensor(tensor.data_type());
  if (dtype) return *dtype;
  throw ValueError("cache.data_type", path,
                   "data_type " + std::to_string(tensor.data_type()) +
                       " is none of FLOAT, FLOAT16, BFLOAT16, FLOAT8E4M3FN and FLOAT8E5M2");
}

std::array<int64_t, 4> ReadDims(const TensorProto& tensor, const std::string& path) {
  const std::span<const int64_t> dims = tensor.dims();
  if (dims.size() == 4) return {dims[0], dims[1], dims[2], dims[3]};
  throw ValueError(
      "cache.shape", path,
      std::to_string(dims.size()) + " dims, must be the 4 of [batch, heads, capacity, width]");
}

SidePayload ReadTensor(const TensorProto& tensor, const std::string& path) {
  if (tensor.has_segment()) {
    throw ValueError("cache.unsupported", path, "a tensor in pieces (segment) is not supported");
  }
  const DType dtype = ReadDataType(tensor, path);
  return {ReadDims(tensor, path), DensePayload{dtype, ReadTensorData(tensor, dtype, path)}};
}

// One side of a block: a dense tensor or an encoded value.
SidePayload ReadSide(const TensorProto* dense, const EncodedValueProto* encoded,
                     const ModelProto* model, const std::string& path, const std::string& name) {
  if (dense != nullptr) return ReadTensor(*dense, path + "." + name);
  if (encoded == nullptr) ThrowMissing(path, name);
  EncodedPayload payload = ReadEncodedValue(*encoded, model, path + ".encoded_" + name);
  return {payload.dims, std::move(payload)};
}

PlacedPage ReadBlock(const PagedCacheBlockProto& block, const ModelProto* model,
                     const std::string& path) {
  if (!block.has_start()) ThrowMissing(path, "start");
  if (!block.has_length()) ThrowMissing(path, "length");
  SidePayload key =
      ReadSide(block.has_key() ? &block.key() : nullptr,
               block.has_encoded_key() ? &block.encoded_key() : nullptr, model, path, "key");
  SidePayload value =
      ReadSide(block.has_value() ? &block.value() : nullptr,
               block.has_encoded_value() ? &block.encoded_value() : nullptr, model, path, "value");
  if (!std::equal(key.dims.begin(), key.dims.begin() + 3, value.dims.begin())) {
    throw ValueError("cache.shape", path + ".value",
                     "shape " + ShapeText(value.dims) + " does not go with key shape " +
                         ShapeText(key.dims) + ": batch, heads and capacity must be equal");
  }
  const CacheShape shape{key.dims[0], key.dims[1], key.dims[3], value.dims[3]};
  return {block.start(), block.length(),
          Page::Borrow(shape, key.dims[2], std::move(key.payload), std::move(value.payload), path)};
}

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
    pages.push_back(ReadBlock(*block, model, PagePath(path, static_cast<int64_t>(pages.size()))));
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
