// One record, read and checked as far as opening goes: everything but blocks, tokens and the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "onnx_light/snapshot_content.h"
#include "snapshot/frames.h"
#include "snapshot/index.h"
#include "snapshot/layout.h"

namespace onnx_light::snapshot {

struct Record {
  Frame frame;
  std::span<const std::byte> bytes;
  Index index;
  RecordLayout layout;
  // Of its metadata_props.
  KeyValues identity;
  KeyValues metadata;

  std::string place() const { return "record[" + std::to_string(frame.head.number) + "]"; }
  uint64_t index_offset() const { return bytes.size() - kFootSize - frame.foot.index_size; }
  int64_t tokens_before() const { return static_cast<int64_t>(frame.head.tokens_before); }
  int64_t tokens_after() const { return static_cast<int64_t>(frame.foot.tokens_after); }
  std::span<const std::byte> Part(const Extent& extent) const {
    return bytes.subspan(extent.offset, extent.length);
  }
};

// Checks the index, that everything lies where it says, and the extents `model` and `catalogue`.
// Throws Failure `snapshot.corrupt`, `snapshot.features`.
Record ReadRecord(std::span<const std::byte> file, const Frame& frame);

// Checks an extent's checksum.
void CheckExtent(const Record& record, const Extent& extent);

}  // namespace onnx_light::snapshot
