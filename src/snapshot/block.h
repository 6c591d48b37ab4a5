// The bytes of a block, which is one page as a field of PagedCacheProto: everything but the
// payloads follows from the page's form and its start, so a reader knows where a payload lies
// without looking at the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "onnx_light/dtype.h"
#include "onnx_light/page.h"

namespace onnx_light::snapshot {

// What the blocks of one run have in common.
struct BlockForm {
  CacheShape shape;
  int64_t length = 0;
  int64_t capacity = 0;
  DType key = DType::kFloat32;
  DType value = DType::kFloat32;

  DType dtype(Side side) const { return side == Side::kKey ? key : value; }
  bool operator==(const BlockForm&) const = default;
};

// Where the parts of a block lie. Offsets count from its first byte, which is on kAlignment.
struct BlockLayout {
  BlockForm form;
  uint64_t key_offset = 0;
  uint64_t key_size = 0;
  uint64_t value_offset = 0;
  uint64_t value_size = 0;
  uint64_t end = 0;   // of the value
  uint64_t size = 0;  // with the filler behind it: a multiple of kAlignment

  uint64_t offset(Side side) const { return side == Side::kKey ? key_offset : value_offset; }
  uint64_t payload_size(Side side) const { return side == Side::kKey ? key_size : value_size; }
};

// Nothing where a size does not fit the format, or a dim, the length or the capacity is not
// positive.
std::optional<BlockLayout> LayOutBlock(const BlockForm& form);

// The bytes around the payloads.
class BlockText {
 public:
  explicit BlockText(const BlockLayout& layout);

  // The blocks of a run differ in it. REQUIRES: 0 <= start <= kMaxPadded.
  void SetStart(int64_t start);

  const std::string& before_key() const { return before_key_; }
  const std::string& before_value() const { return before_value_; }
  const std::string& after() const { return after_; }

  // Whether the block has exactly these bytes around its payloads. REQUIRES: block.size() is the
  // layout's.
  bool Matches(std::span<const std::byte> block) const;

 private:
  const BlockLayout layout_;
  std::string before_key_, before_value_, after_;
};

}  // namespace onnx_light::snapshot
