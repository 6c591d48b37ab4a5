// The bytes of a block, which is one page as a field of PagedCacheProto: everything but the numbers
// follows from the page's form and its start, so a reader knows where they lie without looking at
// the block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "onnx_light/page.h"
#include "snapshot/payload_form.h"

namespace onnx_light::snapshot {

// What the blocks of one run have in common.
struct BlockForm {
  CacheShape shape;
  int64_t length = 0;
  int64_t capacity = 0;
  PayloadForm key;
  PayloadForm value;

  const PayloadForm& payload(Side side) const { return side == Side::kKey ? key : value; }
  std::array<int64_t, 4> dims(Side side) const {
    return {shape.batch, shape.heads, capacity, shape.width(side)};
  }
  bool operator==(const BlockForm&) const = default;
};

// Bytes of a block that are numbers of the page. Offsets count from the block's first byte.
struct Slot {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t end() const { return offset + size; }
};

// The parts of a payload in the order of the file; scales and zero points are empty where the form
// has none.
struct SideLayout {
  Slot scales;
  Slot zero_points;
  Slot data;  // on kAlignment
};

// Where the parts of a block lie, which begins on kAlignment.
struct BlockLayout {
  BlockForm form;
  SideLayout key;
  SideLayout value;
  uint64_t size = 0;  // with the filler at its end: a multiple of kAlignment

  const SideLayout& side(Side side) const { return side == Side::kKey ? key : value; }
  // In the order of the file.
  std::array<Slot, 6> slots() const {
    return {key.scales, key.zero_points, key.data, value.scales, value.zero_points, value.data};
  }
};

// Nothing where a size does not fit the format, or a dim, the length or the capacity is not
// positive.
std::optional<BlockLayout> LayOutBlock(const BlockForm& form);

// The bytes around the slots.
class BlockText {
 public:
  explicit BlockText(const BlockLayout& layout);

  // The blocks of a run differ in it. REQUIRES: 0 <= start <= kMaxPadded.
  void SetStart(int64_t start);

  // What stands before each slot, and after the last one.
  std::span<const std::string, 7> texts() const { return texts_; }

  // Whether the block has exactly these bytes around its slots. REQUIRES: block.size() is the
  // layout's.
  bool Matches(std::span<const std::byte> block) const;

 private:
  const BlockLayout layout_;
  std::array<std::string, 7> texts_;
};

}  // namespace onnx_light::snapshot
