// The cache of one attention layer as a value: keys and values of consecutive tokens, in pages.
//
//   PagedCache past = PagedCache::FromArrays(prompt_keys, prompt_values);
//   PagedCache present = past.Append(key, value);   // past stays what it was
//
// A PagedCache never changes. Operations give new values that share pages with the old ones, so
// copies, forks, snapshots and rollback cost a few pointers, and memory is freed when the last
// value that reaches it goes. Assigning a value is not atomic: hand values from thread to thread as
// any C++ object, by a mutex, join or the like. All const functions, Append too, may be called on
// one value by any number of threads at once.
//
// Positions are absolute: the first token that was ever appended has position 0, unless FromArrays
// said otherwise. Costs: n tokens or pages of the argument, P pages of the cache, T its tokens.
//
// Errors are ValueErrors whose path names the argument. `cache.shape`: batch, heads, tokens or
// width do not fit; `cache.position`: a position outside the cache; `cache.page_size`: not
// positive; `cache.batch_index`; `cache.too_large`: a size that does not fit 63 bits;
// `cache.overflow`: a number that the policy's type cannot hold; of pages that come from elsewhere
// `cache.start`, `cache.length`, `cache.payload_size`; and `cache.mismatch`: two caches that cannot
// be compared or joined. A failed operation changes nothing.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnx_light/array_view.h"
#include "onnx_light/cache_policy.h"
#include "onnx_light/dtype.h"
#include "onnx_light/export.h"
#include "onnx_light/page.h"
#include "onnx_light/page_sequence.h"
#include "onnx_light/quantization_parameters.h"

namespace onnx_light {

// The pages of a cache in order. A view: the references it gives live as long as the cache.
class PageRange {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = PlacedPage;
    using difference_type = std::ptrdiff_t;
    using pointer = const PlacedPage*;
    using reference = const PlacedPage&;

    reference operator*() const { return chunk_.front(); }
    pointer operator->() const { return &chunk_.front(); }
    Iterator& operator++() {
      chunk_ = chunk_.subspan(1);
      ++index_;
      if (chunk_.empty() && index_ < range_->size()) chunk_ = range_->Chunk(index_);
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }

   private:
    friend class PageRange;
    Iterator(const PageRange* range, int64_t index) : range_(range), index_(index) {
      if (index < range->size()) chunk_ = range->Chunk(index);
    }
    const PageRange* range_;
    int64_t index_;
    std::span<const PlacedPage> chunk_;
  };

  int64_t size() const { return finished_->size() + (open_->page != nullptr ? 1 : 0); }
  // O(log P). REQUIRES: 0 <= index < size().
  const PlacedPage& operator[](int64_t index) const { return Chunk(index).front(); }
  // The pages from `index` on that lie together in memory, at least one. O(log P).
  std::span<const PlacedPage> Chunk(int64_t index) const {
    if (index < finished_->size()) return finished_->Chunk(index);
    return std::span(open_, 1);
  }
  // REQUIRES: the range outlives the iterators.
  Iterator begin() const { return Iterator(this, 0); }
  Iterator end() const { return Iterator(this, size()); }

 private:
  friend class PagedCache;
  PageRange(const PageSequence* finished, const PlacedPage* open)
      : finished_(finished), open_(open) {}
  const PageSequence* finished_;
  const PlacedPage* open_;
};

// How far one page is from another cache. Both are 0 where the values are equal (NaN with NaN and
// infinities of one sign are); NaN where only one of two values is NaN.
struct PageError {
  int64_t start = 0;
  int64_t end = 0;
  double key_max = 0;
  double key_rms = 0;
  double value_max = 0;
  double value_rms = 0;
};

class ONNX_LIGHT_EXPORT PagedCache {
 public:
  static constexpr int64_t kDefaultPageSize = 64;

  // The empty cache, at position 0. New pages hold `page_size` tokens, stored as `policy` says. The
  // first append fixes the shape. `quant.policy` where the policy is not valid.
  explicit PagedCache(int64_t page_size = kDefaultPageSize, const CachePolicy& policy = {});

