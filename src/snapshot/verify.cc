#include "snapshot/verify.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/checksum.h"
#include "base/threads.h"
#include "snapshot/blocks.h"
#include "snapshot/failure.h"
#include "snapshot/fields.h"
#include "snapshot/part_writer.h"
#include "snapshot/tokens.h"

namespace onnx_light::snapshot {
namespace {

class Verifier {
 public:
  Verifier(const SharedBytes& source, const std::vector<Record>& records, const Folded& folded,
           const ProgressCallback& progress, SnapshotReport* report)
      : source_(source), records_(records), folded_(folded), progress_(progress), report_(report) {
    for (const Record& record : records) total_ += record.bytes.size();
  }

  void Verify() {
    for (const Record& record : records_) {
      Collect([&] { CheckFrame(record); });
      for (const Extent& extent : record.index.extents) {
        if (extent.name == kTokensExtent) {
          Collect([&] { ReadRecordTokens(source_, record); });
        } else {
          Collect([&] { CheckExtent(record, extent); });
        }
      }
      Collect([&] { CheckRest(record); });
      CheckBlocks(record);
      done_ += record.bytes.size();
      if (progress_) progress_(done_, total_);
    }
    auto& problems = report_->problems;
    std::stable_sort(problems.begin(), problems.end(),
                     [](const auto& a, const auto& b) { return a.offset < b.offset; });
    report_->bytes_checked += total_;
  }

 private:
  template <typename F>
  void Collect(F check) {
    try {
      check();
    } catch (const Failure& failure) {
      report_->problems.push_back(failure.problem());
    }
  }

  // Head, foot and index once more: the source may have changed since it was opened.
  void CheckFrame(const Record& record) const {
    const auto bytes = record.bytes;
    const uint64_t offset = record.frame.offset;
    if (!DecodeHead(bytes.first(kHeadSize))) {
      FailCorrupt(record.place() + ".head", offset, "the head is damaged");
    }
    if (!DecodeFoot(bytes.last(kFootSize))) {
      FailCorrupt(record.place() + ".foot", offset + bytes.size() - kFootSize,
                  "the foot is damaged");
    }
    const auto index = bytes.subspan(record.index_offset(), record.frame.foot.index_size);
    if (Checksum(index) != record.frame.foot.index_checksum) {
      FailCorrupt(record.place() + ".index", offset + record.index_offset(),
                  "the checksum of the index differs");
    }
  }

  // The bytes between the parts, all of which follow from the index.
  void CheckRest(const Record& record) const {
    StreamingChecksum checksum;
    const auto check = [&](uint64_t offset, const std::string& expected) {
      const auto bytes = record.bytes.subspan(offset, expected.size());
      checksum.Update(bytes);
      if (std::memcmp(bytes.data(), expected.data(), expected.size()) == 0) return;
      FailCorrupt(record.place(), record.frame.offset + offset,
                  "the fields between the parts are not what the index says");
    };
    const RecordLayout& layout = record.layout;
    check(layout.graph_offset, layout.graph_header);
    for (const CacheLayout& cache : layout.caches) check(cache.offset, cache.header);
    std::string filler;
    PutFiller(filler, record.index_offset() - layout.graph_end);
    check(layout.graph_end, filler);
    if (checksum.Digest() != record.frame.foot.rest_checksum) {
      FailCorrupt(record.place() + ".foot", record.frame.offset + record.bytes.size() - kFootSize,
                  "the checksum of the bytes between the parts differs");
    }
  }

  void CheckBlocks(const Record& record) {
    std::vector<BlockRange> parts;
    for (size_t c = 0; c < record.index.caches.size(); ++c) {
      const CacheEntry& entry = record.index.caches[c];
      int64_t block = 0;
      for (size_t r = 0; r < entry.runs.size(); ++r) {
        ForEachPart({&record, c, r, 0, entry.runs[r].count, block},
                    [&](const BlockRange& part) { parts.push_back(part); });
        block += entry.runs[r].count;
      }
    }
    // Not all at once, so that progress is told on the calling thread.
    constexpr size_t kAtOnce = 16;
    for (size_t i = 0; i < parts.size(); i += kAtOnce) {
      const size_t count = std::min(kAtOnce, parts.size() - i);
      ParallelFor(count == 1 ? 1 : -1, count, [&](uint64_t n) { CheckPart(parts[i + n]); });
      const BlockRange& last = parts[i + count - 1];
      if (progress_) progress_(done_ + last.offset(last.count), total_);
    }
  }

  void CheckPart(const BlockRange& part) {
    BlockText text(part.layout());
    for (int64_t i = 0; i < part.count; ++i) {
      const std::string damage = DamageOf(part, i, text);
      if (damage.empty()) continue;
      const std::scoped_lock lock(mutex_);
      report_->problems.push_back(ProblemOf(part, i, damage));
    }
  }

  SnapshotProblem ProblemOf(const BlockRange& part, int64_t i, const std::string& damage) const {
    const uint64_t offset = part.record->frame.offset + part.offset(i);
    const std::string& layer = part.entry().name;
    const int64_t page = PageAt(folded_.caches[part.cache], offset);
    if (page >= 0) {
      return {"snapshot.corrupt",
              layer + ".blocks[" + std::to_string(page) + "]",
              AtByte(offset, damage),
              layer,
              page,
              offset};
    }
    return {"snapshot.corrupt",
            part.record->place() + "." + layer,
            AtByte(offset, damage + "; a later record supersedes it"),
            layer,
            -1,
            offset};
  }

  // The index of the page whose block begins there; -1 if it does not count any more.
  static int64_t PageAt(const FoldedCache& cache, uint64_t offset) {
    int64_t page = 0;
    for (const PageSpan& span : cache.spans) {
      if (offset >= span.offset &&
          (offset - span.offset) / span.stride < static_cast<uint64_t>(span.count)) {
        return page + static_cast<int64_t>((offset - span.offset) / span.stride);
      }
      page += span.count;
    }
    return -1;
  }

  const SharedBytes& source_;
  const std::vector<Record>& records_;
  const Folded& folded_;
  const ProgressCallback& progress_;
  SnapshotReport* const report_;
  std::mutex mutex_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

void VerifyRecords(const SharedBytes& source, const std::vector<Record>& records,
                   const Folded& folded, const ProgressCallback& progress, SnapshotReport* report) {
  Verifier(source, records, folded, progress, report).Verify();
}

}  // namespace onnx_light::snapshot
