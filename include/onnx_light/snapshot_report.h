// What a check of a snapshot file found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onnx_light {

struct SnapshotProblem {
  std::string code;     // as those of errors: "snapshot.corrupt"
  std::string path;     // "layers.1.blocks[2]", "record[0].index"
  std::string message;  // begins with "byte <offset>: "
  std::string layer;    // the cache's name, or empty
  int64_t page = -1;    // its index in that cache; -1: none, or one that is superseded
  uint64_t offset = 0;  // the first byte in the file of the part that is damaged
};

struct SnapshotReport {
  bool ok() const { return problems.empty(); }

  int64_t length = 0;  // tokens
  int64_t records = 0;
  std::vector<SnapshotProblem> problems;  // in the order of the file
  uint64_t bytes_checked = 0;
};

}  // namespace onnx_light
