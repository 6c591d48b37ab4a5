// Finds the records of a file, without a look at what is in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "snapshot/format.h"

namespace onnx_light::snapshot {

// A record whose head and foot are whole and agree.
struct Frame {
  uint64_t offset = 0;  // in the file
  Head head;
  Foot foot;

  uint64_t end() const { return offset + head.byte_length; }
};

// All records of the file in order, at least one: from the end backwards, so the time depends on
// their number only. Throws Failure that says what the file is instead: `snapshot.torn`,
// `snapshot.corrupt`, `snapshot.rewritten`, `snapshot.version`, `snapshot.kind`. With `recover` a
// torn file gives the whole records before the tear.
std::vector<Frame> FindFrames(std::span<const std::byte> file, bool recover);

}  // namespace onnx_light::snapshot
