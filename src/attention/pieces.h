// Where the keys or values of consecutive tokens lie, as kernels read them.
#pragma once

#include <array>
#include <cstdint>

#include "attention/kernels.h"
#include "onnx_light/cache.h"

namespace onnx_light {

// Memory for what a piece needs beside the rows themselves, all for up to kTileTokens rows.
struct PieceScratch {
  float* channel_scale = nullptr;  // padded width
  float* channel_zero = nullptr;   // padded width
  float* row_scale = nullptr;      // kTileTokens
  float* group_scale = nullptr;    // kTileTokens * padded width
  float* group_zero = nullptr;     // the same
  float* rows = nullptr;           // the same: rows that no kernel reads, as floats
};

// Some tokens of a tile that lie together and share their scales.
struct Piece {
  RowTile tile;
  int64_t tokens = 0;
};

// The rows of one side and batch entry. Quick where calls stay on a page or go on to the next one.
class PieceReader {
 public:
  // REQUIRES: cache, kernels and scratch outlive this, and CheckReadable() accepts every page.
  PieceReader(const PagedCache& cache, Side side, int64_t batch, const AttentionKernels& kernels,
              const PieceScratch& scratch);

  // The rows of a head from `position` on, as far as one piece reaches, at most to `end`. What it
  // points to is valid until the next call; the scratch of rows is used from row `offset` on.
  // REQUIRES: start() <= position < end <= cache's end.
  Piece Next(int64_t head, int64_t position, int64_t end, int64_t offset);

  // The bytes of the rows from `position` on, as far as one page reaches, at most to `end`; nothing
  // where the range is empty. Reads nothing of them, and fetches their scales from memory.
  BytesAhead Peek(int64_t head, int64_t position, int64_t end);

  // Where the page that holds a position ends.
  int64_t PageEnd(int64_t position);

 private:
  void MoveTo(int64_t position);
  // The cell of a row's first channel, in C order. REQUIRES: the page has affine codes.
  int64_t CellOf(int64_t row) const;
  void FetchParameters(const EncodedPayload& payload, int64_t row, int64_t count) const;
  Piece Dense(const DensePayload& payload, int64_t row, int64_t count) const;
  Piece Records(const EncodedPayload& payload, PageType type, int64_t row, int64_t count) const;
  Piece Codes(const EncodedPayload& payload, int64_t row, int64_t count) const;
  Piece CodesByChannel(const EncodedPayload& payload, int64_t row, int64_t count) const;
  Piece CodesByRow(const EncodedPayload& payload, int64_t row, int64_t count) const;
  Piece CodeRows(const EncodedPayload& payload, int64_t row, int64_t count) const;
  bool Reads(RowFormat format, int64_t width) const;
  void Widened(Piece& piece, int64_t row, int64_t offset) const;

  // `count` numbers of an array, from `first` on, as floats.
  void Floats(DType dtype, const std::byte* array, int64_t first, int64_t count,
              float* target) const;
  void CodeFloats(PageType type, const std::byte* array, int64_t first, int64_t count,
                  float* target) const;

  const PagedCache& cache_;
  const Side side_;
  const int64_t batch_, width_;
  const AttentionKernels& kernels_;
  const PieceScratch scratch_;
  const PageRange pages_;
  int64_t head_ = 0, index_ = -1;
  const PlacedPage* placed_ = nullptr;
  std::array<int64_t, 4> cell_{}, counts_{};  // of the page's affine codes
};

}  // namespace onnx_light