  // What appending to an empty cache at position `start` gives. O(n).
  static PagedCache FromArrays(const ArrayView& key, const ArrayView& value,
                               int64_t page_size = kDefaultPageSize, int64_t start = 0,
                               const CachePolicy& policy = {});

  // A cache of pages that exist, shared and not copied. Checks what Validate() checks. O(n).
  static PagedCache FromPages(std::span<const PlacedPage> pages,
                              int64_t page_size = kDefaultPageSize, const std::string& path = "",
                              const CachePolicy& policy = {});

  // This cache and then the given tokens, [batch, heads, tokens, width] with any strides, copied
  // once, bit for bit unless the policy names another dtype: float8 saturates then, and a finite
  // number that would become infinite is `cache.overflow`. On a side that the policy encodes,
  // `quant.not_finite`, `quant.width` and `quant.overflow` for what its format cannot hold. Key and
  // value have equal batch, heads and tokens; zero tokens are fine. A dtype other than that of the
  // last page, on either side, begins a new page. O(n + page size log P) at worst; one token that
  // the open page has room for costs its rows and no allocation. Of several appends to one value
  // the first grows its open page in place, the others copy that page.
  PagedCache Append(const ArrayView& key, const ArrayView& value) const;

  // The same, but first `look` sees the cache with all new tokens as they are stored in open pages,
  // before any page is encoded because of them. What it throws passes through.
  PagedCache Append(const ArrayView& key, const ArrayView& value,
                    const std::function<void(const PagedCache& stored)>& look) const;

  // The same pages; later tokens are stored as `policy` says. `quant.policy`. O(1).
  PagedCache WithPolicy(const CachePolicy& policy) const;

  // The tokens before position `end`, which lies in [start(), end()]. O(log P).
  PagedCache Truncate(int64_t end) const;

  // Without the pages that end at or before `position`, but the last one always stays, so that the
  // cache keeps its position. Positions before start() drop nothing; one after end() is an error.
  // O(log P).
  PagedCache DropBefore(int64_t position) const;

  // Exactly the tokens [start, end), which keep their positions. A first page that is cut inside
  // becomes a dense copy of its rest (`quant.unknown_layout` where its values are not known). O(log
  // P + page).
  PagedCache Slice(int64_t start, int64_t end) const;

  // This cache and then the other's tokens, renumbered to follow. A partial last page of this cache
  // stays as it is. O(pages of the other).
  PagedCache Concat(const PagedCache& other) const;

  // The given batch entries, in that order; any number of times each. Copies all pages unless the
  // indices are 0, 1, ..., batch() - 1. O(T).
  PagedCache Gather(std::span<const int64_t> batch_indices) const;

  // The same tokens in pages of another size, as if they were appended to an empty cache: encoded
  // pages are decoded, and encoded again if the policy says so. Pages that fit already are shared.
  // O(T).
  PagedCache Repage(int64_t page_size) const;

  // The same tokens as if they had been appended under `policy`, which the result has, but in the
  // pages of this cache: the first and last tokens that it keeps dense, and a partial last page,
  // stay so. What is encoded in the policy's format stays as it is, in another is decoded first.
  // Errors as Append(), and `quant.unknown_layout`. Pages are shared out among `num_threads`: 0 and
  // 1: the calling one; below 0: one for each core. O(T).
  PagedCache Quantize(const CachePolicy& policy, int num_threads = 1) const;

  // Exactly these pages, whatever their positions, in the formats of `policy`; the result keeps the
  // policy of this cache. `cache.page_index` for an index outside or given twice. O(T).
  PagedCache QuantizePages(std::span<const int64_t> indices, const CachePolicy& policy,
                           int num_threads = 1) const;

