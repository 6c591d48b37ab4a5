#include "base/open_beneath.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <vector>

#include "base/quote.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
[[noreturn]] void Refuse(const char* code, std::string_view location, const std::string& why) {
  throw ValueError(code, "", "external data location " + Quote(location) + " " + why);
}

[[noreturn]] void RefuseLink(std::string_view location) {
  Refuse("external.link", location,
         "leads through a symbolic link, which only trusted_links allows");
}

std::vector<std::string> Components(std::string_view location) {
  std::vector<std::string> components;
  while (true) {
    const size_t slash = location.find('/');
    components.emplace_back(location.substr(0, slash));
    if (slash == std::string_view::npos) return components;
    location.remove_prefix(slash + 1);
  }
}

// Returns a descriptor or -1 with errno, as open does.
int OpenRetrying(int folder, const std::string& path, int flags) {
  int fd;
  do {
    fd = openat(folder, path.c_str(), flags);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

int OpenByKernel(int folder, const std::string& location) {
  open_how how{};
  how.flags = static_cast<uint64_t>(kOpenFlags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  long fd;
  do {
    fd = syscall(SYS_openat2, folder, location.c_str(), &how, sizeof(how));
  } while (fd < 0 && errno == EINTR);
  return static_cast<int>(fd);
}

// Opens a folder that is no link. On a link the kernel says ENOTDIR; this says ELOOP, as for files.
int OpenSubfolder(int folder, const std::string& name) {
  const int fd = OpenRetrying(folder, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0 || errno != ENOTDIR) return fd;
  struct stat status;
  const bool link =
      fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
  errno = link ? ELOOP : ENOTDIR;
  return -1;
}

// Every step starts at a descriptor and takes one name that is neither `..` nor a link, so it
// cannot leave the folder, whatever is renamed meanwhile.
int OpenByWalking(int folder, const std::string& location) {
  const std::vector<std::string> components = Components(location);
  FileDescriptor current;
  for (size_t i = 0; i + 1 < components.size(); ++i) {
    if (components[i].empty() || components[i] == ".") continue;
    current = FileDescriptor(OpenSubfolder(current ? current.get() : folder, components[i]));
    if (!current) return -1;
  }
  return OpenRetrying(current ? current.get() : folder, components.back(), kOpenFlags | O_NOFOLLOW);
}

int OpenWithoutLinks(int folder, const std::string& location, bool use_openat2) {
  if (use_openat2) {
    const int fd = OpenByKernel(folder, location);
    // EPERM is what sandboxes say about calls that they do not know; a true one comes again.
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return fd;
  }
  return OpenByWalking(folder, location);
}

}  // namespace

void CheckLocation(std::string_view location) {
  constexpr const char* kCode = "external.path";
  if (location.empty()) Refuse(kCode, location, "is empty");
  if (location.find('\0') != std::string_view::npos) Refuse(kCode, location, "has a NUL byte");
  if (location.size() >= PATH_MAX) {
    Refuse(kCode, location,
           "has " + std::to_string(location.size()) + " bytes, a path at most " +
               std::to_string(PATH_MAX - 1));
  }
  if (location.front() == '/') {
    Refuse(kCode, location, "is absolute; it must be relative to the folder of the model");
  }
  const std::vector<std::string> components = Components(location);
  for (const std::string& component : components) {
    if (component == "..") Refuse(kCode, location, "has a \"..\" component");
  }
  if (components.back().empty() || components.back() == ".") {
    Refuse(kCode, location, "names a folder, not a file");
  }
}

FileDescriptor OpenBeneath(int folder, const std::string& location,
                           const OpenBeneathOptions& options) {
  CheckLocation(location);
  FileDescriptor file(options.trusted_links
                          ? OpenRetrying(folder, location, kOpenFlags)
                          : OpenWithoutLinks(folder, location, options.use_openat2));
  if (!file) {
    const int error = errno;
    if (error == ELOOP && !options.trusted_links) RefuseLink(location);
    if (error == ENXIO) Refuse("external.not_regular", location, "is not a regular file");
    throw SystemError(error, location, "open");
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0) throw SystemError(errno, location, "fstat");
  if (!S_ISREG(status.st_mode)) {
    Refuse("external.not_regular", location, "is not a regular file");
  }
  if (status.st_nlink > 1 && !options.trusted_links) {
    Refuse(
        "external.link", location,
        "has " + std::to_string(status.st_nlink) + " hard links, which only trusted_links allows");
  }
  return file;
}

}  // namespace onnx_light
