#include "base/file.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

// Linux moves at most 2 GiB - 4 KiB a call and lets no signal in between; with pieces of this size
// an interrupted writer stops soon.
constexpr size_t kLargestPiece = size_t{64} << 20;

// The place in a list of parts up to which everything is written.
class Cursor {
 public:
  explicit Cursor(std::span<const std::span<const std::byte>> parts) : parts_(parts) { Skip(); }

  bool done() const { return part_ == parts_.size(); }

  // Describes the bytes that come next, as many as one call takes, and says how many there are.
  size_t Fill(std::array<iovec, IOV_MAX>& vectors, int& count) const {
    size_t total = 0;
    size_t offset = offset_;
    count = 0;
    for (size_t i = part_; i < parts_.size() && count < IOV_MAX && total < kLargestPiece; ++i) {
      const auto rest = parts_[i].subspan(offset);
      const size_t size = std::min(rest.size(), kLargestPiece - total);
      vectors[static_cast<size_t>(count++)] = {const_cast<std::byte*>(rest.data()), size};
      total += size;
      offset = 0;
    }
    return total;
  }

  void Advance(size_t written) {
    while (written > 0) {
      const size_t step = std::min(written, parts_[part_].size() - offset_);
      offset_ += step;
      written -= step;
      Skip();
    }
  }

 private:
  // Steps over finished and empty parts.
  void Skip() {
    while (part_ < parts_.size() && offset_ == parts_[part_].size()) {
      ++part_;
      offset_ = 0;
    }
  }

  std::span<const std::span<const std::byte>> parts_;
  size_t part_ = 0;
  size_t offset_ = 0;
};

// Whether no signal ended the wait.
bool WaitUntilWritable(int fd, const std::string& name) {
  pollfd poll_fd{fd, POLLOUT, 0};
  if (poll(&poll_fd, 1, -1) >= 0) return true;
  if (errno != EINTR) throw SystemError(errno, name, "poll");
  return false;
}

// Gives the caller's interrupt its turns.
class Turns {
 public:
  explicit Turns(const Interrupt& interrupt) : interrupt_(interrupt) {}

  void Wrote(size_t bytes) {
    bytes_ += bytes;
    if (bytes_ >= kLargestPiece) Signal();
  }
  void Signal() {
    bytes_ = 0;
    if (interrupt_) interrupt_();
  }

 private:
  const Interrupt& interrupt_;
  size_t bytes_ = 0;
};

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ < 0) return;
  const int error = errno;  // of a call before, which the owner may yet ask for
  close(fd_);
  errno = error;
}

void FileDescriptor::Close(const std::string& name) {
  // After EINTR Linux has closed the descriptor; a second try could close somebody else's.
  if (close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    throw SystemError(errno, name, "close");
  }
}

PathParts SplitPath(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

void CheckPath(const std::string& path) {
  const size_t nul = path.find('\0');
  if (nul == std::string::npos) return;
  throw ValueError("file.path", path.substr(0, nul),
                   "the path has a NUL byte at position " + std::to_string(nul));
}

FileDescriptor OpenForReading(const std::string& path) {
  CheckPath(path);
  int fd;
  do {
    fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0 && errno == ENXIO) {  // a socket, or a device that nothing drives
    throw ValueError("file.not_regular", path, "not a regular file");
  }
  if (fd < 0) throw SystemError(errno, path, "open");
  FileDescriptor file(fd);
  RegularFileSize(fd, path);
  return file;
}

FileDescriptor OpenFolder(const std::string& path) {
  CheckPath(path);
  const int fd = open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw SystemError(errno, path, "open folder");
  return FileDescriptor(fd);
}

uint64_t RegularFileSize(int fd, const std::string& name) {
  struct stat status;
  if (fstat(fd, &status) != 0) throw SystemError(errno, name, "fstat");
  if (S_ISDIR(status.st_mode)) throw SystemError(EISDIR, name, "open");
  if (!S_ISREG(status.st_mode)) throw ValueError("file.not_regular", name, "not a regular file");
  return static_cast<uint64_t>(status.st_size);
}

void WriteAll(int fd, std::span<const std::span<const std::byte>> parts, const std::string& name,
              const Interrupt& interrupt) {
  std::array<iovec, IOV_MAX> vectors;
  Turns turns(interrupt);
  for (Cursor cursor(parts); !cursor.done();) {
    int count;
    const size_t size = cursor.Fill(vectors, count);
    const ssize_t written = writev(fd, vectors.data(), count);
    if (written > 0) {
      cursor.Advance(static_cast<size_t>(written));
      turns.Wrote(static_cast<size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      if (!WaitUntilWritable(fd, name)) turns.Signal();
    } else if (written < 0 && errno == EINTR) {
      turns.Signal();
    } else {
      // A write that moves nothing and gives no reason would repeat for ever.
      throw SystemError(written == 0 ? EIO : errno, name,
                        "write " + std::to_string(size) + " bytes");
    }
  }
}

int SyncFolder(int fd) {
  while (fsync(fd) != 0) {
    if (errno == EINVAL) return 0;
    if (errno != EINTR) return errno;
  }
  return 0;
}

void WriteAll(int fd, std::span<const std::byte> bytes, const std::string& name) {
  WriteAll(fd, std::span(&bytes, 1), name);
}

}  // namespace onnx_light
