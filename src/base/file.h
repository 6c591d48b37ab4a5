// File descriptors, and what the rest of base/ does with them. `name` is always the file's name in
// error messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "onnx_light/interrupt.h"

namespace onnx_light {

// The owner of an open file descriptor, or none. The destructor leaves errno alone and does not
// report errors of close; who writes calls Close.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }  // -1: none
  explicit operator bool() const { return fd_ >= 0; }
  // Closes now. Throws SystemError if the system reports a write that failed late.
  void Close(const std::string& name);

 private:
  int fd_ = -1;
};

// A path cut at its last slash: "a/b" is {"a", "b"}, "b" is {".", "b"}, "/b" is {"/", "b"}.
struct PathParts {
  std::string folder;
  std::string name;  // empty if the path ends with a slash
};
PathParts SplitPath(const std::string& path);

// Opens a regular file for reading, following links. Never waits: neither for the other end of a
// FIFO nor for a device. Throws SystemError (EISDIR for a folder), and ValueError
// `file.not_regular` or `file.path` (a NUL byte in the path).
FileDescriptor OpenForReading(const std::string& path);

// Opens a folder as a starting point for *at calls. Needs no read permission.
FileDescriptor OpenFolder(const std::string& path);

// The size of the regular file that is open as `fd`. Throws SystemError and ValueError
// `file.not_regular`.
uint64_t RegularFileSize(int fd, const std::string& name);

// Writes all bytes of all parts at the descriptor's position, however many calls it takes; waits
// where a descriptor is non-blocking. Throws SystemError, after which an unknown part is written.
// The signals SIGPIPE and SIGXFSZ are the process's own affair (Python ignores both). `interrupt`
// is called after every signal that ends a call early and every 64 MiB; what it throws ends the
// writing.
void WriteAll(int fd, std::span<const std::span<const std::byte>> parts, const std::string& name,
              const Interrupt& interrupt = {});
void WriteAll(int fd, std::span<const std::byte> bytes, const std::string& name);

// Brings the names in a folder that is open for reading to the disk. Returns 0 or an errno; file
// systems whose folders need no sync are no error.
int SyncFolder(int fd);

// Throws ValueError `file.path` if the path has a NUL byte, at which the system would cut it.
void CheckPath(const std::string& path);

}  // namespace onnx_light
