// What the records of a snapshot will be, before a byte of them is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "onnx_light/snapshot_content.h"
#include "snapshot/format.h"
#include "snapshot/index.h"
#include "snapshot/layout.h"

namespace onnx_light::snapshot {

// One record: the tokens [head.tokens_before, tokens_after) of all caches.
struct RecordPlan {
  Head head;
  int64_t tokens_after = 0;
  std::string catalogue;
  std::string tokens_header;  // empty: no tokens
  Index index;                // all but the checksums
  RecordLayout layout;
  uint64_t index_size = 0;

  int64_t tokens_before() const { return static_cast<int64_t>(head.tokens_before); }
};

// The position where all caches end; 0 if there are none.
int64_t EndOf(const SnapshotContent& content);

// The fields of the extent `model`.
std::string ModelFields(const SnapshotContent& content);

// The record of [first, last); nothing if it would be larger than `max_size`.
std::optional<RecordPlan> PlanRecord(const SnapshotContent& content, const std::string& model,
                                     int64_t first, int64_t last, uint64_t max_size);

// All records, as few as the size allows, but cut between pages of all caches where that is
// possible. Throws ValueError `snapshot.too_large`.
std::vector<RecordPlan> PlanRecords(const SnapshotContent& content, const std::string& model,
                                    uint64_t max_size);

}  // namespace onnx_light::snapshot
