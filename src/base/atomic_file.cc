#include "base/atomic_file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

constexpr int kMostLinks = 40;  // as the kernel's own limit
constexpr int kMostNames = 100;
constexpr mode_t kPermissions = 0777;

// What the symbolic link at `path` holds, or nothing if there is no link.
std::optional<std::string> ReadLink(const std::string& path) {
  std::array<char, PATH_MAX> target;
  const ssize_t size = readlink(path.c_str(), target.data(), target.size());
  if (size >= 0) return std::string(target.data(), static_cast<size_t>(size));
  if (errno == EINVAL || errno == ENOENT) return std::nullopt;
  throw SystemError(errno, path, "readlink");
}

// Follows the links at the end of the path. Those in its folders are left to the kernel.
std::string FollowLinks(std::string path) {
  for (int i = 0; i < kMostLinks; ++i) {
    std::optional<std::string> target = ReadLink(path);
    if (!target) return path;
    path = target->starts_with('/') ? *target : SplitPath(path).folder + "/" + *target;
  }
  throw SystemError(ELOOP, path, "open");
}

// Not derived from the target's name, so that a name of 255 bytes works, too.
std::string TemporaryName(const std::string& path) {
  uint64_t random;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    throw SystemError(errno, path, "getrandom");
  }
  std::array<char, 17> digits;
  snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(random));
  return std::string(".onnx_light.") + digits.data() + ".tmp";
}

// The state of the target, or nothing if there is none. Refuses targets that are no files.
std::optional<struct stat> Target(int folder, const std::string& name, const std::string& path) {
  struct stat status;
  if (fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return std::nullopt;
    throw SystemError(errno, path, "stat");
  }
  if (S_ISDIR(status.st_mode)) throw SystemError(EISDIR, path, "open");
  return status;
}

void CheckReplaceable(int folder, const std::string& name, const struct stat& status,
                      const std::string& path) {
  if (!S_ISREG(status.st_mode)) throw ValueError("file.not_regular", path, "not a regular file");
  if (faccessat(folder, name.c_str(), W_OK, AT_EACCESS) != 0) {
    throw SystemError(errno, path, "open for writing");
  }
}

void SyncFile(int fd, const std::string& path) {
  while (fsync(fd) != 0) {
    if (errno != EINTR) throw SystemError(errno, path, "fsync");
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path, bool overwrite, Links links)
    : path_(path), overwrite_(overwrite), process_(getpid()) {
  CheckPath(path);
  if (path.empty()) throw SystemError(ENOENT, path, "open");
  PathParts parts = SplitPath(overwrite && links == Links::kFollow ? FollowLinks(path) : path);
  if (parts.name.empty()) throw SystemError(EISDIR, path, "open");
  try {
    folder_ = OpenFolder(parts.folder);
  } catch (const SystemError& error) {
    throw SystemError(error.error_number(), path, "open folder");
  }
  name_ = std::move(parts.name);
  const std::optional<struct stat> old = Target(folder_.get(), name_, path_);
  if (old && !overwrite) throw SystemError(EEXIST, path_, "open");
  if (old) CheckReplaceable(folder_.get(), name_, *old, path_);
  // Nobody else may look into a file whose old version they could not read.
  Create(old ? 0600 : 0666);
  if (!old) return;
  try {
    CopyPermissions(old->st_mode & kPermissions, old->st_gid);
  } catch (...) {
    Discard();
    throw;
  }
}

AtomicFile::~AtomicFile() { Discard(); }

void AtomicFile::Create(mode_t mode) {
  int fd = -1;
  for (int i = 0; i < kMostNames; ++i) {
    std::string name = TemporaryName(path_);
    fd = openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd >= 0) {
      file_ = FileDescriptor(fd);
      temporary_ = std::move(name);
      return;
    }
    if (errno != EEXIST && errno != EINTR) break;
  }
  throw SystemError(errno, path_, "create a temporary file in the folder");
}

void AtomicFile::CopyPermissions(mode_t mode, gid_t group) {
  struct stat status;
  if (fstat(file_.get(), &status) != 0) throw SystemError(errno, path_, "fstat");
  // The old permissions of the group were meant for the old group.
  if (status.st_gid != group && fchown(file_.get(), static_cast<uid_t>(-1), group) != 0) {
    mode &= ~static_cast<mode_t>(S_IRWXG);
  }
  if (fchmod(file_.get(), mode) != 0) throw SystemError(errno, path_, "fchmod");
}

void AtomicFile::Write(std::span<const std::byte> bytes) { Write(std::span(&bytes, 1)); }

void AtomicFile::Write(std::span<const std::span<const std::byte>> parts,
                       const Interrupt& interrupt) {
  if (!file_) throw SystemError(EBADF, path_, "write after the file was given up or committed");
  try {
    WriteAll(file_.get(), parts, path_, interrupt);
  } catch (...) {
    Discard();
    throw;
  }
  for (const auto& part : parts) bytes_written_ += part.size();
}

void AtomicFile::Finish(bool sync) {
  if (!file_) throw SystemError(EBADF, path_, "finish after the file was given up or committed");
  try {
    if (sync) {
      // Opened before the rename, so that a folder that cannot be synced fails in time.
      folder_to_sync_ =
          FileDescriptor(openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (!folder_to_sync_) throw SystemError(errno, path_, "open the folder to sync it");
      SyncFile(file_.get(), path_);
    }
    file_.Close(path_);
  } catch (...) {
    Discard();
    throw;
  }
}

void AtomicFile::Commit(bool sync) {
  Finish(sync);
  Publish();
  SyncFolder();
}

void AtomicFile::Publish() {
  int error = 0;
  if (!overwrite_) {
    error = RenameNoReplace(folder_.get(), temporary_, name_, /*use_link=*/false);
  } else if (renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    Discard();
    throw SystemError(error, path_, "rename");
  }
  temporary_.clear();
}

void AtomicFile::SyncFolder() {
  const FileDescriptor folder = std::move(folder_to_sync_);
  const int error = folder ? onnx_light::SyncFolder(folder.get()) : 0;
  if (error != 0) {
    throw SystemError(error, path_, "fsync of the folder (the new file is in place)");
  }
}

void AtomicFile::Discard() noexcept {
  file_ = FileDescriptor();
  // After fork the name belongs to the parent.
  if (!temporary_.empty() && getpid() == process_) {
    unlinkat(folder_.get(), temporary_.c_str(), 0);
  }
  temporary_.clear();
}

int RenameNoReplace(int folder, const std::string& from, const std::string& to, bool use_link) {
  if (!use_link) {
    if (renameat2(folder, from.c_str(), folder, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
    if (errno != ENOSYS && errno != EINVAL && errno != EPERM) return errno;
  }
  if (linkat(folder, from.c_str(), folder, to.c_str(), 0) != 0) return errno;
  // The target is complete; a name too many is no reason to call that a failure.
  unlinkat(folder, from.c_str(), 0);
  return 0;
}

}  // namespace onnx_light
