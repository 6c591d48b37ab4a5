// The attention of a block of queries, those of some KV heads that are worked on together, on a
// range of tokens.
#pragma once

#include <cstdint>

#include "attention/kernels.h"
#include "attention/pieces.h"
#include "attention/problem.h"

namespace onnx_light {

// Consecutive query tokens of consecutive KV heads. Row r of a head is query token
// begin + r / group, and in the head's group the query head r % group.
struct QueryBlock {
  int64_t batch = 0;
  int64_t head = 0;   // the first KV head
  int64_t heads = 1;  // more than one only where rows are few: BlockAttention::TakesHeads()
  int64_t begin = 0;
  int64_t end = 0;
};

// What is known of each row of a head after some of its tokens.
struct BlockState {
  float* sums = nullptr;     // rows of the problem's value_stride floats
  float* largest = nullptr;  // one for each row: -inf and 0 where nothing was visible
  float* total = nullptr;
};

// Floats that all parts of a BlockState of `rows` rows take. A multiple of kWidthPadding.
int64_t StateFloats(const AttentionProblem& problem, int64_t rows);
BlockState StateAt(float* memory, const AttentionProblem& problem, int64_t rows);

// The states of the heads of a block, `stride` floats apart.
struct BlockStates {
  float* memory = nullptr;
  int64_t stride = 0;
};

struct BlockScratch;  // block.cc

// Works through tiles of tokens: of each first all keys, head by head, then all values. So memory
// is read in the order in which it lies, page after page, which is what it is quickest at.
class BlockAttention {
 public:
  // Whether blocks of that many rows a head may have several heads.
  static bool TakesHeads(int64_t rows);

  // Floats of scratch for blocks of at most `heads` heads with at most `rows` rows each.
  static int64_t ScratchFloats(const AttentionProblem& problem, int64_t heads, int64_t rows);

  // `scratch` is aligned to a cache line. REQUIRES: what is given outlives this.
  BlockAttention(const AttentionProblem& problem, const QueryBlock& block, float* scratch);

  // Sets the states to what the visible ones of the positions in `range` give. Fetches `after` from
  // memory meanwhile, the bytes that will be read next.
  void Run(const TokenRange& range, const BlockStates& states, const BytesAhead& after = {});

 private:
  BlockAttention(const AttentionProblem& problem, const QueryBlock& block,
                 const BlockScratch& scratch);

  struct Tile {
    TokenRange tokens;
    int64_t first_row, rows;  // of a head, that see some of the tokens
    bool partial;             // some of these rows do not see some of the tokens
  };

  // What belongs to one head of the block.
  struct Head {
    int64_t index;  // of the cache's
    float *queries, *paired_queries, *scores, *correction, *key_scales;
    BlockState state;
  };

  Head HeadAt(int64_t index) const;
  void LoadQueries(const Head& head);
  Tile TileFrom(const TokenRange& range, int64_t position) const;
  void FillBias(const Tile& tile, const Head& head);
  void AddMask(const MaskView& mask, int64_t query_token, int64_t query_head,
               const TokenRange& tokens, float* bias) const;
  void ScoreWide(const Tile& tile, const Head& head);
  void ScoreDirect(const Tile& tile);
  void ScoreSpan(const Tile& tile, const TokenRange& span, const Head& head,
                 const BytesAhead& ahead);
  QueryRows QueriesFor(const RowTile& keys, const Tile& tile, const Head& head);
  void MixWide(const Tile& tile, const Head& head);
  void MixVisible(const RowTile& values, const Tile& tile, const Head& head);
  void MixDirect(const Tile& tile, const TokenRange& range, const BytesAhead& after);
  void MixSpan(const Tile& tile, const TokenRange& span, const Head& head, const BytesAhead& ahead);
  RowTile WidenTile(PieceReader& reader, const TokenRange& tokens, int64_t stride, const Head& head,
                    float* target);
  void Soften(const Tile& tile, const Head& head);
  BytesAhead FirstKeys(const TokenRange& range, int64_t position);

  const AttentionProblem& problem_;
  const QueryBlock block_;
  const AttentionKernels& kernels_;
  const int64_t rows_;                                                      // of each head
  float *queries_, *paired_queries_, *scores_, *correction_, *key_scales_;  // head after head
  float *scaled_queries_, *bias_, *wide_;
  BlockStates states_;
  bool has_key_scales_ = false;
  PieceReader keys_, values_;
};

}  // namespace onnx_light
