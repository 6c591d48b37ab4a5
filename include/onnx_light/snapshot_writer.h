// Writing caches, with their tokens and metadata, to a snapshot file: docs/snapshot_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "onnx_light/export.h"
#include "onnx_light/snapshot_content.h"

namespace onnx_light {

// Called on the thread that writes, now and then and at the end. What it throws ends the writing.
using ProgressCallback = std::function<void(uint64_t done, uint64_t total)>;

struct SnapshotWriterOptions {
  // Records are cut so that none is larger: a reader that parses record by record needs as much
  // memory. At most 1 GiB.
  uint64_t max_record_size = uint64_t{1} << 30;
};

// A snapshot measured for writing. Equal content gives equal bytes.
class ONNX_LIGHT_EXPORT SnapshotWriter {
 public:
  // Throws ValueError, with the cache's name or the argument as path: `snapshot.name` (empty, no
  // UTF-8, not unique, or reserved: beginning with "onnx_light."), `snapshot.end` (all caches end
  // at one position), `snapshot.tokens` (ids that do not cover [0, end), or another batch than the
  // caches'), `snapshot.metadata` (a key that is reserved, given twice, or no UTF-8),
  // `snapshot.too_large` (a position over 2^35, or a token that fits no record). O(pages).
  explicit SnapshotWriter(SnapshotContent content, const SnapshotWriterOptions& options = {});
  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  uint64_t size() const;  // of the file, in bytes
  int64_t records() const;

  // Writes all bytes. Payloads go out from where they lie; checksums of pages that have none yet
  // are computed on the way and kept with the pages. REQUIRES: output.size() == size().
  void WriteTo(std::span<std::byte> output, const ProgressCallback& progress = {}) const;

  // Writes a file that appears whole or not at all, see AtomicFile. Without `overwrite` a file that
  // exists is SystemError EEXIST. With `sync` the file is on the disk when this returns.
  void WriteToFile(const std::string& path, bool overwrite = true, bool sync = true,
                   const ProgressCallback& progress = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onnx_light
