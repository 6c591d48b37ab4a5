#include "attention/block.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/convert.h"

namespace onnx_light {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

constexpr int Index(RowFormat format) { return static_cast<int>(format); }

// Hands out parts of one piece of memory, each on a cache line of its own.
class Carver {
 public:
  explicit Carver(float* memory) : next_(memory) {}
  float* Take(int64_t floats) {
    float* part = next_;
    used_ += PaddedFloats(floats);
    if (next_ != nullptr) next_ += PaddedFloats(floats);
    return part;
  }
  int64_t used() const { return used_; }

 private:
  float* next_;
  int64_t used_ = 0;
};

PieceScratch TakePieceScratch(Carver& carver, int64_t stride) {
  PieceScratch scratch;
  scratch.channel_scale = carver.Take(stride);
  scratch.channel_zero = carver.Take(stride);
  scratch.row_scale = carver.Take(kTileTokens);
  scratch.group_scale = carver.Take(kTileTokens * stride);
  scratch.group_zero = carver.Take(kTileTokens * stride);
  scratch.rows = carver.Take(kTileTokens * stride);
  return scratch;
}

}  // namespace

struct BlockScratch {
  float *queries, *paired_queries, *scores, *correction, *key_scales;  // head after head
  float *scaled_queries, *bias, *wide;
  PieceScratch keys, values;
  int64_t used;
};

namespace {

BlockScratch Carve(const AttentionProblem& problem, int64_t heads, int64_t rows, float* memory) {
  Carver carver(memory);
  BlockScratch scratch;
  scratch.queries = carver.Take(heads * rows * problem.key_stride);
  scratch.paired_queries = carver.Take(heads * rows * problem.key_stride);
  scratch.scores = carver.Take(heads * rows * kTileTokens);
  scratch.correction = carver.Take(heads * rows);
  scratch.key_scales = carver.Take(heads * kTileTokens);
  scratch.scaled_queries = carver.Take(rows * problem.key_stride);
  scratch.bias = carver.Take(rows * kTileTokens);
  scratch.wide = carver.Take(kTileTokens * std::max(problem.key_stride, problem.value_stride));
  scratch.keys = TakePieceScratch(carver, problem.key_stride);
  scratch.values = TakePieceScratch(carver, problem.value_stride);
  scratch.used = carver.used();
  return scratch;
}

// The share of the bytes ahead that goes with `count` tokens of a span, from the one at `offset`
// on.
BytesAhead ShareOf(const BytesAhead& ahead, const TokenRange& span, int64_t offset, int64_t count) {
  const int64_t tokens = span.end - span.begin, begin = ahead.size * offset / tokens;
  return {ahead.data + begin, ahead.size * (offset + count) / tokens - begin};
}

float MaskNumber(const MaskView& mask, const std::byte* element) {
  if (mask.dtype) return ToFloat(*mask.dtype, element);
  return static_cast<uint8_t>(*element) != 0 ? 0.0f : kHidden;
}

}  // namespace

int64_t StateFloats(const AttentionProblem& problem, int64_t rows) {
  return rows * problem.value_stride + 2 * PaddedFloats(rows);
}

BlockState StateAt(float* memory, const AttentionProblem& problem, int64_t rows) {
  float* rest = memory + rows * problem.value_stride;
  return {memory, rest, rest + PaddedFloats(rows)};
}

bool BlockAttention::TakesHeads(int64_t rows) {
  return rows <= SelectedAttentionKernels().max_rows;
}

int64_t BlockAttention::ScratchFloats(const AttentionProblem& problem, int64_t heads,
                                      int64_t rows) {
  return Carve(problem, heads, rows, nullptr).used;
}

BlockAttention::BlockAttention(const AttentionProblem& problem, const QueryBlock& block,
                               float* memory)
    : BlockAttention(
          problem, block,
          Carve(problem, block.heads, (block.end - block.begin) * problem.group, memory)) {}

