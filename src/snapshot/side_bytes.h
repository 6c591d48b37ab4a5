// The bytes of one side of a piece as a block takes them.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <variant>
#include <vector>

#include "onnx_light/bytes.h"
#include "snapshot/pieces.h"

namespace onnx_light::snapshot {

// What goes into the slots of a side, in runs of memory: of the page itself, or of a copy that is
// made where rows must not be seen.
class SideBytes {
 public:
  using Runs = std::vector<std::span<const std::byte>>;

  // REQUIRES: the page outlives this.
  SideBytes(const Piece& piece, Side side);

  // Scales, zero points, data.
  const std::array<Runs, 3>& slots() const { return slots_; }
  // Holds copies that slots() refers to; nothing where there are none.
  const std::vector<SharedBytes>& copies() const { return copies_; }

 private:
  void AddDense(const Piece& piece, Side side, const DensePayload& payload);
  void AddEncoded(const Piece& piece, const EncodedPayload& payload);
  void AddCopy(size_t slot, SharedBytes bytes);

  std::array<Runs, 3> slots_;
  std::vector<SharedBytes> copies_;
};

}  // namespace onnx_light::snapshot
