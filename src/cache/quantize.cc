// Changing the formats of pages.
#include <algorithm>
#include <vector>

#include "base/thread_pool.h"
#include "cache/encoded_form.h"
#include "cache/recode.h"
#include "cache/stored_rows.h"
#include "onnx_light/cache.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

bool IsEncoded(const std::optional<PageFormat>& format) { return format && !format->is_dense(); }

// The format of a side of a page as if it had been appended under the policy.
std::optional<PageFormat> FormatUnder(const CachePolicy& policy, const PlacedPage& placed,
                                      Side side, bool may_encode) {
  const auto& format = side == Side::kKey ? policy.key : policy.value;
  if (format && (format->is_dense() || may_encode)) return format;
  const auto dtype = DenseDType(placed.page->payload(side));
  if (!dtype) return std::nullopt;
  return PageFormat::Dense(OpenDType(policy, side, *dtype));
}

// Which of the pages the indices name.
std::vector<bool> ChosenPages(std::span<const int64_t> indices, int64_t pages) {
  std::vector<bool> seen(pages);
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::string path = "pages[" + std::to_string(i) + "]";
    if (indices[i] < 0 || indices[i] >= pages) {
      throw ValueError(
          "cache.page_index", path,
          std::to_string(indices[i]) + " is outside [0, " + std::to_string(pages) + ")");
    }
    if (seen[indices[i]]) {
      throw ValueError("cache.page_index", path, std::to_string(indices[i]) + " is given twice");
    }
    seen[indices[i]] = true;
  }
  return seen;
}

}  // namespace

// Encodes, as the policy says, the full pages whose ends lie in (from, to].
void PagedCache::EncodePages(int64_t from, int64_t to) {
  if (!IsEncoded(policy_.key) && !IsEncoded(policy_.value)) return;
  if (to <= start_ || finished_.empty()) return;
  const int64_t last = finished_[finished_.size() - 1].end();
  from = std::max(from, start_);
  for (int64_t i = from < last ? finished_.Find(from) : finished_.size(); i < finished_.size();
       ++i) {
    const PlacedPage placed = finished_[i];
    if (placed.end() > to) return;
    if (placed.length < page_size_ || placed.start < policy_.sink_tokens) continue;
    const auto key = IsEncoded(policy_.key) ? policy_.key : std::nullopt;
    const auto value = IsEncoded(policy_.value) ? policy_.value : std::nullopt;
    const auto make = [&] { return Recode(placed, key, value).page; };
    EncodedForm* form = policy_.recent_tokens != 0 ? placed.page->encoded_form() : nullptr;
    auto page = form != nullptr ? form->Get(key, value, placed.length, make) : make();
    finished_ = finished_.With(i, {placed.start, placed.length, std::move(page)});
  }
}

// Every page as `recode`, a function of the page and its index, gives it. If several cannot be
// recoded, the first one's exception is thrown.
template <typename F>
PagedCache PagedCache::Recoded(int num_threads, F recode) const {
  PagedCache result = *this;
  std::vector<PlacedPage> recoded;
  for (const PlacedPage& placed : pages()) recoded.push_back(placed);
  ThreadPool::Shared().ForEach(num_threads, recoded.size(), [&](uint64_t index) {
    recoded[index] = recode(recoded[index], static_cast<int64_t>(index));
  });
  if (open_.page != nullptr) {
    result.open_ = std::move(recoded.back());
    recoded.pop_back();
  }
  result.finished_ = PageSequence(recoded);
  return result;
}

PagedCache PagedCache::Quantize(const CachePolicy& policy, int num_threads) const {
  policy.Validate();
  const int64_t last = pages().size() - 1;
  PagedCache result = Recoded(num_threads, [&](const PlacedPage& placed, int64_t index) {
    const bool may_encode = placed.start >= policy.sink_tokens &&
                            placed.end() <= end_ - policy.recent_tokens &&
                            (index != last || placed.length >= page_size_);
    return Recode(placed, FormatUnder(policy, placed, Side::kKey, may_encode),
                  FormatUnder(policy, placed, Side::kValue, may_encode));
  });
  result.policy_ = policy;
  return result;
}

PagedCache PagedCache::QuantizePages(std::span<const int64_t> indices, const CachePolicy& policy,
                                     int num_threads) const {
  policy.Validate();
  const std::vector<bool> chosen = ChosenPages(indices, pages().size());
  return Recoded(num_threads, [&](const PlacedPage& placed, int64_t index) {
    return chosen[index] ? Recode(placed, policy.key, policy.value) : placed;
  });
}

PagedCache PagedCache::QuantizePagesWith(std::span<const int64_t> indices,
                                         const QuantizationParameters& key,
                                         const QuantizationParameters& value) const {
  const std::vector<bool> chosen = ChosenPages(indices, pages().size());
  return Recoded(1, [&](const PlacedPage& placed, int64_t index) {
    return chosen[index] ? RecodeWith(placed, key, value) : placed;
  });
}

PagedCache PagedCache::Dequantize(DType dtype, int num_threads) const {
  std::vector<int64_t> indices(pages().size());
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i);
  PagedCache result = DequantizePages(indices, dtype, num_threads);
  result.policy_ = CachePolicy();
  return result;
}

PagedCache PagedCache::DequantizePages(std::span<const int64_t> indices, DType dtype,
                                       int num_threads) const {
  const std::vector<bool> chosen = ChosenPages(indices, pages().size());
  return Recoded(num_threads, [&](const PlacedPage& placed, int64_t index) {
    if (!chosen[index]) return placed;
    const auto format = [&](Side side) {
      const bool is_dense = DenseDType(placed.page->payload(side)).has_value();
      return is_dense ? std::nullopt : std::optional(PageFormat::Dense(dtype));
    };
    return Recode(placed, format(Side::kKey), format(Side::kValue));
  });
}

}  // namespace onnx_light