BlockAttention::BlockAttention(const AttentionProblem& problem, const QueryBlock& block,
                               const BlockScratch& scratch)
    : problem_(problem),
      block_(block),
      kernels_(SelectedAttentionKernels()),
      rows_((block.end - block.begin) * problem.group),
      queries_(scratch.queries),
      paired_queries_(scratch.paired_queries),
      scores_(scratch.scores),
      correction_(scratch.correction),
      key_scales_(scratch.key_scales),
      scaled_queries_(scratch.scaled_queries),
      bias_(scratch.bias),
      wide_(scratch.wide),
      keys_(problem.cache, Side::kKey, block.batch, kernels_, scratch.keys),
      values_(problem.cache, Side::kValue, block.batch, kernels_, scratch.values) {
  for (int64_t i = 0; i < block.heads; ++i) LoadQueries(HeadAt(i));
}

BlockAttention::Head BlockAttention::HeadAt(int64_t index) const {
  const int64_t first_row = index * rows_;
  return {block_.head + index,
          queries_ + first_row * problem_.key_stride,
          paired_queries_ + first_row * problem_.key_stride,
          scores_ + first_row * kTileTokens,
          correction_ + first_row,
          key_scales_ + index * kTileTokens,
          StateAt(states_.memory + index * states_.stride, problem_, rows_)};
}

// Widens and scales the queries, and keeps them in the order of paired formats, too.
void BlockAttention::LoadQueries(const Head& head) {
  const ArrayView& query = problem_.query;
  const int64_t width = query.width(), stride = problem_.key_stride;
  const int64_t item = ElementSize(query.dtype);
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t token = block_.begin + row / problem_.group;
    const int64_t query_head = head.index * problem_.group + row % problem_.group;
    const std::byte* source = query.data + block_.batch * query.strides[0] +
                              query_head * query.strides[1] + token * query.strides[2];
    float* target = head.queries + row * stride;
    if (query.strides[3] == item) {
      ConvertElements(query.dtype, source, DType::kFloat32, target, width);
    } else {
      for (int64_t i = 0; i < width; ++i) {
        target[i] = ToFloat(query.dtype, source + i * query.strides[3]);
      }
    }
    for (int64_t i = 0; i < width; ++i) target[i] *= problem_.scale;
    std::fill(target + width, target + stride, 0.0f);
  }
  constexpr int kPaired = Index(RowFormat::kBF16);
  if (!kernels_.pairs[kPaired] || stride % kernels_.step[kPaired] != 0) return;
  kernels_.pair(head.queries, rows_ * stride, head.paired_queries);
}

void BlockAttention::Run(const TokenRange& range, const BlockStates& states,
                         const BytesAhead& after) {
  states_ = states;
  for (int64_t i = 0; i < block_.heads; ++i) {
    const BlockState state = HeadAt(i).state;
    std::fill(state.sums, state.sums + rows_ * problem_.value_stride, 0.0f);
    std::fill(state.largest, state.largest + rows_, kHidden);
    std::fill(state.total, state.total + rows_, 0.0f);
  }
  for (int64_t position = range.begin; position < range.end;) {
    const Tile tile = TileFrom(range, position);
    position = tile.tokens.end;
    if (tile.rows == 0) continue;
    const bool few = tile.rows <= kernels_.max_rows;
    has_key_scales_ = false;
    if (few) ScoreDirect(tile);
    if (few && !tile.partial) {
      MixDirect(tile, range, after);
      continue;
    }
    for (int64_t i = 0; i < block_.heads; ++i) {
      const Head head = HeadAt(i);
      if (!few) ScoreWide(tile, head);
      if (tile.partial) FillBias(tile, head);
      Soften(tile, head);
      MixWide(tile, head);
    }
  }
}

