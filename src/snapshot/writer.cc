#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "onnx_light/errors.h"
#include "onnx_light/snapshot_writer.h"
#include "snapshot/check_content.h"
#include "snapshot/format.h"
#include "snapshot/part_writer.h"
#include "snapshot/plan.h"
#include "snapshot/record_writer.h"

namespace onnx_light {

struct SnapshotWriter::State {
  SnapshotContent content;
  std::string model;
  std::vector<snapshot::RecordPlan> records;
  uint64_t size = 0;

  // Tells how far the writing is, every few MiB and at the end.
  class Progress {
   public:
    Progress(const ProgressCallback& callback, uint64_t total)
        : callback_(callback), total_(total) {}
    void Add(uint64_t bytes) {
      done_ += bytes;
      if (!callback_ || (done_ < next_ && done_ < total_)) return;
      next_ = done_ + kStep;
      callback_(done_, total_);
    }

   private:
    static constexpr uint64_t kStep = 8 << 20;
    const ProgressCallback& callback_;
    const uint64_t total_;
    uint64_t done_ = 0;
    uint64_t next_ = kStep;
  };

  void Write(snapshot::PartWriter& out) const {
    for (const snapshot::RecordPlan& plan : records) WriteRecord(plan, model, content, out);
  }
};

SnapshotWriter::SnapshotWriter(SnapshotContent content, const SnapshotWriterOptions& options)
    : state_(std::make_unique<State>()) {
  snapshot::CheckContent(content);
  state_->content = std::move(content);
  state_->model = snapshot::ModelFields(state_->content);
  state_->records = snapshot::PlanRecords(
      state_->content, state_->model, std::min(options.max_record_size, snapshot::kMaxRecordSize));
  for (const auto& plan : state_->records) state_->size += plan.head.byte_length;
}

SnapshotWriter::~SnapshotWriter() = default;

uint64_t SnapshotWriter::size() const { return state_->size; }
int64_t SnapshotWriter::records() const { return static_cast<int64_t>(state_->records.size()); }

void SnapshotWriter::WriteTo(std::span<std::byte> output, const ProgressCallback& progress) const {
  std::byte* at = output.data();
  State::Progress told(progress, size());
  snapshot::PartWriter out([&](snapshot::PartWriter::Parts parts) {
    const std::byte* before = at;
    for (const auto part : parts) {
      std::memcpy(at, part.data(), part.size());
      at += part.size();
    }
    told.Add(at - before);
  });
  state_->Write(out);
}

void SnapshotWriter::WriteToFile(const std::string& path, bool overwrite, bool sync,
                                 const ProgressCallback& progress) const {
  AtomicFile file(path, overwrite);
  State::Progress told(progress, size());
  snapshot::PartWriter out([&](snapshot::PartWriter::Parts parts) {
    const uint64_t before = file.bytes_written();
    file.Write(parts);
    told.Add(file.bytes_written() - before);
  });
  state_->Write(out);
  file.Commit(sync);
}

}  // namespace onnx_light
