// The attention of a block of queries, those of one KV head that are worked on together, on a range
// of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/kernels.h"
#include "attention/pieces.h"
#include "attention/problem.h"

namespace onnx_light {

// Consecutive query tokens of one KV head. Row r of the block is query token begin + r / group, and
// in its group the head r % group.
struct QueryBlock {
  int64_t batch = 0;
  int64_t head = 0;  // KV head
  int64_t begin = 0;
  int64_t end = 0;
};

// What is known of each row of a block after some of its tokens.
struct BlockState {
  float* sums = nullptr;     // rows of the problem's value_stride floats
  float* largest = nullptr;  // one for each row: -inf and 0 where nothing was visible
  float* total = nullptr;
};

// Floats that all parts of a BlockState of `rows` rows take. A multiple of kWidthPadding.
int64_t StateFloats(const AttentionProblem& problem, int64_t rows);
BlockState StateAt(float* memory, const AttentionProblem& problem, int64_t rows);

struct BlockScratch;  // block.cc

class BlockAttention {
 public:
  // Floats of scratch for blocks of at most `rows` rows.
  static int64_t ScratchFloats(const AttentionProblem& problem, int64_t rows);

  // `scratch` is aligned to a cache line. REQUIRES: what is given outlives this.
  BlockAttention(const AttentionProblem& problem, const QueryBlock& block, float* scratch);

  // Sets the state to what the visible ones of the positions in `range` give. Fetches `after` from
  // memory meanwhile, the bytes that will be read next.
  void Run(const TokenRange& range, const BlockState& state, const BytesAhead& after = {});

 private:
  BlockAttention(const AttentionProblem& problem, const QueryBlock& block,
                 const BlockScratch& scratch);

  struct Tile {
    TokenRange tokens;
    int64_t first_row, rows;  // of the block, that see some of the tokens
    bool partial;             // some of these rows do not see some of the tokens
  };

  void LoadQueries();
  Tile TileFrom(const TokenRange& range, int64_t position) const;
  void FillBias(const Tile& tile);
  void AddMask(const MaskView& mask, int64_t query_token, int64_t head_in_group,
               const TokenRange& tokens, float* bias) const;
  void ScoreWide(const Tile& tile);
  void ScoreDirect(const Tile& tile);
  QueryRows QueriesFor(const RowTile& keys, const Tile& tile);
  void MixWide(const Tile& tile, const BlockState& state);
  void MixVisible(const RowTile& values, const Tile& tile, const BlockState& state);
  void MixDirect(const Tile& tile, const BlockState& state);
  RowTile WidenTile(PieceReader& reader, const TokenRange& tokens, int64_t stride, float* target);
  void Soften(const Tile& tile, const BlockState& state);
  BytesAhead ShareOfAhead(const Piece& piece, const Tile& tile, int64_t offset) const;
  void KeepKeyScales(const Piece& piece, int64_t offset);

  const AttentionProblem& problem_;
  const QueryBlock block_;
  const AttentionKernels& kernels_;
  const int64_t rows_;
  float *queries_, *paired_queries_, *scaled_queries_;
  float *scores_, *bias_, *wide_, *correction_, *key_scales_;
  bool has_key_scales_ = false;
  BytesAhead ahead_;
  PieceReader keys_, values_;
};

}  // namespace onnx_light
