#include "snapshot/record.h"

#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "onnx_light/errors.h"
#include "onnx_light/messages.h"
#include "onnx_light/serialization.h"
#include "snapshot/check_content.h"
#include "snapshot/failure.h"
#include "snapshot/fields.h"

namespace onnx_light::snapshot {
namespace {

// Reads what a record has to say of itself.
class RecordReader {
 public:
  RecordReader(std::span<const std::byte> file, const Frame& frame) {
    record_.frame = frame;
    record_.bytes = file.subspan(frame.offset, frame.head.byte_length);
  }

  Record Read() {
    ReadIndex();
    CheckFeatures();
    CheckPositions();
    for (const CacheEntry& cache : record_.index.caches) CheckCache(cache);
    CheckLayout();
    CheckExtent(record_, *record_.index.Find(kModelExtent));
    CheckExtent(record_, *record_.index.Find(kCatalogueExtent));
    ReadModel();
    ReadCatalogue();
    return std::move(record_);
  }

 private:
  [[noreturn]] void FailIndex(const std::string& message) const {
    FailCorrupt(record_.place() + ".index", record_.frame.offset + record_.index_offset(), message);
  }

  void ReadIndex() {
    const Foot& foot = record_.frame.foot;
    const auto bytes = record_.bytes.subspan(record_.index_offset(), foot.index_size);
    if (Checksum(bytes) != foot.index_checksum) FailIndex("the checksum of the index differs");
    record_.index = DecodeIndex(bytes, record_.frame.offset + record_.index_offset(),
                                record_.place() + ".index");
  }

  [[noreturn]] void FailFeature(const std::string& what) const {
    Fail("snapshot.features", record_.place() + ".index",
         record_.frame.offset + record_.index_offset(),
         what + " is unknown to this version of the program");
  }

  void CheckFeatures() const {
    for (const std::string& feature : record_.index.required_features) {
      FailFeature("the required feature " + feature);
    }
    for (const CacheEntry& cache : record_.index.caches) {
      if (!PolicyOf(cache)) FailFeature("the policy " + cache.policy + " of " + cache.name);
      for (const Run& run : cache.runs) {
        if (!ParseForm(run.key_format)) FailFeature("the page format " + run.key_format);
        if (!ParseForm(run.value_format)) FailFeature("the page format " + run.value_format);
      }
    }
  }

  void CheckPositions() const {
    const Frame& frame = record_.frame;
    if (frame.head.tokens_before <= frame.foot.tokens_after &&
        frame.foot.tokens_after <= kMaxPadded) {
      return;
    }
    FailIndex("the tokens " + std::to_string(frame.head.tokens_before) + " to " +
              std::to_string(frame.foot.tokens_after) + " are no range");
  }

  // That the runs follow each other to the record's end. Sums stay far below 2^63: positions are
  // checked against tokens_after before they are added to.
  void CheckCache(const CacheEntry& cache) const {
    if (cache.page_size <= 0) FailIndex(cache.name + " has no page size");
    if (cache.runs.empty()) {
      if (!cache.checksums.empty()) FailIndex(cache.name + " has checksums, but no pages");
      return;
    }
    const int64_t end = record_.tokens_after();
    int64_t position = cache.runs.front().start, count = 0;
    const auto pages = static_cast<int64_t>(cache.checksums.size());
    for (const Run& run : cache.runs) {
      if (run.start != position || run.length <= 0 || run.length > run.capacity || run.count <= 0 ||
          run.count > pages - count || run.start > end || run.length > end - run.start ||
          run.count > (end - run.start) / run.length) {
        FailIndex("the pages of " + cache.name + " from position " + std::to_string(run.start) +
                  " on do not fit the others");
      }
      position += run.length * run.count;
      count += run.count;
    }
    if (count != pages) FailIndex(cache.name + " has more checksums than pages");
    if (position != end) {
      FailIndex(cache.name + " ends at position " + std::to_string(position) + ", the record at " +
                std::to_string(end));
    }
  }