  // Exactly these pages with scales and zero points that are given, the same for each of them; the
  // result keeps the policy of this cache. `cache.page_index` as above; `quant.scale` and
  // `quant.zero_point` where the parameters do not fit a page; `quant.not_finite`,
  // `quant.unknown_layout`. O(T).
  PagedCache QuantizePagesWith(std::span<const int64_t> indices, const QuantizationParameters& key,
                               const QuantizationParameters& value) const;

  // Encoded pages as plain numbers: all of them, and without a policy, or these. `cache.overflow`
  // where a finite number would become infinite; `quant.unknown_layout`. O(T).
  PagedCache Dequantize(DType dtype = DType::kFloat32, int num_threads = 1) const;
  PagedCache DequantizePages(std::span<const int64_t> indices, DType dtype = DType::kFloat32,
                             int num_threads = 1) const;

  int64_t start() const { return start_; }
  int64_t end() const { return end_; }
  int64_t length() const { return end_ - start_; }
  bool empty() const { return start_ == end_; }
  int64_t page_size() const { return page_size_; }
  const CachePolicy& policy() const { return policy_; }
  // All zero while the cache is empty.
  const CacheShape& shape() const { return shape_; }
  int64_t batch() const { return shape_.batch; }
  int64_t heads() const { return shape_.heads; }

  PageRange pages() const { return PageRange(&finished_, &open_); }
  // The page that contains the position, O(log P). REQUIRES: start() <= position < end().
  int64_t FindPage(int64_t position) const;

  // Bytes of all payloads, the unused rows of partly filled pages included. O(P).
  int64_t nbytes() const;
  // Bits of payloads, scales and zero points per number, over the visible rows; 0 if empty. A file
  // has headers and checksums beside them. O(P).
  double bits_per_value() const;

  // The dtype that all pages have on that side; nothing if the cache is empty, they differ, or one
  // is encoded. O(P).
  std::optional<DType> CommonDType(Side side) const;

  // Writes keys or values as [batch, heads, length(), width] in C order. A conversion rounds to
  // nearest even; too large becomes infinite (NaN in float8_e4m3fn); the same dtype keeps all bits.
  // `size` is the size of the target in bytes; any other than the array's is `cache.shape`. Codes
  // are decoded in float; `quant.unknown_layout` where their layout is unknown. O(T).
  void ToArray(Side side, DType dtype, void* target, uint64_t size) const;

  // Equal start, page borders, formats, and bits of the visible rows. Page size, policy and
  // capacities do not count. O(T), less where pages are shared.
  bool operator==(const PagedCache& other) const;

  // The errors of the other's numbers, one entry for each page of this cache. Both cover the same
  // tokens with the same shape (`cache.mismatch`); pages and formats may differ. O(T).
  std::vector<PageError> Compare(const PagedCache& other) const;

  // That starts are contiguous and not negative, lengths positive and within the capacity, and all
  // pages of one shape. Errors have the path "<path>.blocks[i].length" and the like. O(P).
  void Validate(const std::string& path = "") const;

 private:
  // Steps of the operations, on a value that nobody else has seen.
  PagedCache EmptyAt(int64_t position) const;
  PagedCache Appended(const ArrayView& key, const ArrayView& value, bool encodes) const;
  void Extend(const ArrayView& key, const ArrayView& value, bool encodes);
  int64_t FillOpenPage(const ArrayView& key, const ArrayView& value);
  void ReopenLastPage();
  bool OpenPageTakes(DType key_dtype, DType value_dtype) const;
  void AddPage(const PlacedPage& page);
  void FinishOpenPage();
  void EncodePages(int64_t from, int64_t to);
  template <typename F>
  PagedCache Recoded(int num_threads, F recode) const;
  void ForgetShapeIfEmpty();
  PlacedPage GatherPage(const PlacedPage& placed, std::span<const int64_t> batch_indices) const;

  CacheShape shape_;
  int64_t page_size_;
  CachePolicy policy_;
  int64_t start_ = 0;
  int64_t end_ = 0;
  PageSequence finished_;
  // The last page while it is not full; no page if the last one is in finished_, or there is none.
  PlacedPage open_;
};

}  // namespace onnx_light
