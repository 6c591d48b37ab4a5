// The pages of a cache as a record takes them: cut to its token range and to the rows that count.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "onnx_light/cache.h"
#include "snapshot/block.h"

namespace onnx_light::snapshot {

// `length` rows of a page from row `first_row` on.
struct Piece {
  const PlacedPage* placed;
  int64_t first_row;
  int64_t length;

  const Page& page() const { return *placed->page; }
  int64_t start() const { return placed->start + first_row; }
  bool whole() const { return length == page().capacity(); }

  BlockForm form() const {
    return {page().shape(), length, length, *DenseDType(page().key()), *DenseDType(page().value())};
  }

  // Only a whole page keeps a checksum: a page that still grows would keep that of its first rows.
  std::optional<uint64_t> KnownChecksum() const {
    return whole() ? page().checksum().Get(start(), length) : std::nullopt;
  }
  void KeepChecksum(uint64_t checksum) const {
    if (whole()) page().checksum().Set(start(), length, checksum);
  }

  // Calls f for the bytes of the rows in the order of the file, one run of memory after the other.
  template <typename F>
  void ForEachSpan(Side side, F f) const {
    const auto& payload = std::get<DensePayload>(page().payload(side));
    const std::span<const std::byte> bytes = payload.bytes.span();
    if (whole()) return f(bytes);
    const CacheShape& shape = page().shape();
    const int64_t row = shape.width(side) * ElementSize(payload.dtype);
    for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
      f(bytes.subspan((head * page().capacity() + first_row) * row, length * row));
    }
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
      const int64_t from = std::max(first, placed.start), to = std::min(last, placed.end());
      f(Piece{&placed, from - placed.start, to - from});
      ++i;
    }
  }
}

}  // namespace onnx_light::snapshot
