// Which parts a call is cut into, and how they are put together.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/block.h"
#include "attention/problem.h"
#include "base/convert.h"
#include "base/thread_pool.h"
#include "base/threads.h"
#include "onnx_light/attention.h"

namespace onnx_light {
namespace {

// Where ranges of tokens are cut, at multiples of it: whatever the number of threads, so that the
// bits of a result do not depend on it.
constexpr int64_t kCutTokens = 512;
// Query rows that are worked on together, so that their scores and sums stay in the cache.
constexpr int64_t kBlockRows = 64;
// With this many blocks there is enough to do at once without cutting ranges of tokens.
constexpr int64_t kManyBlocks = 64;
// Heads that are worked on together, so that what belongs to them stays in the cache.
constexpr int64_t kMostHeads = 16;
// So many tasks for each thread make it all the same how they are shared out.
constexpr int64_t kTasksOfThread = 4;

// Floats on a cache line, kept from call to call.
class FloatBuffer {
 public:
  float* Get(int64_t floats) {
    if (floats > size_) {
      buffer_ = BufferRef();  // first, so that both never exist at once
      size_ = 0;
      buffer_ = BufferRef::Allocate(static_cast<uint64_t>(floats) * sizeof(float));
      size_ = floats;
    }
    return reinterpret_cast<float*>(buffer_.mutable_data());
  }

 private:
  BufferRef buffer_;
  int64_t size_ = 0;
};

thread_local FloatBuffer scratch_buffer;
thread_local FloatBuffer state_buffer;

class Attention {
 public:
  Attention(const AttentionProblem& problem, void* output)
      : problem_(problem),
        kernels_(SelectedAttentionKernels()),
        output_(static_cast<std::byte*>(output)) {
    const int64_t tokens = problem.query.tokens(), heads = problem.cache.heads();
    block_tokens_ =
        std::clamp<int64_t>(kBlockRows / problem.group, 1, std::max<int64_t>(tokens, 1));
    token_blocks_ = (tokens + block_tokens_ - 1) / block_tokens_;
    rows_ = block_tokens_ * problem.group;
    const int64_t whole = problem.cache.batch() * heads * token_blocks_;
    cuts_ranges_ = whole < kManyBlocks;
    if (whole == 0) return;
    // What any query sees.
    const TokenRange seen{problem.Visible(0).begin, problem.Visible(tokens - 1).end};
    first_cut_ = seen.begin / kCutTokens * kCutTokens;
    parts_ = cuts_ranges_ && !seen.empty() ? (seen.end - 1 - first_cut_) / kCutTokens + 1 : 1;
    const int64_t threads = ResolveThreads(problem.options.num_threads);
    if (problem.options.parallel_for == nullptr) task_step_ = threads;
    block_heads_ = BlockAttention::TakesHeads(rows_) ? HeadsOfBlocks(threads) : 1;
    head_blocks_ = (heads + block_heads_ - 1) / block_heads_;
    blocks_ = problem.cache.batch() * head_blocks_ * token_blocks_;
    state_floats_ = StateFloats(problem, rows_);
    scratch_floats_ = BlockAttention::ScratchFloats(problem, block_heads_, rows_);
  }

  void Run() {
    if (blocks_ == 0) return;
    if (!cuts_ranges_) {
      return ForEach(blocks_, [this](uint64_t block) { WholeBlock(static_cast<int64_t>(block)); });
    }
    states_ = state_buffer.Get(problem_.cache.batch() * problem_.cache.heads() * token_blocks_ *
                               parts_ * state_floats_);
    std::vector<std::atomic<int64_t>> left(blocks_);
    for (auto& count : left) count.store(parts_, std::memory_order_relaxed);
    ForEach(blocks_ * parts_, [&](uint64_t task) {
      const auto block = static_cast<int64_t>(task) / parts_;
      PartOfBlock(static_cast<int64_t>(task));
      // Whoever finishes the last part of a block joins all of them, in their order.
      if (left[block].fetch_sub(1, std::memory_order_acq_rel) == 1) JoinParts(block);
    });
  }

 private:
  // As many as can be had while no thread is without work. The bits of a result do not depend on
  // it, for no head has to do with another.
  int64_t HeadsOfBlocks(int64_t threads) const {
    const int64_t heads = problem_.cache.heads();
    const int64_t tasks = problem_.cache.batch() * token_blocks_ * parts_;
    for (int64_t size = std::min(heads, kMostHeads); size > 1; --size) {
      const int64_t count = tasks * ((heads + size - 1) / size);
      if (count % threads == 0 || count >= kTasksOfThread * threads) return size;
    }
    return 1;
  }

  void ForEach(int64_t count, const std::function<void(uint64_t)>& f) const {
    const AttentionOptions& options = problem_.options;
    if (options.parallel_for != nullptr) return (*options.parallel_for)(count, f);
    ThreadPool::Shared().ForEach(options.num_threads, static_cast<uint64_t>(count), f);
  }

  QueryBlock BlockAt(int64_t index) const {
    QueryBlock block;
    block.begin = index % token_blocks_ * block_tokens_;
    block.end = std::min(block.begin + block_tokens_, problem_.query.tokens());
    block.head = index / token_blocks_ % head_blocks_ * block_heads_;
    block.heads = std::min(block_heads_, problem_.cache.heads() - block.head);
    block.batch = index / token_blocks_ / head_blocks_;
    return block;
  }

  // What the queries of a block see, together.
  TokenRange RangeOf(const QueryBlock& block) const {
    return {problem_.Visible(block.begin).begin, problem_.Visible(block.end - 1).end};
  }

  int64_t Rows(const QueryBlock& block) const { return (block.end - block.begin) * problem_.group; }

