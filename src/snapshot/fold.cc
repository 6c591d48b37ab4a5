#include "snapshot/fold.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "snapshot/failure.h"

namespace onnx_light::snapshot {
namespace {

[[noreturn]] void FailRecord(const Record& record, const std::string& message) {
  FailCorrupt(record.place() + ".index", record.frame.offset + record.index_offset(), message);
}

// Drops the rows from position `end` on.
void Truncate(FoldedCache& cache, int64_t end) {
  while (!cache.spans.empty() && cache.spans.back().start >= end) cache.spans.pop_back();
  if (cache.spans.empty()) return;
  PageSpan& last = cache.spans.back();
  if (last.end() <= end) return;
  last.count = (end - last.start - 1) / last.length + 1;
  last.last_length = end - last.start - (last.count - 1) * last.length;
}

// Drops the pages that end at or before `position`.
void DropBefore(FoldedCache& cache, int64_t position) {
  auto& spans = cache.spans;
  const auto kept = std::find_if(spans.begin(), spans.end(),
                                 [&](const PageSpan& span) { return span.end() > position; });
  spans.erase(spans.begin(), kept);
  if (spans.empty() || spans.front().start >= position) return;
  PageSpan& first = spans.front();
  const int64_t dropped = std::min((position - first.start) / first.length, first.count - 1);
  first.first_block += dropped;
  first.start += dropped * first.length;
  first.count -= dropped;
  first.offset += dropped * first.stride;
}

void AddRuns(const Record& record, size_t number, FoldedCache& cache) {
  const CacheEntry& entry = record.index.caches[number];
  int64_t block = 0;
  for (size_t r = 0; r < entry.runs.size(); ++r) {
    const Run& run = entry.runs[r];
    cache.spans.push_back({record.frame.head.number, number, r, block, run.start, run.length,
                           run.count, run.length, record.frame.offset + run.offset,
                           static_cast<uint64_t>(run.stride)});
    block += run.count;
  }
}

void FoldCache(const Record& record, size_t number, FoldedCache& cache) {
  const CacheEntry& entry = record.index.caches[number];
  if (entry.name != cache.name) {
    FailRecord(record, "has the cache " + entry.name + " in place of " + cache.name);
  }
  int64_t cut = record.tokens_before();
  if (!entry.runs.empty()) cut = std::min(cut, entry.runs.front().start);
  Truncate(cache, cut);
  const CacheShape shape{entry.batch, entry.heads, entry.key_width, entry.value_width};
  if (!entry.runs.empty()) {
    if (!cache.empty() && cache.spans.back().end() != entry.runs.front().start) {
      FailRecord(record, "pages of " + cache.name + " are missing before position " +
                             std::to_string(entry.runs.front().start));
    }
    if (!cache.empty() && cache.shape != shape) {
      FailRecord(record, cache.name + " has another shape than in the records before");
    }
    cache.shape = shape;
    AddRuns(record, number, cache);
  }
  DropBefore(cache, entry.start);
  cache.page_size = entry.page_size;
  cache.policy = *PolicyOf(entry);
  // Where a window has moved on, the cache may have no page before the next record.
  const int64_t kept_from = cache.empty() ? record.tokens_after() : cache.start();
  if (kept_from > entry.start ||
      (!cache.empty() && cache.spans.back().end() != record.tokens_after())) {
    FailRecord(record, "pages of " + cache.name + " are missing");
  }
}

void FoldTokens(const Record& record, std::vector<TokenSpan>& tokens) {
  const int64_t before = record.tokens_before(), after = record.tokens_after();
  while (!tokens.empty() && tokens.back().first >= before) tokens.pop_back();
  if (!tokens.empty()) tokens.back().last = std::min(tokens.back().last, before);
  if (record.index.Find(kTokensExtent) != nullptr) {
    tokens.push_back({record.frame.head.number, before, after});
  }
}

// Whether the spans are all of [0, end). An empty snapshot may have ids, too: none.
bool Cover(const std::vector<TokenSpan>& tokens, int64_t end) {
  int64_t position = 0;
  for (const TokenSpan& span : tokens) {
    if (span.first != position) return false;
    position = span.last;
  }
  return !tokens.empty() && position == end;
}

// The entries of all records; a key that comes again keeps its place and takes the later value.
KeyValues FoldEntries(const std::vector<Record>& records, KeyValues Record::*entries) {
  KeyValues folded;
  std::unordered_map<std::string_view, size_t> places;
  for (const Record& record : records) {
    for (const auto& [key, value] : record.*entries) {
      const auto [place, is_new] = places.emplace(key, folded.size());
      if (is_new) {
        folded.emplace_back(key, value);
      } else {
        folded[place->second].second = value;
      }
    }
  }
  return folded;
}

std::vector<FoldedCache> NamesOf(const Record& record) {
  std::vector<FoldedCache> caches;
  std::unordered_set<std::string_view> names;
  for (const CacheEntry& entry : record.index.caches) {
    if (!names.insert(entry.name).second) {
      FailRecord(record, "two caches have the name " + entry.name);
    }
    caches.emplace_back().name = entry.name;
  }
  return caches;
}

}  // namespace

Folded Fold(const std::vector<Record>& records) {
  Folded folded;
  folded.caches = NamesOf(records.front());
  std::vector<TokenSpan> tokens;
  for (const Record& record : records) {
    if (record.tokens_before() > folded.end) {
      FailRecord(record, "begins at position " + std::to_string(record.tokens_before()) +
                             ", the records before end at " + std::to_string(folded.end));
    }
    if (record.index.caches.size() != folded.caches.size()) {
      FailRecord(record, "does not name the caches of the records before");
    }
    for (size_t i = 0; i < folded.caches.size(); ++i) FoldCache(record, i, folded.caches[i]);
    FoldTokens(record, tokens);
    folded.end = record.tokens_after();
  }
  if (Cover(tokens, folded.end)) folded.tokens = std::move(tokens);
  folded.identity = FoldEntries(records, &Record::identity);
  folded.metadata = FoldEntries(records, &Record::metadata);
  return folded;
}

}  // namespace onnx_light::snapshot
