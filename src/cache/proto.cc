#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "cache/payload.h"
#include "cache/sizes.h"
#include "onnx_light/cache_proto.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

// A dense payload of a message and what its dims say.
struct DenseTensor {
  std::array<int64_t, 4> dims;
  DensePayload payload;
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

// Bit patterns, one in each number.
template <typename T>
SharedBytes NarrowPatterns(std::span<const int32_t> numbers, const std::string& path) {
  BufferRef buffer = BufferRef::Allocate(numbers.size() * sizeof(T));
  T* target = reinterpret_cast<T*>(buffer.mutable_data());
  for (size_t i = 0; i < numbers.size(); ++i) {
    target[i] = static_cast<T>(numbers[i]);
    if (static_cast<int32_t>(target[i]) == numbers[i]) continue;
    throw ValueError("cache.data", path + ".int32_data[" + std::to_string(i) + "]",
                     std::to_string(numbers[i]) + " is no bit pattern of " +
                         std::to_string(8 * sizeof(T)) + " bits");
  }
  return SharedBytes(std::move(buffer));
}

SharedBytes ReadTypedData(const TensorProto& tensor, DType dtype, const std::string& path) {
  if (dtype == DType::kFloat32) {
    const std::span<const float> numbers = tensor.float_data();
    if (numbers.empty()) ThrowMissing(path, "data: neither raw_data nor float_data");
    return CopyBytes(numbers.data(), numbers.size_bytes());
  }
  const std::span<const int32_t> numbers = tensor.int32_data();
  if (numbers.empty()) ThrowMissing(path, "data: neither raw_data nor int32_data");
  return ElementSize(dtype) == 2 ? NarrowPatterns<uint16_t>(numbers, path)
                                 : NarrowPatterns<uint8_t>(numbers, path);
}

SharedBytes ReadData(const TensorProto& tensor, DType dtype, const std::string& path) {
  if (tensor.data_location() == TensorProto::EXTERNAL) {
    throw ValueError("cache.external", path,
                     "the data lies in another file and must be loaded into the message first");
  }
  if (!tensor.has_raw_data()) return ReadTypedData(tensor, dtype, path);
  if (tensor.has_float_data() || tensor.has_int32_data()) {
    throw ValueError("cache.data", path, "raw_data and typed data together, must be one of them");
  }
  const std::string_view raw = tensor.raw_data();
  return raw.size() >= String::kPayloadSize ? tensor.raw_data_.Shared()
                                            : CopyBytes(raw.data(), raw.size());
}

DenseTensor ReadTensor(const TensorProto& tensor, const std::string& path) {
  if (tensor.has_segment()) {
    throw ValueError("cache.unsupported", path, "a tensor in pieces (segment) is not supported");
  }
  const DType dtype = ReadDataType(tensor, path);
  return {ReadDims(tensor, path), {dtype, ReadData(tensor, dtype, path)}};
}

DenseTensor ReadKey(const PagedCacheBlockProto& block, const std::string& path) {
  if (block.has_key()) return ReadTensor(block.key(), path + ".key");
  if (!block.has_encoded_key()) ThrowMissing(path, "key");
  throw ValueError("cache.unsupported", path + ".encoded_key",
                   "encoded payloads are not supported yet, only dense ones");
}

DenseTensor ReadValue(const PagedCacheBlockProto& block, const std::string& path) {
  if (block.has_value()) return ReadTensor(block.value(), path + ".value");
  if (!block.has_encoded_value()) ThrowMissing(path, "value");
  throw ValueError("cache.unsupported", path + ".encoded_value",
                   "encoded payloads are not supported yet, only dense ones");
}

PlacedPage ReadBlock(const PagedCacheBlockProto& block, const std::string& path) {
  if (!block.has_start()) ThrowMissing(path, "start");
  if (!block.has_length()) ThrowMissing(path, "length");
  DenseTensor key = ReadKey(block, path), value = ReadValue(block, path);
  if (!std::equal(key.dims.begin(), key.dims.begin() + 3, value.dims.begin())) {
    throw ValueError("cache.shape", path + ".value",
                     "shape " + ShapeText(value.dims) + " does not go with key shape " +
                         ShapeText(key.dims) + ": batch, heads and capacity must be equal");
  }
  const CacheShape shape{key.dims[0], key.dims[1], key.dims[3], value.dims[3]};
  return {block.start(), block.length(),
          Page::Borrow(shape, key.dims[2], std::move(key.payload), std::move(value.payload), path)};
}

// The bytes of the visible rows alone.
SharedBytes VisibleBytes(const PlacedPage& placed, Side side) {
  const Page& page = *placed.page;
  const auto& payload = std::get<DensePayload>(page.payload(side));
  if (placed.length == page.capacity()) return payload.bytes;
  BufferRef buffer =
      BufferRef::Allocate(DenseSize(page.shape(), side, placed.length, payload.dtype, Name(side)));
  CopyTokens(DenseRows(placed, side), buffer.mutable_data(), placed.length);
  return SharedBytes(std::move(buffer));
}

void WriteTensor(const PlacedPage& placed, Side side, Arena& arena, TensorProto& tensor) {
  const CacheShape& shape = placed.page->shape();
  for (int64_t dim : {shape.batch, shape.heads, placed.length, shape.width(side)}) {
    tensor.add_dims(arena, dim);
  }
  const auto& payload = std::get<DensePayload>(placed.page->payload(side));
  tensor.set_data_type(arena, TensorDataType(payload.dtype));
  SharedBytes bytes = VisibleBytes(placed, side);
  if (bytes.size < String::kPayloadSize) {
    tensor.set_raw_data(arena, bytes.view());
  } else {
    tensor.set_raw_data(arena, std::move(bytes));
  }
}

}  // namespace

PagedCache CacheFromProto(const PagedCacheProto& proto, int64_t page_size, const std::string& path,
                          const CachePolicy& policy) {
  std::vector<PlacedPage> pages;
  pages.reserve(proto.blocks().size());
  for (const PagedCacheBlockProto* block : proto.blocks()) {
    pages.push_back(ReadBlock(*block, PagePath(path, static_cast<int64_t>(pages.size()))));
  }
  return PagedCache::FromPages(pages, page_size, path, policy);
}

void CacheToProto(const PagedCache& cache, Arena& arena, PagedCacheProto& proto) {
  proto.clear_blocks(arena);
  const PageRange pages = cache.pages();
  for (const PlacedPage& placed : pages) {
    PagedCacheBlockProto* block = proto.add_blocks(arena);
    block->set_start(arena, placed.start);
    block->set_length(arena, placed.length);
    WriteTensor(placed, Side::kKey, arena, *block->mutable_key(arena));
    WriteTensor(placed, Side::kValue, arena, *block->mutable_value(arena));
  }
}

}  // namespace onnx_light
