// A file that appears whole or not at all.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file.h"

namespace onnx_light {

// Writes a temporary file beside the target; Commit renames it over the target. Until then, and
// after any error before the rename, an existing file is untouched and keeps serving whoever has it
// open or mapped. Without Commit, or after an error, the temporary is removed (a killed process may
// leave one; its name begins with ".onnx_light.").
//
// Links: if the path is a symbolic link, the file that it leads to is replaced, even one that does
// not exist yet, and the link stays, as with an ordinary write. Another hard link to the old file
// keeps the old bytes.
// Permissions: those of the old file, and its group where the system lets us (else the group's
// permissions are dropped); a new file gets what the umask says. An old file that the caller may
// not write is refused (EACCES), though a rename could replace it. Owner, ACLs and extended
// attributes are those of a new file.
//
// Not for use by several threads at once. In a child process after fork it neither removes the
// parent's temporary nor may be used otherwise.
class AtomicFile {
 public:
  enum class Links { kFollow, kRefuse };

  // With `overwrite` false, a target that exists, be it a dangling link, is SystemError EEXIST:
  // here or, if it appears later, at Commit. With kRefuse a target that is a link is
  // `file.not_regular`, and one that appears later is replaced itself: for folders in which others
  // may put links. Throws SystemError, and ValueError `file.not_regular`
  // (a target that is a device, FIFO or socket) or `file.path` (a NUL byte in the path).
  explicit AtomicFile(const std::string& path, bool overwrite = true, Links links = Links::kFollow);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Appends bytes. Throws SystemError with the target's path; the temporary is gone then, and
  // later calls are SystemError EBADF.
  // What `interrupt` throws (see WriteAll) does the same.
  void Write(std::span<const std::byte> bytes);
  void Write(std::span<const std::span<const std::byte>> parts, const Interrupt& interrupt = {});

  uint64_t bytes_written() const { return bytes_written_; }

  // Ends the writing: what the system reports late is reported here, and with `sync` the bytes are
  // on the disk. On its own it is for those who commit several files and want to know of errors
  // before the first name changes. Throws SystemError.
  void Finish(bool sync = true);

  // Publishes the file: Finish, Publish and SyncFolder. With `sync` it is on the disk, under its
  // name, when this returns. An error leaves the old file, with one exception: if the sync of the
  // folder fails, which comes last, the new file is in place and may not survive a crash of the
  // system. Throws SystemError.
  void Commit(bool sync = true);
  // The rename. REQUIRES: Finish returned. Throws SystemError.
  void Publish();
  // Brings the name to the disk, if Finish brought the bytes there. Throws SystemError.
  void SyncFolder();

 private:
  void Create(mode_t mode);
  void CopyPermissions(mode_t mode, gid_t group);
  void Discard() noexcept;

  const std::string path_;  // as the caller gave it, for messages
  const bool overwrite_;
  const pid_t process_;
  FileDescriptor folder_;
  std::string name_;       // of the target in folder_
  std::string temporary_;  // in folder_; empty when there is none
  FileDescriptor file_;    // until it is finished
  FileDescriptor folder_to_sync_;
  uint64_t bytes_written_ = 0;
};

// Renames within a folder, atomically and never over something. Returns 0 or an errno: EEXIST if
// there is a `to`. Where the system or the file system has no such rename it makes a hard link and
// removes the old name; so does `use_link`.
int RenameNoReplace(int folder, const std::string& from, const std::string& to, bool use_link);

}  // namespace onnx_light
