#include "check/block.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "onnx/tensor_data.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

// The keys or the values of a block.
struct SidePayload {
  std::array<int64_t, 4> dims;
  PagePayload payload;
  std::optional<uint64_t> dense_size;  // in bytes; nothing if it is encoded, or not known
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

SidePayload ReadTensor(const TensorProto& tensor, const References& references,
                       const std::string& path) {
  if (tensor.has_segment()) {
    throw ValueError("cache.unsupported", path, "a tensor in pieces (segment) is not supported");
  }
  const DType dtype = ReadDataType(tensor, path);
  const std::array<int64_t, 4> dims = ReadDims(tensor, path);
  PayloadData data = ReadTensorData(tensor, dtype, path, references.other_files);
  return {dims, DensePayload{dtype, std::move(data.bytes)}, data.size};
}

// A dense tensor or an encoded value.
SidePayload ReadSide(const TensorProto* dense, const EncodedValueProto* encoded,
                     const References& references, const std::string& path,
                     const std::string& name) {
  if (dense != nullptr) return ReadTensor(*dense, references, path + "." + name);
  if (encoded == nullptr) ThrowMissing(path, name);
  EncodedPayload payload = ReadEncodedValue(*encoded, references, path + ".encoded_" + name);
  return {payload.dims, std::move(payload), {}};
}

void CheckSide(const SidePayload& side, const PageExtent& extent, Side which,
               const std::string& path) {
  if (!side.dense_size) return;  // encoded ones have been checked as they were read
  CheckDenseSize(extent.shape, extent.capacity, which, *DenseDType(side.payload), *side.dense_size,
                 path);
}

}  // namespace

Block ReadBlock(const PagedCacheBlockProto& block, const References& references,
                const std::string& path) {
  if (!block.has_start()) ThrowMissing(path, "start");
  if (!block.has_length()) ThrowMissing(path, "length");
  SidePayload key =
      ReadSide(block.has_key() ? &block.key() : nullptr,
               block.has_encoded_key() ? &block.encoded_key() : nullptr, references, path, "key");
  SidePayload value = ReadSide(block.has_value() ? &block.value() : nullptr,
                               block.has_encoded_value() ? &block.encoded_value() : nullptr,
                               references, path, "value");
  if (!std::equal(key.dims.begin(), key.dims.begin() + 3, value.dims.begin())) {
    throw ValueError("cache.shape", path + ".value",
                     "shape " + ShapeText(value.dims) + " does not go with key shape " +
                         ShapeText(key.dims) + ": batch, heads and capacity must be equal");
  }
  const CacheShape shape{key.dims[0], key.dims[1], key.dims[3], value.dims[3]};
  const PageExtent extent{block.start(), block.length(), key.dims[2], shape};
  CheckPositive(shape, extent.capacity, path);
  CheckSide(key, extent, Side::kKey, path);
  CheckSide(value, extent, Side::kValue, path);
  return {extent, std::move(key.payload), std::move(value.payload)};
}

}  // namespace onnx_light
