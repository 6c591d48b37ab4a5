// A persistent sequence of pages: a value that shares almost everything with the values it was
// made from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "onnx_light/export.h"
#include "onnx_light/page.h"

namespace onnx_light {

// The pages lie in the leaves of a tree whose nodes are immutable and have up to 32 entries. A
// change copies the nodes on one path from the root to a leaf, O(log n), and shares the rest; a
// value keeps alive exactly the pages it contains. Pages are in order of their positions, one
// beginning where the one before ends.
class ONNX_LIGHT_EXPORT PageSequence {
 public:
  PageSequence() = default;
  // O(n).
  explicit PageSequence(std::span<const PlacedPage> pages);

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // O(log n) each. REQUIRES: 0 <= index < size().
  const PlacedPage& operator[](int64_t index) const { return Chunk(index).front(); }
  // The pages from `index` to the end of their leaf: a walk takes one chunk after the other.
  std::span<const PlacedPage> Chunk(int64_t index) const;
  // The page that contains the position. REQUIRES: one does.
  int64_t Find(int64_t position) const;

  // O(log n) each. REQUIRES: 0 <= count <= size(), 0 <= index < size().
  PageSequence PushBack(PlacedPage page) const;
  PageSequence First(int64_t count) const;
  PageSequence WithoutFirst(int64_t count) const;
  PageSequence With(int64_t index, PlacedPage page) const;

  struct Node;  // src/cache/page_sequence.cc

 private:
  PageSequence(std::shared_ptr<const Node> root, int64_t size);

  std::shared_ptr<const Node> root_;  // null if empty
  int64_t size_ = 0;
};

}  // namespace onnx_light
