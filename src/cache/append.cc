// Appending tokens to a cache.
#include <algorithm>
#include <utility>

#include "base/math.h"
#include "cache/open_page.h"
#include "cache/payload.h"
#include "cache/sizes.h"
#include "cache/stored_rows.h"
#include "check/pages.h"
#include "onnx_light/cache.h"
#include "onnx_light/errors.h"
#include "quant/encode.h"

namespace onnx_light {
namespace {

void CheckDims(const ArrayView& array, const char* name) {
  const char* kDims[] = {"batch", "heads", "tokens", "width"};
  for (int i = 0; i < 4; ++i) {
    const int64_t least = i == 2 ? 0 : 1;
    if (array.shape[i] >= least) continue;
    throw ValueError("cache.shape", name,
                     "shape " + ShapeText(array.shape) + ": " + kDims[i] + " is " +
                         std::to_string(array.shape[i]) + ", must be at least " +
                         std::to_string(least));
  }
}

void CheckPair(const ArrayView& key, const ArrayView& value) {
  CheckDims(key, "key");
  CheckDims(value, "value");
  if (std::equal(key.shape.begin(), key.shape.begin() + 3, value.shape.begin())) return;
  throw ValueError("cache.shape", "value",
                   "shape " + ShapeText(value.shape) + " does not go with key shape " +
                       ShapeText(key.shape) + ": batch, heads and tokens must be equal");
}

void CheckContinues(const CacheShape& shape, const ArrayView& array, Side side) {
  const int64_t width = shape.width(side);
  if (array.batch() == shape.batch && array.heads() == shape.heads && array.width() == width) {
    return;
  }
  throw ValueError("cache.shape", Name(side),
                   "shape " + ShapeText(array.shape) + " does not continue the cache's [" +
                       std::to_string(shape.batch) + ", " + std::to_string(shape.heads) +
                       ", tokens, " + std::to_string(width) + "]");
}

// What the policy encodes must be encodable when it is appended, not only when its page is full.
void CheckStorable(const ArrayView& rows, const std::optional<PageFormat>& format, Side side) {
  if (format && !format->is_dense()) CheckEncodable(rows, *format, Name(side));
}

}  // namespace

PagedCache PagedCache::FromArrays(const ArrayView& key, const ArrayView& value, int64_t page_size,
                                  int64_t start, const CachePolicy& policy) {
  PagedCache empty(page_size, policy);
  if (start < 0) {
    throw ValueError("cache.position", "start",
                     std::to_string(start) + " is negative, positions are 0 or more");
  }
  empty.start_ = empty.end_ = start;
  return empty.Append(key, value);
}

PagedCache PagedCache::Append(const ArrayView& key, const ArrayView& value) const {
  return Appended(key, value, true);
}

PagedCache PagedCache::Append(const ArrayView& key, const ArrayView& value,
                              const std::function<void(const PagedCache& stored)>& look) const {
  PagedCache present = Appended(key, value, false);
  look(present);
  present.EncodePages(end_ - policy_.recent_tokens, present.end_ - policy_.recent_tokens);
  return present;
}

PagedCache PagedCache::WithPolicy(const CachePolicy& policy) const {
  policy.Validate();
  PagedCache result = *this;
  result.policy_ = policy;
  return result;
}

PagedCache PagedCache::Appended(const ArrayView& key, const ArrayView& value, bool encodes) const {
  CheckPair(key, value);
  if (!empty()) {
    CheckContinues(shape_, key, Side::kKey);
    CheckContinues(shape_, value, Side::kValue);
  }
  if (!CheckedAdd(end_, key.tokens())) {
    throw ValueError("cache.too_large", "key",
                     std::to_string(key.tokens()) + " tokens after position " +
                         std::to_string(end_) + " exceed position 2^63 - 1");
  }
  PagedCache present = *this;
  if (key.tokens() != 0) {
    CheckStorable(key, policy_.key, Side::kKey);
    CheckStorable(value, policy_.value, Side::kValue);
    present.shape_ = {key.batch(), key.heads(), key.width(), value.width()};
    const StoredRows keys(key, OpenDType(policy_, Side::kKey, key.dtype), Side::kKey);
    const StoredRows values(value, OpenDType(policy_, Side::kValue, value.dtype), Side::kValue);
    present.Extend(keys.view(), values.view(), encodes);
  }
  return present;
}

// REQUIRES: the arrays fit the shape and each other.
void PagedCache::Extend(const ArrayView& key, const ArrayView& value, bool encodes) {
  if (open_.page == nullptr) ReopenLastPage();
  if (open_.page != nullptr && !OpenPageTakes(key.dtype, value.dtype)) FinishOpenPage();
  int64_t done = 0;
  while (done < key.tokens()) {
    const int64_t left = key.tokens() - done;
    const int64_t end_before = end_;
    done += FillOpenPage(key.Tokens(done, left), value.Tokens(done, left));
    if (open_.length >= page_size_) FinishOpenPage();
    if (encodes) EncodePages(end_before - policy_.recent_tokens, end_ - policy_.recent_tokens);
  }
}

// A cut or a join may leave a finished page that is shorter than the page size as the last one.
void PagedCache::ReopenLastPage() {
  if (finished_.empty()) return;
  const PlacedPage last = finished_[finished_.size() - 1];
  if (last.length >= page_size_) return;
  finished_ = finished_.First(finished_.size() - 1);
  open_ = last;
}

bool PagedCache::OpenPageTakes(DType key_dtype, DType value_dtype) const {
  return open_.length < page_size_ && DenseDType(open_.page->key()) == key_dtype &&
         DenseDType(open_.page->value()) == value_dtype;
}

// Adds as many tokens as the open page may hold, at least one, and returns their number.
int64_t PagedCache::FillOpenPage(const ArrayView& key, const ArrayView& value) {
  const int64_t row = open_.length;
  const int64_t count = std::min(key.tokens(), page_size_ - row);
  if (open_.page == nullptr) open_.start = end_;
  if (open_.page == nullptr || !OpenPage::Claim(*open_.page, row, count)) {
    auto page = OpenPage::Make(shape_, GrownCapacity(row + count, page_size_), key.dtype,
                               value.dtype, row + count);
    if (row != 0) {
      OpenPage::Write(*page, Side::kKey, 0, 0, DenseRows(open_, Side::kKey));
      OpenPage::Write(*page, Side::kValue, 0, 0, DenseRows(open_, Side::kValue));
    }
    open_.page = std::move(page);
  }
  OpenPage::Write(*open_.page, Side::kKey, 0, row, key.Tokens(0, count));
  OpenPage::Write(*open_.page, Side::kValue, 0, row, value.Tokens(0, count));
  open_.length += count;
  end_ += count;
  return count;
}

void PagedCache::FinishOpenPage() {
  finished_ = finished_.PushBack(std::exchange(open_, PlacedPage()));
}

}  // namespace onnx_light