  BlockStates StatesOf(const QueryBlock& block, int64_t part) const {
    const int64_t stride = token_blocks_ * parts_ * state_floats_;
    const int64_t head = block.batch * problem_.cache.heads() + block.head;
    const int64_t place = block.begin / block_tokens_ * parts_ + part;
    return {states_ + head * stride + place * state_floats_, stride};
  }

  BlockState StateOf(const QueryBlock& block, const BlockStates& states, int64_t head) const {
    return StateAt(states.memory + head * states.stride, problem_, Rows(block));
  }

  void WholeBlock(int64_t index) {
    const QueryBlock block = BlockAt(index);
    float* scratch = scratch_buffer.Get(scratch_floats_ + block_heads_ * state_floats_);
    const BlockStates states{scratch + scratch_floats_, state_floats_};
    BlockAttention(problem_, block, scratch).Run(RangeOf(block), states);
    for (int64_t i = 0; i < block.heads; ++i) WriteRows(block, i, StateOf(block, states, i));
  }

  // What a block sees of a part.
  TokenRange RangeOf(const QueryBlock& block, int64_t part) const {
    const int64_t cut = first_cut_ + part * kCutTokens;
    TokenRange range = RangeOf(block);
    range.begin = std::max(range.begin, cut);
    if (range.end - cut > kCutTokens) range.end = cut + kCutTokens;
    return range;
  }

  // The keys that a task begins with: whoever had the task before it can fetch them.
  BytesAhead FirstKeysOf(int64_t task) const {
    if (task >= blocks_ * parts_) return {};
    const QueryBlock block = BlockAt(task / parts_);
    const TokenRange range = RangeOf(block, task % parts_);
    PieceReader keys(problem_.cache, Side::kKey, block.batch, kernels_, {});
    return keys.Peek(block.head, range.begin, std::min(range.end, range.begin + kTileTokens));
  }

  void PartOfBlock(int64_t task) {
    const int64_t part = task % parts_;
    const QueryBlock block = BlockAt(task / parts_);
    BlockAttention(problem_, block, scratch_buffer.Get(scratch_floats_))
        .Run(RangeOf(block, part), StatesOf(block, part), FirstKeysOf(task + task_step_));
  }

  void JoinParts(int64_t index) {
    const QueryBlock block = BlockAt(index);
    for (int64_t i = 0; i < block.heads; ++i) {
      const BlockState all = StateOf(block, StatesOf(block, 0), i);
      for (int64_t part = 1; part < parts_; ++part) {
        const BlockState next = StateOf(block, StatesOf(block, part), i);
        for (int64_t row = 0; row < Rows(block); ++row) JoinRow(all, next, row);
      }
      WriteRows(block, i, all);
    }
  }

  void JoinRow(const BlockState& all, const BlockState& next, int64_t row) const {
    const float before = all.largest[row], here = next.largest[row];
    if (next.total[row] == 0) return;  // nothing was visible
    const float largest = std::max(before, here);
    const float shift = std::isfinite(largest) ? largest : 0;
    const float keep = kernels_.exp(before - shift), take = kernels_.exp(here - shift);
    const int64_t stride = problem_.value_stride;
    kernels_.blend(all.sums + row * stride, keep, next.sums + row * stride, take, stride);
    all.total[row] = all.total[row] * keep + next.total[row] * take;
    all.largest[row] = largest;
  }

  // Divides by the totals, which sinks are part of, and rounds to the type of the queries.
  void WriteRows(const QueryBlock& block, int64_t head_of_block, const BlockState& state) const {
    const int64_t width = problem_.cache.shape().value_width, stride = problem_.value_stride;
    const ArrayView& query = problem_.query;
    const int64_t row_size = width * ElementSize(query.dtype);
    for (int64_t row = 0; row < Rows(block); ++row) {
      const int64_t head = (block.head + head_of_block) * problem_.group + row % problem_.group;
      float* sums = state.sums + row * stride;
      const float factor = FactorOf(state, row, head);
      for (int64_t i = 0; i < width; ++i) sums[i] *= factor;
      const int64_t place = (block.batch * query.heads() + head) * query.tokens() + block.begin +
                            row / problem_.group;
      ConvertElements(DType::kFloat32, sums, query.dtype, output_ + place * row_size, width);
    }
  }

  // What the sums of a row are to be multiplied with.
  float FactorOf(const BlockState& state, int64_t row, int64_t head) const {
    const float total = state.total[row], largest = state.largest[row];
    if (total == 0) return 0;
    if (problem_.options.sinks.empty()) return 1 / total;
    const float sink = problem_.options.sinks[head];
    if (sink <= largest) return 1 / (total + kernels_.exp(sink - largest));
    const float keep = kernels_.exp(largest - sink);
    return keep / (total * keep + 1);
  }

  const AttentionProblem& problem_;
  const AttentionKernels& kernels_;
  std::byte* const output_;
  int64_t block_tokens_, token_blocks_;        // tokens of a block, and blocks of all tokens
  int64_t block_heads_ = 1, head_blocks_ = 0;  // the same of KV heads
  int64_t blocks_ = 0;
  bool cuts_ranges_;
  int64_t first_cut_ = 0, parts_ = 1;  // where ranges are cut, and into how many parts
  int64_t task_step_ = 1;              // from a task to the one that its thread does next, likely
  int64_t rows_ = 0;                   // most rows of a block
  int64_t state_floats_ = 0, scratch_floats_ = 0;
  float* states_ = nullptr;
};

}  // namespace

void Attend(const PagedCache& cache, const ArrayView& query, const AttentionOptions& options,
            void* output) {
  const AttentionProblem problem(cache, query, options);
  Attention(problem, output).Run();
}

}  // namespace onnx_light