// The tile that begins at a position: up to the next multiple of kTileTokens.
BlockAttention::Tile BlockAttention::TileFrom(const TokenRange& range, int64_t position) const {
  Tile tile{};
  tile.tokens = {position, range.end - position > kTileTokens - position % kTileTokens
                               ? position - position % kTileTokens + kTileTokens
                               : range.end};
  // Both ends of what a query sees grow with the query.
  int64_t first = block_.begin, last = block_.end;
  while (first < last && problem_.Visible(first).end <= tile.tokens.begin) ++first;
  while (first < last && problem_.Visible(last - 1).begin >= tile.tokens.end) --last;
  tile.first_row = (first - block_.begin) * problem_.group;
  tile.rows = (last - first) * problem_.group;
  if (tile.rows == 0) return tile;
  tile.partial = problem_.options.mask.has_value() ||
                 problem_.Visible(first).end < tile.tokens.end ||
                 problem_.Visible(last - 1).begin > tile.tokens.begin;
  return tile;
}

void BlockAttention::FillBias(const Tile& tile, const Head& head) {
  const int64_t begin = tile.tokens.begin, count = tile.tokens.end - begin;
  for (int64_t row = 0; row < tile.rows; ++row) {
    const int64_t head_row = tile.first_row + row;
    const int64_t token = block_.begin + head_row / problem_.group;
    const TokenRange visible = problem_.Visible(token);
    float* bias = bias_ + row * kTileTokens;
    const int64_t from = std::clamp<int64_t>(visible.begin - begin, 0, count);
    const int64_t to = std::clamp<int64_t>(visible.end - begin, from, count);
    std::fill(bias, bias + from, kHidden);
    std::fill(bias + from, bias + to, 0.0f);
    std::fill(bias + to, bias + count, kHidden);
    if (problem_.options.mask) {
      AddMask(*problem_.options.mask, token,
              head.index * problem_.group + head_row % problem_.group, {begin + from, begin + to},
              bias + from);
    }
  }
}

void BlockAttention::AddMask(const MaskView& mask, int64_t query_token, int64_t query_head,
                             const TokenRange& tokens, float* bias) const {
  const int64_t place[4] = {block_.batch, query_head, query_token,
                            tokens.begin - problem_.cache.start()};
  const std::byte* element = mask.data;
  for (int i = 0; i < 4; ++i) {
    if (mask.shape[i] != 1) element += place[i] * mask.strides[i];
  }
  const int64_t stride = mask.shape[3] != 1 ? mask.strides[3] : 0;
  for (int64_t i = 0; i < tokens.end - tokens.begin; ++i, element += stride) {
    bias[i] = MaskNumber(mask, element);
  }
}

void BlockAttention::Soften(const Tile& tile, const Head& head) {
  SoftmaxTile softmax;
  softmax.scores = head.scores;
  softmax.bias = tile.partial ? bias_ : nullptr;
  softmax.key_scale = has_key_scales_ ? head.key_scales : nullptr;
  softmax.softcap = problem_.options.softcap;
  softmax.tokens = tile.tokens.end - tile.tokens.begin;
  softmax.rows = tile.rows;
  softmax.largest = head.state.largest + tile.first_row;
  softmax.total = head.state.total + tile.first_row;
  softmax.correction = head.correction;
  kernels_.soften(softmax);
}

// ---------------------------------------------------------------------------------------------
// Few rows: straight on the pages

// Queries of the tile in the order of the keys' format, with the scales of its channels.
QueryRows BlockAttention::QueriesFor(const RowTile& keys, const Tile& tile, const Head& head) {
  const int64_t stride = problem_.key_stride, first = tile.first_row * stride;
  const bool pairs = kernels_.pairs[Index(keys.format)];
  QueryRows queries{(pairs ? head.paired_queries : head.queries) + first, stride,
                    static_cast<int>(tile.rows)};
  if (keys.channel_scale == nullptr) return queries;
  const float* scale = keys.channel_scale;
  if (pairs) {
    kernels_.pair(scale, keys.width, wide_);
    scale = wide_;
  }
  kernels_.multiply(queries.data, stride, tile.rows, scale, keys.width, scaled_queries_);
  queries.data = scaled_queries_;
  return queries;
}

