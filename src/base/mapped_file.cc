#include "base/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/file.h"
#include "base/math.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

constexpr uint64_t kLargestPiece = uint64_t{1} << 30;

void CheckRange(uint64_t offset, uint64_t length, uint64_t size, const std::string& name) {
  if (RangeFits(offset, length, size)) return;
  throw ValueError("file.range", name,
                   "offset " + std::to_string(offset) + " with length " + std::to_string(length) +
                       " is outside the file of " + std::to_string(size) + " bytes");
}

ssize_t ReadSome(int fd, void* target, uint64_t size, uint64_t offset, const std::string& name) {
  ssize_t count;
  do {
    count = pread(fd, target, std::min(size, kLargestPiece), static_cast<off_t>(offset));
  } while (count < 0 && errno == EINTR);
  if (count < 0) throw SystemError(errno, name, "read " + std::to_string(size) + " bytes");
  return count;
}

// Also finds the files of procfs and its like, which claim to be empty and are not.
void CheckEndsAt(int fd, uint64_t size, const std::string& name) {
  std::byte beyond;
  if (ReadSome(fd, &beyond, 1, size, name) == 0) return;
  throw ValueError("file.changed", name,
                   "the file has more than the " + std::to_string(size) +
                       " bytes that it claimed when it was opened");
}

// REQUIRES: the range is inside the file and not empty.
SharedBytes Map(int fd, uint64_t offset, uint64_t length, const std::string& name) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t lead = offset % page;  // mappings begin at page borders
  const uint64_t mapped = lead + length;
  // MAP_PRIVATE: the same page-cache pages as MAP_SHARED as long as nobody writes, nothing that
  // makes the mapping writable can reach the file, and network and FUSE file systems that refuse
  // shared mappings allow it.
  void* base = mmap(nullptr, mapped, PROT_READ, MAP_PRIVATE, fd, static_cast<off_t>(offset - lead));
  if (base == MAP_FAILED)
    throw SystemError(errno, name, "mmap " + std::to_string(mapped) + " bytes");
  try {
    return SharedBytes(static_cast<const std::byte*>(base) + lead, length,
                       BufferRef::Wrap(base, mapped, [base, mapped] { munmap(base, mapped); }));
  } catch (...) {
    munmap(base, mapped);
    throw;
  }
}

SharedBytes Read(int fd, uint64_t offset, uint64_t length, const std::string& name) {
  BufferRef buffer = BufferRef::Allocate(length);
  for (uint64_t done = 0; done < length;) {
    const ssize_t count =
        ReadSome(fd, buffer.mutable_data() + done, length - done, offset + done, name);
    if (count == 0) {
      throw ValueError("file.changed", name,
                       "the file ends at byte " + std::to_string(offset + done) + " instead of " +
                           std::to_string(offset + length) + ": it shrank while it was read");
    }
    done += static_cast<uint64_t>(count);
  }
  return SharedBytes(std::move(buffer));
}

}  // namespace

SharedBytes MapFile(const std::string& path) {
  const FileDescriptor file = OpenForReading(path);
  const uint64_t size = RegularFileSize(file.get(), path);
  if (size > 0) return Map(file.get(), 0, size, path);
  CheckEndsAt(file.get(), 0, path);
  return {};
}

SharedBytes MapFile(int fd, uint64_t offset, uint64_t length, const std::string& name) {
  CheckRange(offset, length, RegularFileSize(fd, name), name);
  return length > 0 ? Map(fd, offset, length, name) : SharedBytes();
}

SharedBytes ReadFile(const std::string& path) {
  const FileDescriptor file = OpenForReading(path);
  const uint64_t size = RegularFileSize(file.get(), path);
  SharedBytes bytes = size > 0 ? Read(file.get(), 0, size, path) : SharedBytes();
  CheckEndsAt(file.get(), size, path);
  return bytes;
}

SharedBytes ReadFile(int fd, uint64_t offset, uint64_t length, const std::string& name) {
  CheckRange(offset, length, RegularFileSize(fd, name), name);
  return length > 0 ? Read(fd, offset, length, name) : SharedBytes();
}

}  // namespace onnx_light
