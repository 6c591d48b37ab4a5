#include "snapshot/block.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "snapshot/fields.h"

namespace onnx_light::snapshot {
namespace {

// Field numbers of PagedCacheProto, PagedCacheBlockProto and TensorProto.
constexpr uint32_t kBlocks = 1, kStart = 1, kLength = 2, kKey = 3, kValue = 4;
constexpr uint32_t kDims = 1, kDataType = 2, kRawData = 9;

constexpr uint64_t kHeaderSize = 1 + kPaddedSize;  // a tag below 16 and a padded length
constexpr uint64_t kStartOffset = kHeaderSize + 1;
constexpr uint64_t kFirstTensor = kHeaderSize + 2 * (1 + kPaddedSize);

std::optional<uint64_t> DenseBytes(const BlockForm& form, Side side) {
  const CacheShape& shape = form.shape;
  uint64_t size = ElementSize(form.dtype(side));
  for (int64_t dim : {shape.batch, shape.heads, form.capacity, shape.width(side)}) {
    if (dim <= 0) return std::nullopt;
    const auto product = CheckedMul(size, static_cast<uint64_t>(dim));
    if (!product || *product > kMaxPadded) return std::nullopt;
    size = *product;
  }
  return size;
}

// What stands before the payload of a tensor whose field begins at `offset` of the block.
std::string TensorText(const BlockForm& form, Side side, uint64_t offset, uint64_t size) {
  const CacheShape& shape = form.shape;
  std::string content;
  for (int64_t dim : {shape.batch, shape.heads, form.capacity, shape.width(side)}) {
    PutNumber(content, kDims, dim);
  }
  PutNumber(content, kDataType, TensorDataType(form.dtype(side)));
  PutFiller(content, FillerSize(offset + kHeaderSize + content.size() + kHeaderSize));
  PutPaddedHeader(content, kRawData, size);
  std::string text;
  PutPaddedHeader(text, side == Side::kKey ? kKey : kValue, content.size() + size);
  return text + content;
}

bool Equal(std::span<const std::byte> bytes, const std::string& text) {
  return std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

}  // namespace

std::optional<BlockLayout> LayOutBlock(const BlockForm& form) {
  if (form.length <= 0 || form.length > form.capacity) return std::nullopt;
  const auto key_size = DenseBytes(form, Side::kKey);
  const auto value_size = DenseBytes(form, Side::kValue);
  if (!key_size || !value_size) return std::nullopt;
  BlockLayout layout;
  layout.form = form;
  layout.key_size = *key_size;
  layout.value_size = *value_size;
  layout.key_offset = kFirstTensor + TensorText(form, Side::kKey, kFirstTensor, *key_size).size();
  const uint64_t key_end = layout.key_offset + *key_size;
  layout.value_offset = key_end + TensorText(form, Side::kValue, key_end, *value_size).size();
  layout.end = layout.value_offset + *value_size;
  layout.size = layout.end + FillerSize(layout.end);
  if (layout.size > kMaxPadded) return std::nullopt;
  return layout;
}

BlockText::BlockText(const BlockLayout& layout) : layout_(layout) {
  const BlockForm& form = layout.form;
  PutPaddedHeader(before_key_, kBlocks, layout.size - kHeaderSize);
  PutPaddedNumber(before_key_, kStart, 0);
  PutPaddedNumber(before_key_, kLength, form.length);
  before_key_ += TensorText(form, Side::kKey, kFirstTensor, layout.key_size);
  before_value_ =
      TensorText(form, Side::kValue, layout.key_offset + layout.key_size, layout.value_size);
  PutFiller(after_, layout.size - layout.end);
}

void BlockText::SetStart(int64_t start) {
  std::string padded;
  PutPadded(padded, start);
  std::copy(padded.begin(), padded.end(), before_key_.begin() + kStartOffset);
}

bool BlockText::Matches(std::span<const std::byte> block) const {
  return Equal(block, before_key_) &&
         Equal(block.subspan(layout_.key_offset + layout_.key_size), before_value_) &&
         Equal(block.subspan(layout_.end), after_);
}

}  // namespace onnx_light::snapshot
