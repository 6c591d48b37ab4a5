// The pages of a cache as a record takes them: cut to its token range and to the rows that count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "onnx_light/cache.h"
#include "snapshot/block.h"

namespace onnx_light::snapshot {

// Whether a side of a page is encoded. Such a page keeps its capacity and is never cut at its
// start.
inline bool IsEncoded(const Page& page) {
  return !DenseDType(page.key()) || !DenseDType(page.value());
}

// `length` rows of a page from row `first_row` on, in a page of some capacity.
struct Piece {
  const PlacedPage* placed;
  int64_t first_row;
  int64_t length;

  const Page& page() const { return *placed->page; }
  int64_t start() const { return placed->start + first_row; }
  bool whole() const { return length == page().capacity(); }

  // REQUIRES: the layouts of the page are known.
  BlockForm form() const {
    return {page().shape(), length, IsEncoded(page()) ? page().capacity() : length,
            *FormOf(page().key()), *FormOf(page().value())};
  }

  // Only a whole page keeps a checksum: a page that still grows would keep that of its first rows.
  std::optional<uint64_t> KnownChecksum() const {
    return whole() ? page().checksum().Get(start(), length) : std::nullopt;
  }
  void KeepChecksum(uint64_t checksum) const {
    if (whole()) page().checksum().Set(start(), length, checksum);
  }
};

// Calls f(piece) for what the cache has in [first, last).
template <typename F>
void ForEachPiece(const PagedCache& cache, int64_t first, int64_t last, F f) {
  first = std::max(first, cache.start());
  last = std::min(last, cache.end());
  if (first >= last) return;
  const PageRange pages = cache.pages();
  for (int64_t i = cache.FindPage(first); i < pages.size();) {
    for (const PlacedPage& placed : pages.Chunk(i)) {
      if (placed.start >= last) return;
      const int64_t to = std::min(last, placed.end());
      const int64_t from = IsEncoded(*placed.page) ? placed.start : std::max(first, placed.start);
      f(Piece{&placed, from - placed.start, to - from});
      ++i;
    }
  }
}

}  // namespace onnx_light::snapshot