// The first keys of the tile that begins at a position of the range.
BytesAhead BlockAttention::FirstKeys(const TokenRange& range, int64_t position) {
  return keys_.Peek(block_.head, position, std::min(range.end, position + kTileTokens));
}

void BlockAttention::ScoreDirect(const Tile& tile) {
  TokenRange span = tile.tokens;
  for (; span.begin < tile.tokens.end; span.begin = span.end) {
    span.end = std::min(tile.tokens.end, keys_.PageEnd(span.begin));
    for (int64_t i = 0; i < block_.heads; ++i) {
      const Head head = HeadAt(i);
      BytesAhead ahead;
      if (i + 1 < block_.heads) {
        ahead = keys_.Peek(head.index + 1, span.begin, span.end);
      } else if (span.end < tile.tokens.end) {
        ahead = keys_.Peek(block_.head, span.end, tile.tokens.end);
      } else {
        ahead = values_.Peek(block_.head, tile.tokens.begin, tile.tokens.end);
      }
      ScoreSpan(tile, span, head, ahead);
    }
  }
}

// Scores of tokens that lie on one page.
void BlockAttention::ScoreSpan(const Tile& tile, const TokenRange& span, const Head& head,
                               const BytesAhead& ahead) {
  for (int64_t position = span.begin; position < span.end;) {
    const int64_t offset = position - tile.tokens.begin;
    Piece piece = keys_.Next(head.index, position, span.end, offset);
    piece.tile.ahead = ShareOf(ahead, span, position - span.begin, piece.tokens);
    if (piece.tile.row_scale != nullptr) {
      if (!has_key_scales_) std::fill_n(key_scales_, block_.heads * kTileTokens, 1.0f);
      has_key_scales_ = true;
      std::copy_n(piece.tile.row_scale, piece.tokens, head.key_scales + offset);
    }
    kernels_.scores[Index(piece.tile.format)](
        piece.tile, piece.tokens, QueriesFor(piece.tile, tile, head), head.scores + offset);
    position += piece.tokens;
  }
}

void BlockAttention::MixDirect(const Tile& tile, const TokenRange& range, const BytesAhead& after) {
  TokenRange span = tile.tokens;
  for (; span.begin < tile.tokens.end; span.begin = span.end) {
    span.end = std::min(tile.tokens.end, values_.PageEnd(span.begin));
    for (int64_t i = 0; i < block_.heads; ++i) {
      const Head head = HeadAt(i);
      BytesAhead ahead = after;
      if (i + 1 < block_.heads) {
        ahead = values_.Peek(head.index + 1, span.begin, span.end);
      } else if (span.end < tile.tokens.end) {
        ahead = values_.Peek(block_.head, span.end, tile.tokens.end);
      } else if (tile.tokens.end < range.end) {
        ahead = FirstKeys(range, tile.tokens.end);
      }
      if (span.begin == tile.tokens.begin) Soften(tile, head);
      MixSpan(tile, span, head, ahead);
    }
  }
}

// What the tokens of a span, which lie on one page, add to the sums.
void BlockAttention::MixSpan(const Tile& tile, const TokenRange& span, const Head& head,
                             const BytesAhead& ahead) {
  for (int64_t position = span.begin; position < span.end;) {
    const int64_t offset = position - tile.tokens.begin, stride = problem_.value_stride;
    Piece piece = values_.Next(head.index, position, span.end, offset);
    piece.tile.ahead = ShareOf(ahead, span, position - span.begin, piece.tokens);
    float* weights = head.scores + offset;
    if (piece.tile.row_scale != nullptr) {
      kernels_.multiply(weights, kTileTokens, tile.rows, piece.tile.row_scale, piece.tokens,
                        weights);
    }
    const float* correction = position == tile.tokens.begin ? head.correction : nullptr;
    kernels_.mix[Index(piece.tile.format)](
        piece.tile, piece.tokens,
        {weights, correction, head.state.sums + tile.first_row * stride, stride,
         static_cast<int>(tile.rows)});
    position += piece.tokens;
  }
}

