#include "snapshot/blocks.h"

#include <utility>

#include "base/checksum.h"
#include "base/threads.h"
#include "onnx_light/errors.h"
#include "snapshot/failure.h"

namespace onnx_light::snapshot {
namespace {

// Fewer bytes are verified before a second thread has started.
constexpr uint64_t kWorthThreads = 8 << 20;

// A part of a cache to verify, and the index of its first page.
struct Part {
  BlockRange range;
  int64_t page;
};

void CheckPart(const Part& part, const std::string& layer) {
  BlockText text(part.range.layout());
  for (int64_t i = 0; i < part.range.count; ++i) {
    const std::string damage = DamageOf(part.range, i, text);
    if (damage.empty()) continue;
    const int64_t page = part.page + i;
    const uint64_t offset = part.range.record->frame.offset + part.range.offset(i);
    throw Failure({"snapshot.corrupt", layer + ".blocks[" + std::to_string(page) + "]",
                   AtByte(offset, damage), layer, page, offset});
  }
}

BlockRange RangeOf(const std::vector<Record>& records, const PageSpan& span) {
  const Record& record = records[span.record];
  BlockRange range{&record, span.cache, span.run, 0, span.count, span.first_block};
  const Run& run = range.run_entry();
  range.first = static_cast<int64_t>(span.offset - record.frame.offset - run.offset) / run.stride;
  return range;
}

void CheckPages(const std::vector<Record>& records, const FoldedCache& cache) {
  std::vector<Part> parts;
  uint64_t size = 0;
  int64_t page = 0;
  for (const PageSpan& span : cache.spans) {
    const BlockRange range = RangeOf(records, span);
    ForEachPart(range, [&](const BlockRange& part) {
      parts.push_back({part, page + part.first - range.first});
    });
    page += span.count;
    size += span.count * span.stride;
  }
  ParallelFor(size >= kWorthThreads ? -1 : 1, parts.size(),
              [&](uint64_t i) { CheckPart(parts[i], cache.name); });
}

PagePayload PayloadAt(const SharedBytes& source, const BlockLayout& layout, uint64_t block,
                      Side side) {
  const auto part = [&](const Slot& slot) {
    return slot.size == 0 ? SharedBytes() : source.Slice(block + slot.offset, slot.size);
  };
  const SideLayout& parts = layout.side(side);
  const PayloadForm& form = layout.form.payload(side);
  if (const DType* dtype = std::get_if<DType>(&form)) return DensePayload{*dtype, part(parts.data)};
  EncodedPayload payload;
  payload.dims = layout.form.dims(side);
  payload.codes = part(parts.data);
  payload.scales = part(parts.scales);
  payload.zero_points = part(parts.zero_points);
  if (const auto* affine = std::get_if<AffineForm>(&form)) {
    payload.layout = affine->layout;
  } else {
    payload.layout = std::get<onnx_light::RecordLayout>(form);
  }
  return payload;
}

void AddPages(const SharedBytes& source, const BlockRange& range, const PageSpan& span,
              std::vector<PlacedPage>& pages) {
  const BlockLayout& layout = range.layout();
  const BlockForm& form = layout.form;
  for (int64_t i = 0; i < span.count; ++i) {
    const uint64_t block = span.offset + i * span.stride;
    auto page =
        Page::Borrow(form.shape, form.capacity, PayloadAt(source, layout, block, Side::kKey),
                     PayloadAt(source, layout, block, Side::kValue), "");
    const int64_t start = span.start + i * form.length;
    page->checksum().Set(start, form.length, range.entry().checksums[range.first_block + i]);
    const int64_t length = i + 1 < span.count ? form.length : span.last_length;
    pages.push_back({start, length, std::move(page)});
  }
}

}  // namespace

std::string DamageOf(const BlockRange& range, int64_t i, BlockText& text) {
  const auto bytes = range.bytes(i);
  if (Checksum(bytes) != range.entry().checksums[range.first_block + i]) {
    return "the checksum of the page differs";
  }
  text.SetStart(range.run_entry().start + (range.first + i) * range.run_entry().length);
  return text.Matches(bytes) ? "" : "the page is not what the index says";
}

PagedCache ReadPages(const SharedBytes& source, const std::vector<Record>& records,
                     const Folded& folded, size_t cache) {
  const FoldedCache& read = folded.caches[cache];
  if (read.empty()) {
    // It has a position all the same.
    const ArrayView nothing = ContiguousView(nullptr, DType::kFloat32, {1, 1, 0, 1});
    return PagedCache::FromArrays(nothing, nothing, read.page_size, folded.end, read.policy);
  }
  CheckPages(records, read);
  std::vector<PlacedPage> pages;
  pages.reserve(read.pages());
  for (const PageSpan& span : read.spans) {
    AddPages(source, RangeOf(records, span), span, pages);
  }
  return PagedCache::FromPages(pages, read.page_size, read.name, read.policy);
}

}  // namespace onnx_light::snapshot
