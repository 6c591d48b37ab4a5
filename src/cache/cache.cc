#include "onnx_light/cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/math.h"
#include "cache/open_page.h"
#include "cache/payload.h"
#include "cache/sizes.h"
#include "check/pages.h"
#include "onnx_light/errors.h"
#include "quant/encoded_rows.h"

namespace onnx_light {
namespace {

void CheckPageSize(int64_t page_size) {
  if (page_size > 0) return;
  throw ValueError("cache.page_size", "page_size",
                   std::to_string(page_size) + " tokens, a page holds at least 1");
}

void CheckPosition(int64_t position, int64_t least, int64_t most, const char* name) {
  if (position >= least && position <= most) return;
  throw ValueError("cache.position", name,
                   "position " + std::to_string(position) + " is outside [" +
                       std::to_string(least) + ", " + std::to_string(most) + "]");
}

void CheckBatchIndices(std::span<const int64_t> indices, int64_t batch) {
  if (indices.empty()) {
    throw ValueError("cache.batch_index", "batch_indices", "no index, at least one is needed");
  }
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0 && indices[i] < batch) continue;
    throw ValueError("cache.batch_index", "batch_indices[" + std::to_string(i) + "]",
                     std::to_string(indices[i]) + " is outside [0, " + std::to_string(batch) + ")");
  }
}

PageExtent ExtentOf(const PlacedPage& placed) {
  return {placed.start, placed.length, placed.page->capacity(), placed.page->shape()};
}

// That the pages follow each other. Errors as CheckPage().
template <typename Pages>
void CheckPages(const Pages& pages, const std::string& path) {
  std::optional<PageExtent> before;
  int64_t index = 0;
  for (const PlacedPage& placed : pages) {
    const PageExtent extent = ExtentOf(placed);
    CheckPage(extent, before ? &*before : nullptr, path, index++);
    before = extent;
  }
}

PlacedPage Shifted(const PlacedPage& placed, int64_t by) {
  return {placed.start + by, placed.length, placed.page};
}

// A dense copy of the rows from position `start` on.
PlacedPage CopyFrom(const PlacedPage& placed, int64_t start) {
  const int64_t first = start - placed.start, count = placed.length - first;
  const VisibleRows keys(placed, Side::kKey), values(placed, Side::kValue);
  const ArrayView &key = keys.view(), &value = values.view();
  auto page = OpenPage::Make(placed.page->shape(), count, key.dtype, value.dtype, count);
  OpenPage::Write(*page, Side::kKey, 0, 0, key.Tokens(first, count));
  OpenPage::Write(*page, Side::kValue, 0, 0, value.Tokens(first, count));
  return {start, count, std::move(page)};
}

void WriteBatch(const Page& page, Side side, int64_t batch, ArrayView rows, int64_t source_batch) {
  rows.data += source_batch * rows.strides[0];
  rows.shape[0] = 1;
  OpenPage::Write(page, side, batch, 0, rows);
}

// A side of a page whose keys or values are encoded, all rows of its capacity.
PagePayload GatherSide(const PlacedPage& placed, Side side,
                       std::span<const int64_t> batch_indices) {
  const PagePayload& payload = placed.page->payload(side);
  if (const auto* encoded = std::get_if<EncodedPayload>(&payload)) {
    return GatherBatch(*encoded, batch_indices);
  }
  const SharedBytes rows = DenseBytes(placed, side, placed.page->capacity());
  const uint64_t size = rows.size / placed.page->shape().batch;
  BufferRef gathered = BufferRef::Allocate(size * batch_indices.size());
  for (size_t i = 0; i < batch_indices.size(); ++i) {
    std::memcpy(gathered.mutable_data() + i * size, rows.data + batch_indices[i] * size, size);
  }
  return DensePayload{std::get<DensePayload>(payload).dtype, SharedBytes(std::move(gathered))};
}

}  // namespace

PagedCache::PagedCache(int64_t page_size, const CachePolicy& policy)
    : page_size_(page_size), policy_(policy) {
  CheckPageSize(page_size);
  policy.Validate();
}

// Of this page size and policy.
PagedCache PagedCache::EmptyAt(int64_t position) const {
  PagedCache empty(page_size_, policy_);
  empty.start_ = empty.end_ = position;
  return empty;
}

PagedCache PagedCache::FromPages(std::span<const PlacedPage> pages, int64_t page_size,
                                 const std::string& path, const CachePolicy& policy) {
  PagedCache cache(page_size, policy);
  if (pages.empty()) return cache;
  CheckPages(pages, path);
  cache.shape_ = pages[0].page->shape();
  cache.start_ = pages.front().start;
  cache.end_ = pages.back().end();
  if (pages.back().length < page_size) {
    cache.open_ = pages.back();
    pages = pages.first(pages.size() - 1);
  }
  cache.finished_ = PageSequence(pages);
  return cache;
}

void PagedCache::ForgetShapeIfEmpty() {
  if (empty()) shape_ = CacheShape();
}

PagedCache PagedCache::Truncate(int64_t end) const {
  CheckPosition(end, start_, end_, "end");
  PagedCache result = *this;
  result.end_ = end;
  if (open_.page != nullptr && end > open_.start) {
    result.open_.length = end - open_.start;
  } else if (end < end_) {
    result.open_ = PlacedPage();
    if (open_.page == nullptr || end < open_.start) {
      const int64_t index = finished_.Find(end);
      const PlacedPage& cut = finished_[index];
      if (end > cut.start) result.open_ = {cut.start, end - cut.start, cut.page};
      result.finished_ = finished_.First(index);
    }
  }
  result.ForgetShapeIfEmpty();
  return result;
}