// ---------------------------------------------------------------------------------------------
// Many rows, or rows that do not see all of a tile: widened once

// The rows as floats: where they lie, or in `target`.
RowTile BlockAttention::WidenTile(PieceReader& reader, const TokenRange& tokens, int64_t stride,
                                  const Head& head, float* target) {
  RowTile wide;
  wide.data = reinterpret_cast<const std::byte*>(target);
  wide.row_size = stride * static_cast<int64_t>(sizeof(float));
  wide.width = stride;
  for (int64_t position = tokens.begin; position < tokens.end;) {
    const int64_t offset = position - tokens.begin;
    const Piece piece = reader.Next(head.index, position, tokens.end, offset);
    const bool is_all = piece.tokens == tokens.end - tokens.begin;
    if (is_all && piece.tile.format == RowFormat::kF32) return piece.tile;
    kernels_.widen[Index(piece.tile.format)](piece.tile, piece.tokens, target + offset * stride,
                                             stride);
    position += piece.tokens;
  }
  return wide;
}

void BlockAttention::ScoreWide(const Tile& tile, const Head& head) {
  const int64_t stride = problem_.key_stride, tokens = tile.tokens.end - tile.tokens.begin;
  const RowTile keys = WidenTile(keys_, tile.tokens, stride, head, wide_);
  for (int64_t row = 0; row < tile.rows; row += kernels_.max_rows) {
    const auto count = static_cast<int>(std::min<int64_t>(kernels_.max_rows, tile.rows - row));
    kernels_.scores[Index(RowFormat::kF32)](
        keys, tokens, {head.queries + (tile.first_row + row) * stride, stride, count},
        head.scores + row * kTileTokens);
  }
}

void BlockAttention::MixWide(const Tile& tile, const Head& head) {
  const int64_t stride = problem_.value_stride, tokens = tile.tokens.end - tile.tokens.begin;
  const RowTile values = WidenTile(values_, tile.tokens, stride, head, wide_);
  // What a row does not see has the weight 0, which infinities and NaN would turn into NaN.
  if (tile.partial &&
      !kernels_.finite(reinterpret_cast<const float*>(values.data), tokens * stride)) {
    return MixVisible(values, tile, head);
  }
  for (int64_t row = 0; row < tile.rows; row += kernels_.max_rows) {
    const auto count = static_cast<int>(std::min<int64_t>(kernels_.max_rows, tile.rows - row));
    kernels_.mix[Index(RowFormat::kF32)](
        values, tokens,
        {head.scores + row * kTileTokens, head.correction + row,
         head.state.sums + (tile.first_row + row) * stride, stride, count});
  }
}

// Row by row, and of each row only the runs of tokens that it sees.
void BlockAttention::MixVisible(const RowTile& values, const Tile& tile, const Head& head) {
  const int64_t stride = problem_.value_stride, tokens = tile.tokens.end - tile.tokens.begin;
  for (int64_t row = 0; row < tile.rows; ++row) {
    const float* bias = bias_ + row * kTileTokens;
    MixTarget target{head.scores + row * kTileTokens, head.correction + row,
                     head.state.sums + (tile.first_row + row) * stride, stride, 1};
    for (int64_t token = 0; token < tokens;) {
      int64_t end = token;
      while (end < tokens && bias[end] != kHidden) ++end;
      RowTile visible = values;
      visible.data += token * values.row_size;
      target.weights = head.scores + row * kTileTokens + token;
      kernels_.mix[Index(RowFormat::kF32)](visible, end - token, target);
      target.correction = nullptr;
      token = end + 1;
    }
  }
}

}  // namespace onnx_light
