// The check of every byte.
#pragma once

#include <vector>

#include "onnx_light/bytes.h"
#include "onnx_light/snapshot_report.h"
#include "onnx_light/snapshot_writer.h"
#include "snapshot/fold.h"
#include "snapshot/record.h"

namespace onnx_light::snapshot {

// Checks the records, which have been opened. Adds to the report's problems and bytes_checked.
void VerifyRecords(const SharedBytes& source, const std::vector<Record>& records,
                   const Folded& folded, const ProgressCallback& progress, SnapshotReport* report);

}  // namespace onnx_light::snapshot
