// Writes one record in one pass.
#pragma once

#include <string>

#include "onnx_light/snapshot_content.h"
#include "snapshot/part_writer.h"
#include "snapshot/plan.h"

namespace onnx_light::snapshot {

// Writes the record to `out` and flushes it. `model` is what the plan was made with.
void WriteRecord(const RecordPlan& plan, const std::string& model, const SnapshotContent& content,
                 PartWriter& out);

}  // namespace onnx_light::snapshot