PagedCache PagedCache::DropBefore(int64_t position) const {
  CheckPosition(position, 0, end_, "position");
  if (position <= start_) return *this;
  const int64_t last = pages().size() - 1;
  const int64_t first = position == end_ ? last : FindPage(position);
  PagedCache result = *this;
  result.finished_ = finished_.WithoutFirst(first);
  result.start_ = pages()[first].start;
  return result;
}

PagedCache PagedCache::Slice(int64_t start, int64_t end) const {
  CheckPosition(end, start_, end_, "end");
  CheckPosition(start, start_, end, "start");
  PagedCache result = Truncate(end);
  if (start == end) return EmptyAt(start);
  result = result.DropBefore(start);
  if (result.start_ == start) return result;
  result.start_ = start;
  if (result.finished_.empty()) {
    result.open_ = CopyFrom(result.open_, start);
  } else {
    result.finished_ = result.finished_.With(0, CopyFrom(result.finished_[0], start));
  }
  return result;
}

PagedCache PagedCache::Concat(const PagedCache& other) const {
  if (other.empty()) return *this;
  if (!empty() && shape_ != other.shape_) {
    throw ValueError("cache.mismatch", "other",
                     Describe(other.shape_) + ", but this cache has " + Describe(shape_));
  }
  if (!CheckedAdd(end_, other.length())) {
    throw ValueError("cache.too_large", "other",
                     std::to_string(other.length()) + " tokens after position " +
                         std::to_string(end_) + " exceed position 2^63 - 1");
  }
  PagedCache result = *this;
  result.shape_ = other.shape_;
  if (result.open_.page != nullptr) result.FinishOpenPage();
  const int64_t shift = end_ - other.start_;
  for (int64_t i = 0; i < other.finished_.size(); ++i) {
    result.finished_ = result.finished_.PushBack(Shifted(other.finished_[i], shift));
  }
  if (other.open_.page != nullptr) result.open_ = Shifted(other.open_, shift);
  result.end_ += other.length();
  return result;
}

PagedCache PagedCache::Gather(std::span<const int64_t> batch_indices) const {
  if (empty()) return *this;
  CheckBatchIndices(batch_indices, shape_.batch);
  bool identity = static_cast<int64_t>(batch_indices.size()) == shape_.batch;
  for (size_t i = 0; identity && i < batch_indices.size(); ++i) {
    identity = batch_indices[i] == static_cast<int64_t>(i);
  }
  if (identity) return *this;
  PagedCache result = *this;
  result.shape_.batch = static_cast<int64_t>(batch_indices.size());
  std::vector<PlacedPage> copies;
  for (const PlacedPage& placed : pages()) {
    copies.push_back(result.GatherPage(placed, batch_indices));
  }
  result.open_ = PlacedPage();
  if (open_.page != nullptr) {
    result.open_ = std::move(copies.back());
    copies.pop_back();
  }
  result.finished_ = PageSequence(copies);
  return result;
}

// The copy of an open page leaves room for the tokens that follow.
PlacedPage PagedCache::GatherPage(const PlacedPage& placed,
                                  std::span<const int64_t> batch_indices) const {
  if (!DenseDType(placed.page->key()) || !DenseDType(placed.page->value())) {
    const int64_t capacity = placed.page->capacity();
    return {placed.start, placed.length,
            Page::Borrow(shape_, capacity, GatherSide(placed, Side::kKey, batch_indices),
                         GatherSide(placed, Side::kValue, batch_indices), "")};
  }
  const ArrayView key = DenseRows(placed, Side::kKey), value = DenseRows(placed, Side::kValue);
  const int64_t capacity = placed.length < page_size_ && placed.end() == end_
                               ? GrownCapacity(placed.length, page_size_)
                               : placed.length;
  auto page = OpenPage::Make(shape_, capacity, key.dtype, value.dtype, placed.length);
  for (size_t i = 0; i < batch_indices.size(); ++i) {
    WriteBatch(*page, Side::kKey, static_cast<int64_t>(i), key, batch_indices[i]);
    WriteBatch(*page, Side::kValue, static_cast<int64_t>(i), value, batch_indices[i]);
  }
  return {placed.start, placed.length, std::move(page)};
}

PagedCache PagedCache::Repage(int64_t page_size) const {
  PagedCache result(page_size, policy_);
  result.start_ = result.end_ = start_;
  result.shape_ = shape_;
  for (const PlacedPage& placed : pages()) result.AddPage(placed);
  return result;
}

// Shares the page if it has the size of a page here, and copies its rows else.
void PagedCache::AddPage(const PlacedPage& placed) {
  if (open_.page != nullptr || placed.length != page_size_) {
    const VisibleRows keys(placed, Side::kKey), values(placed, Side::kValue);
    Extend(keys.view(), values.view(), true);
    return;
  }
  finished_ = finished_.PushBack(placed);
  end_ = placed.end();
}

int64_t PagedCache::FindPage(int64_t position) const {
  if (open_.page != nullptr && position >= open_.start) return finished_.size();
  return finished_.Find(position);
}

void PagedCache::Validate(const std::string& path) const {
  const PageRange range = pages();
  CheckPages(range, path);
}

}  // namespace onnx_light
