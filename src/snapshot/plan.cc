#include "snapshot/plan.h"

#include <utility>

#include "onnx_light/errors.h"
#include "snapshot/fields.h"
#include "snapshot/pieces.h"

namespace onnx_light::snapshot {
namespace {

// Field numbers of ModelProto, OperatorSetIdProto, StringStringEntryProto and GraphProto.
constexpr uint32_t kIrVersion = 1, kProducerName = 2, kOpsetImport = 8, kMetadataProps = 14;
constexpr uint32_t kOpsetDomain = 1, kOpsetVersion = 2, kEntryKey = 1, kEntryValue = 2;
constexpr uint32_t kGraphNameField = 2;

// The oldest revisions that have all data types of a page, so that old readers load the file.
constexpr uint64_t kIrVersionNumber = 10, kOpsetVersionNumber = 21;

void PutEntry(std::string& out, const std::string& key, const std::string& value) {
  std::string entry;
  PutText(entry, kEntryKey, key);
  PutText(entry, kEntryValue, value);
  PutText(out, kMetadataProps, entry);
}

bool Continues(const Run& run, const BlockForm& form, const BlockForm& next, int64_t start) {
  return form == next && run.start + run.length * run.count == start;
}

CacheEntry PlanCache(const NamedCache& named, int64_t first, int64_t last) {
  const PagedCache& cache = named.cache;
  CacheEntry entry;
  entry.name = named.name;
  entry.start = cache.start();
  entry.page_size = cache.page_size();
  if (cache.policy() != CachePolicy()) entry.policy = cache.policy().Text();
  BlockForm form;
  int64_t blocks = 0;
  ForEachPiece(cache, first, last, [&](const Piece& piece) {
    const BlockForm next = piece.form();
    if (blocks == 0 || !Continues(entry.runs.back(), form, next, piece.start())) {
      form = next;
      entry.runs.push_back({piece.start(), form.length, form.capacity, FormText(form.key),
                            FormText(form.value), 0, 0, 0});
    }
    ++entry.runs.back().count;
    ++blocks;
  });
  entry.checksums.resize(blocks);
  if (blocks == 0) return entry;
  const CacheShape& shape = cache.shape();
  entry.batch = shape.batch;
  entry.heads = shape.heads;
  entry.key_width = shape.key_width;
  entry.value_width = shape.value_width;
  return entry;
}

void FillInOffsets(const RecordLayout& layout, Index* index) {
  for (size_t c = 0; c < index->caches.size(); ++c) {
    std::vector<Run>& runs = index->caches[c].runs;
    for (size_t r = 0; r < runs.size(); ++r) {
      runs[r].offset = static_cast<int64_t>(layout.caches[c].offsets[r]);
      runs[r].stride = static_cast<int64_t>(layout.caches[c].blocks[r].size);
    }
  }
}

Extent ExtentAt(std::string_view name, uint64_t offset, uint64_t length) {
  return {std::string(name), static_cast<int64_t>(offset), static_cast<int64_t>(length), 0};
}

// The largest position up to `position` that lies inside no page of any cache.
int64_t BorderBefore(const SnapshotContent& content, int64_t position) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const NamedCache& named : content.caches) {
      const PagedCache& cache = named.cache;
      if (position <= cache.start() || position >= cache.end()) continue;
      const int64_t border = cache.pages()[cache.FindPage(position)].start;
      moved = moved || border != position;
      position = border;
    }
  }
  return position;
}

// The record that begins at `first` and takes as much as fits.
RecordPlan LargestRecord(const SnapshotContent& content, const std::string& model, int64_t first,
                         uint64_t max_size) {
  const int64_t end = EndOf(content);
  if (auto all = PlanRecord(content, model, first, end, max_size)) return *std::move(all);
  int64_t fits = first, too_far = end;
  while (too_far - fits > 1) {
    const int64_t middle = fits + (too_far - fits) / 2;
    (PlanRecord(content, model, first, middle, max_size) ? fits : too_far) = middle;
  }
  for (int64_t last : {BorderBefore(content, fits), fits}) {
    if (last <= first) continue;
    if (auto part = PlanRecord(content, model, first, last, max_size)) return *std::move(part);
  }
  throw ValueError("snapshot.too_large", "caches",
                   "the token at position " + std::to_string(first) +
                       " of all caches, with the metadata, does not fit a record of " +
                       std::to_string(max_size) + " bytes");
}

}  // namespace

int64_t EndOf(const SnapshotContent& content) {
  return content.caches.empty() ? 0 : content.caches.front().cache.end();
}

std::string ModelFields(const SnapshotContent& content) {
  std::string fields;
  PutNumber(fields, kIrVersion, kIrVersionNumber);
  PutText(fields, kProducerName, "onnx_light");
  std::string opset;
  PutText(opset, kOpsetDomain, "");
  PutNumber(opset, kOpsetVersion, kOpsetVersionNumber);
  PutText(fields, kOpsetImport, opset);
  for (const auto& [field, value] : content.identity) {
    PutEntry(fields, std::string(kIdentityPrefix) + field, value);
  }
  for (const auto& [key, value] : content.metadata) PutEntry(fields, key, value);
  return fields;
}

std::optional<RecordPlan> PlanRecord(const SnapshotContent& content, const std::string& model,
                                     int64_t first, int64_t last, uint64_t max_size) {
  RecordPlan plan;
  plan.head.tokens_before = first;
  plan.tokens_after = last;
  PutText(plan.catalogue, kGraphNameField, kGraphName);
  const uint64_t catalogue_offset = kHeadSize + model.size() + 1 + kPaddedSize;
  const uint64_t tokens_offset = catalogue_offset + plan.catalogue.size();
  uint64_t tokens_size = 0;
  if (content.tokens) {
    const auto header = TokensHeader(tokens_offset, content.tokens->batch, last - first);
    if (!header) return std::nullopt;
    plan.tokens_header = *header;
    tokens_size = header->size() + std::max<int64_t>(content.tokens->batch, 1) * (last - first) * 8;
  }
  for (const NamedCache& named : content.caches) {
    plan.index.caches.push_back(PlanCache(named, first, last));
  }
  auto layout = LayOutRecord(plan.index, model.size(), plan.catalogue.size(), tokens_size);
  if (!layout) return std::nullopt;
  plan.layout = *std::move(layout);
  FillInOffsets(plan.layout, &plan.index);
  plan.index.extents.push_back(ExtentAt(kModelExtent, kHeadSize, model.size()));
  plan.index.extents.push_back(ExtentAt(kCatalogueExtent, catalogue_offset, plan.catalogue.size()));
  if (content.tokens) {
    plan.index.extents.push_back(ExtentAt(kTokensExtent, tokens_offset, tokens_size));
  }
  plan.index_size = EncodeIndex(plan.index).size();
  plan.head.byte_length = plan.layout.graph_end + FillerBeforeIndex(plan.layout, plan.index_size) +
                          plan.index_size + kFootSize;
  if (plan.head.byte_length > max_size) return std::nullopt;
  return plan;
}

std::vector<RecordPlan> PlanRecords(const SnapshotContent& content, const std::string& model,
                                    uint64_t max_size) {
  std::vector<RecordPlan> plans;
  int64_t first = 0;
  do {
    plans.push_back(LargestRecord(content, model, first, max_size));
    plans.back().head.number = static_cast<uint32_t>(plans.size() - 1);
    first = plans.back().tokens_after;
  } while (first < EndOf(content));
  return plans;
}

}  // namespace onnx_light::snapshot
