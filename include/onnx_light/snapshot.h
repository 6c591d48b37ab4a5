// Reading a snapshot file: docs/snapshot_format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "onnx_light/bytes.h"
#include "onnx_light/cache.h"
#include "onnx_light/export.h"
#include "onnx_light/messages.h"
#include "onnx_light/snapshot_content.h"
#include "onnx_light/snapshot_report.h"
#include "onnx_light/snapshot_writer.h"

namespace onnx_light {

struct OpenOptions {
  // Checks every byte now, instead of each part at its first use.
  bool verify_all = false;
  // Opens what comes before the tear of a torn file, instead of refusing it.
  bool recover = false;
  // The file's name, for errors.
  std::string name;
};

// The content of a snapshot file. Caches point into the source, nothing is copied. A view: copies
// are cheap and share what has been verified. All functions may be called by several threads at
// once.
//
// Damage is a ValueError: its path is the file's name and the part ("layers.1.blocks[2]"), and its
// message begins with the byte. `snapshot.corrupt`; `snapshot.torn`: an append did not finish;
// `snapshot.rewritten`: another program wrote the message again; `snapshot.version` and
// `snapshot.features`: a later program wrote it; `snapshot.kind`: it is something else.
class ONNX_LIGHT_EXPORT Snapshot {
 public:
  // Reads foot, index and head of each record, the metadata, and no page: O(records + runs of
  // pages). Throws what is said above.
  static Snapshot Open(SharedBytes source, const OpenOptions& options = {});

  // The same for a file, which is mapped. `options.name` is the path unless it is given. Throws
  // SystemError, too, and ValueError `file.not_regular`.
  static Snapshot OpenFile(const std::string& path, OpenOptions options = {});

  int64_t size() const;  // number of caches
  // REQUIRES: 0 <= index < size().
  const std::string& name(int64_t index) const;
  // The index of the cache with that name, or -1. O(caches).
  int64_t Find(std::string_view name) const;

  // The cache, whose pages are verified at the first call, by as many threads as there are cores.
  // It stays valid without the snapshot. REQUIRES: 0 <= index < size().
  PagedCache Cache(int64_t index) const;

  // The ids of [0, end()), verified at the first call; nothing if the file has none.
  std::optional<TokenIds> Tokens() const;

  const KeyValues& identity() const;
  const KeyValues& metadata() const;

  // The first position that some cache keeps, and the position where all end.
  int64_t start() const;
  int64_t end() const;
  int64_t length() const { return end() - start(); }
  uint64_t nbytes() const;  // of the payloads of all caches
  int64_t records() const;

  // The tokens [start, end) of all caches, as PagedCache::Slice. ValueError `snapshot.position`.
  Snapshot Slice(int64_t start, int64_t end) const;

  // Checks every byte of the source, whether or not it has been verified, those of superseded pages
  // too. Finds all problems that do not hide each other.
  SnapshotReport Verify(const ProgressCallback& progress = {}) const;

  // The model that the file is: all records folded into one, without the fields of the format.
  // Verifies everything; payloads are shared with the source.
  void ToModel(Arena& arena, ModelProto& model) const;

 private:
  friend ONNX_LIGHT_EXPORT SnapshotReport VerifySnapshot(SharedBytes source,
                                                         const std::string& name,
                                                         const ProgressCallback& progress);
  struct State;
  Snapshot(std::shared_ptr<const State> state, int64_t start, int64_t end);

  std::shared_ptr<const State> state_;
  int64_t start_, end_;
};

// Checks every byte. What Open() finds, `snapshot.torn` and `snapshot.corrupt`, is in the report;
// that the source is nothing that this program can check is an error, as in Open().
ONNX_LIGHT_EXPORT SnapshotReport VerifySnapshot(SharedBytes source, const std::string& name = "",
                                                const ProgressCallback& progress = {});
ONNX_LIGHT_EXPORT SnapshotReport VerifySnapshotFile(const std::string& path,
                                                    const ProgressCallback& progress = {});

}  // namespace onnx_light