  // Compares all offsets with those that follow from the sizes.
  void CheckLayout() {
    const Index& index = record_.index;
    const Extent* model = index.Find(kModelExtent);
    const Extent* catalogue = index.Find(kCatalogueExtent);
    const Extent* tokens = index.Find(kTokensExtent);
    if (model == nullptr || catalogue == nullptr ||
        index.extents.size() != (tokens == nullptr ? 2 : 3)) {
      FailIndex("the extents are not model, catalogue and at most tokens");
    }
    auto layout = LayOutRecord(index, model->length, catalogue->length,
                               tokens == nullptr ? 0 : tokens->length);
    if (!layout || !Fits(*layout)) FailIndex("the sizes do not add up to the record");
    record_.layout = *std::move(layout);
    if (model->offset != static_cast<int64_t>(kHeadSize) ||
        catalogue->offset != static_cast<int64_t>(record_.layout.catalogue_offset) ||
        (tokens != nullptr &&
         tokens->offset != static_cast<int64_t>(record_.layout.tokens_offset))) {
      FailIndex("an extent does not lie where it must");
    }
    for (size_t c = 0; c < index.caches.size(); ++c) CheckOffsets(c);
  }

  bool Fits(const RecordLayout& layout) const {
    const uint64_t index_size = record_.frame.foot.index_size;
    return layout.graph_end + FillerBeforeIndex(layout, index_size) == record_.index_offset();
  }

  void CheckOffsets(size_t number) const {
    const CacheEntry& cache = record_.index.caches[number];
    const CacheLayout& layout = record_.layout.caches[number];
    for (size_t r = 0; r < cache.runs.size(); ++r) {
      if (static_cast<uint64_t>(cache.runs[r].offset) == layout.offsets[r] &&
          static_cast<uint64_t>(cache.runs[r].stride) == layout.blocks[r].size) {
        continue;
      }
      FailIndex("the pages of " + cache.name + " from position " +
                std::to_string(cache.runs[r].start) + " on do not lie where they must");
    }
  }

  // Parses an extent as a message of class M, which refers to the file.
  template <typename M>
  void ParseExtent(std::string_view name, Owned<M>* message) const {
    const Extent& extent = *record_.index.Find(name);
    try {
      Parse(message->arena(), M::kInfo, **message, {record_.Part(extent), BufferRef()});
    } catch (const ParseError& error) {
      FailCorrupt(record_.place() + "." + std::string(name),
                  record_.frame.offset + extent.offset + error.offset(), error.message());
    }
  }

  void ReadModel() {
    Owned<ModelProto> model;
    ParseExtent(kModelExtent, &model);
    if (model->has_graph() || !UnknownFields(*model).empty()) {
      FailIndex("the extent model has fields that belong elsewhere");
    }
    for (const StringStringEntryProto* entry : model->metadata_props()) {
      const std::string_view key = entry->key();
      if (!IsUtf8(key) || !IsUtf8(entry->value())) FailIndex("metadata that is no UTF-8");
      const bool identity = key.starts_with(kIdentityPrefix);
      if (!identity && key.starts_with(kReservedPrefix)) continue;  // of a later program
      (identity ? record_.identity : record_.metadata)
          .emplace_back(key.substr(identity ? kIdentityPrefix.size() : 0), entry->value());
    }
  }

  void ReadCatalogue() const {
    Owned<GraphProto> graph;
    ParseExtent(kCatalogueExtent, &graph);
    if (graph->has_paged_cache_initializer() || !UnknownFields(*graph).empty()) {
      FailIndex("the extent catalogue has fields that belong elsewhere");
    }
  }

  Record record_;
};

}  // namespace

Record ReadRecord(std::span<const std::byte> file, const Frame& frame) {
  return RecordReader(file, frame).Read();
}

void CheckExtent(const Record& record, const Extent& extent) {
  if (Checksum(record.Part(extent)) == extent.checksum) return;
  FailCorrupt(record.place() + "." + extent.name, record.frame.offset + extent.offset,
              "the checksum of the extent " + extent.name + " differs");
}

}  // namespace onnx_light::snapshot
