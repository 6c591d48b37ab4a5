#include "snapshot/block.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "onnx_light/messages.h"
#include "onnx_light/serialization.h"
#include "quant/encoded_proto.h"
#include "quant/struct_layout.h"
#include "snapshot/fields.h"

namespace onnx_light::snapshot {
namespace {

// Field numbers of PagedCacheProto and PagedCacheBlockProto.
constexpr uint32_t kBlocks = 1, kStart = 1, kLength = 2, kKey = 3, kValue = 4;
constexpr uint32_t kEncodedKey = 5, kEncodedValue = 6;
// Of TensorProto.
constexpr uint32_t kDims = 1, kDataType = 2, kRawData = 9;
// Of EncodedValueProto and AffineLayoutProto.
constexpr uint32_t kAffine = 1, kStructType = 2, kLogicalType = 3, kEncodedData = 4;
constexpr uint32_t kStorageType = 1, kScale = 2, kZeroPoint = 3, kAxis = 4, kBlockSize = 5;
// Of TypeProto, TypeProto.Tensor, TensorShapeProto and its Dimension.
constexpr uint32_t kTensorType = 1, kElemType = 1, kShape = 2, kDim = 1, kDimValue = 1;

constexpr uint64_t kHeaderSize = 1 + kPaddedSize;  // a tag below 16 and a padded length
constexpr uint64_t kStartOffset = kHeaderSize + 1;
constexpr uint64_t kFirstSide = kHeaderSize + 2 * (1 + kPaddedSize);

// What stands before the scales, the zero points and the data of a side.
using SideText = std::array<std::string, 3>;

// The message of a dense side, whose field begins at `offset` of the block.
SideText DenseText(DType dtype, const std::array<int64_t, 4>& dims, Side side, uint64_t offset,
                   const PartSizes& sizes) {
  std::string content;
  for (const int64_t dim : dims) PutNumber(content, kDims, dim);
  PutNumber(content, kDataType, TensorDataType(dtype));
  PutFiller(content, FillerSize(offset + kHeaderSize + content.size() + kHeaderSize));
  PutPaddedHeader(content, kRawData, sizes.data);
  std::string text;
  PutPaddedHeader(text, side == Side::kKey ? kKey : kValue, content.size() + sizes.data);
  return {"", "", text + content};
}

// A tensor up to its payload.
void PutTensor(std::string& out, uint32_t field, const std::vector<int64_t>& dims,
               int32_t data_type, uint64_t size) {
  std::string content;
  for (const int64_t dim : dims) PutNumber(content, kDims, dim);
  PutNumber(content, kDataType, data_type);
  PutTag(content, kRawData, WireType::kLengthDelimited);
  PutVarint(content, size);
  PutTag(out, field, WireType::kLengthDelimited);
  PutVarint(out, content.size() + size);
  out += content;
}

std::string LogicalType(const std::array<int64_t, 4>& dims) {
  std::string shape;
  for (const int64_t dim : dims) {
    std::string content;
    PutNumber(content, kDimValue, dim);
    PutText(shape, kDim, content);
  }
  std::string tensor;
  PutNumber(tensor, kElemType, TensorProto::FLOAT);
  PutText(tensor, kShape, shape);
  std::string type;
  PutText(type, kTensorType, tensor);
  return type;
}

// A layout up to its scales, from there to its zero points, and the rest.
SideText AffineText(const AffineForm& form, const std::array<int64_t, 4>& dims,
                    const PartSizes& sizes) {
  const AffineLayout& layout = form.layout;
  const std::vector<int64_t> scale_dims = ScaleDims(layout, dims);
  SideText text;
  PutNumber(text[0], kStorageType, StorageType(layout.code_type));
  PutTensor(text[0], kScale, scale_dims, TensorDataType(layout.scale_type), sizes.scales);
  if (form.has_zero_points) {
    PutTensor(text[1], kZeroPoint, scale_dims, StorageType(layout.code_type), sizes.zero_points);
  }
  if (layout.shape == AffineLayout::Shape::kScalar) return text;
  PutNumber(text[2], kAxis, layout.axis);
  if (layout.shape == AffineLayout::Shape::kBlocked) {
    PutNumber(text[2], kBlockSize, layout.block_size);
  }
  return text;
}

std::string RecordText(PageType type) {
  Owned<StructTypeProto> message;
  WriteRecordType(type, message.arena(), *message);
  const Serializer serializer(StructTypeProto::kInfo, *message);
  std::string text(serializer.size(), '\0');
  serializer.WriteTo(reinterpret_cast<std::byte*>(text.data()));
  return text;
}

// The message of an encoded side, whose field begins at `offset` of the block.
SideText EncodedText(const PayloadForm& form, const std::array<int64_t, 4>& dims, Side side,
                     uint64_t offset, const PartSizes& sizes) {
  SideText layout;
  const auto* affine = std::get_if<AffineForm>(&form);
  if (affine != nullptr) {
    layout = AffineText(*affine, dims, sizes);
  } else {
    layout[2] = RecordText(std::get<onnx_light::RecordLayout>(form).type);
  }
  const uint64_t layout_size =
      layout[0].size() + sizes.scales + layout[1].size() + sizes.zero_points + layout[2].size();
  std::string rest;
  PutText(rest, kLogicalType, LogicalType(dims));
  const uint64_t before_filler = 2 * kHeaderSize + layout_size + rest.size();
  PutFiller(rest, FillerSize(offset + before_filler + kHeaderSize));
  PutPaddedHeader(rest, kEncodedData, sizes.data);
  std::string text;
  PutPaddedHeader(text, side == Side::kKey ? kEncodedKey : kEncodedValue,
                  kHeaderSize + layout_size + rest.size() + sizes.data);
  PutPaddedHeader(text, affine != nullptr ? kAffine : kStructType, layout_size);
  return {text + layout[0], layout[1], layout[2] + rest};
}

SideText TextOf(const BlockForm& form, Side side, uint64_t offset, const PartSizes& sizes) {
  const PayloadForm& payload = form.payload(side);
  const std::array<int64_t, 4> dims = form.dims(side);
  if (const DType* dtype = std::get_if<DType>(&payload)) {
    return DenseText(*dtype, dims, side, offset, sizes);
  }
  return EncodedText(payload, dims, side, offset, sizes);
}

PartSizes SizesOf(const SideLayout& layout) {
  return {layout.scales.size, layout.zero_points.size, layout.data.size};
}

SideLayout LayOutSide(const BlockForm& form, Side side, uint64_t offset, const PartSizes& sizes) {
  const SideText text = TextOf(form, side, offset, sizes);
  SideLayout layout;
  layout.scales = {offset + text[0].size(), sizes.scales};
  layout.zero_points = {layout.scales.end() + text[1].size(), sizes.zero_points};
  layout.data = {layout.zero_points.end() + text[2].size(), sizes.data};
  return layout;
}

bool Equal(std::span<const std::byte> bytes, const std::string& text) {
  return std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

}  // namespace

std::optional<BlockLayout> LayOutBlock(const BlockForm& form) {
  if (form.length <= 0 || form.length > form.capacity) return std::nullopt;
  const auto key_sizes = SizesOf(form.key, form.dims(Side::kKey));
  const auto value_sizes = SizesOf(form.value, form.dims(Side::kValue));
  if (!key_sizes || !value_sizes) return std::nullopt;
  BlockLayout layout;
  layout.form = form;
  layout.key = LayOutSide(form, Side::kKey, kFirstSide, *key_sizes);
  layout.value = LayOutSide(form, Side::kValue, layout.key.data.end(), *value_sizes);
  layout.size = layout.value.data.end() + FillerSize(layout.value.data.end());
  if (layout.size > kMaxPadded) return std::nullopt;
  return layout;
}

BlockText::BlockText(const BlockLayout& layout) : layout_(layout) {
  const BlockForm& form = layout.form;
  const SideText key = TextOf(form, Side::kKey, kFirstSide, SizesOf(layout.key));
  const SideText value = TextOf(form, Side::kValue, layout.key.data.end(), SizesOf(layout.value));
  std::copy(key.begin(), key.end(), texts_.begin());
  std::copy(value.begin(), value.end(), texts_.begin() + 3);
  std::string header;
  PutPaddedHeader(header, kBlocks, layout.size - kHeaderSize);
  PutPaddedNumber(header, kStart, 0);
  PutPaddedNumber(header, kLength, form.length);
  texts_.front().insert(0, header);
  PutFiller(texts_.back(), layout.size - layout.value.data.end());
}

void BlockText::SetStart(int64_t start) {
  std::string padded;
  PutPadded(padded, start);
  std::copy(padded.begin(), padded.end(), texts_.front().begin() + kStartOffset);
}

bool BlockText::Matches(std::span<const std::byte> block) const {
  uint64_t offset = 0;
  const auto slots = layout_.slots();
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (!Equal(block.subspan(offset), texts_[i])) return false;
    if (i < slots.size()) offset = slots[i].end();
  }
  return true;
}

}  // namespace onnx_light::snapshot
