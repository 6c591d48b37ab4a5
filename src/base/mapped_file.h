// Whole files, or ranges of them, as shared bytes: mapped or read.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_light/bytes.h"

namespace onnx_light {

// All functions here take regular files only and throw
//   ValueError   `file.not_regular`; `file.path`; `file.range` (the range is not inside the file);
//                `file.changed` (the file shrank or grew while it was read)
//   SystemError  EISDIR for a folder, and whatever else the system says.
// An empty file or range gives bytes without an owner.

// Maps a file read-only; the mapping goes with the last reference. Pages are shared with all other
// readers of the file and come in when they are touched. Whoever truncates the file while it is
// mapped takes the bytes away: touching them is then SIGBUS. This library replaces files by rename
// and appends, and never truncates mapped bytes.
SharedBytes MapFile(const std::string& path);

// Maps the bytes [offset, offset + length) of the file that is open as `fd`. The descriptor may be
// closed afterwards. `offset` need not be aligned. `name` is for error messages.
SharedBytes MapFile(int fd, uint64_t offset, uint64_t length, const std::string& name);

// Reads a file into heap memory: for file systems where mapping is slow or impossible, and for
// files that may be truncated.
SharedBytes ReadFile(const std::string& path);

// Reads the bytes [offset, offset + length) of the file that is open as `fd`; its position stays.
SharedBytes ReadFile(int fd, uint64_t offset, uint64_t length, const std::string& name);

}  // namespace onnx_light
