// Opening files that a message names: the name is untrusted and must stay inside one folder.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"

namespace onnx_light {

struct OpenBeneathOptions {
  // Follow symbolic links, also out of the folder, and take files with several hard links: for
  // model caches that are made of links. The text of the location is checked all the same.
  bool trusted_links = false;
  // False: walk component by component, as where the kernel or a sandbox has no openat2.
  bool use_openat2 = true;
};

// Checks the text of a location, a relative POSIX path of a file. Throws ValueError `external.path`
// if it is empty, absolute, longer than any path, has a NUL byte or a `..` component ("a..b" is a
// fine name), or ends like a folder ("a/", "a/."). Components that are empty or `.` in the middle
// mean nothing.
void CheckLocation(std::string_view location);

// Opens for reading the regular file at `location` beneath the folder that is open as `folder`
// (OpenFolder; the links on the way to the folder itself are the caller's). Whatever is checked
// about the file is checked on the descriptor that is returned, so nothing can be exchanged between
// check and use.
// Throws, naming the location,
//   ValueError   `external.path`         see CheckLocation
//                `external.link`         a symbolic link anywhere in the location, or a file with
//                                        several hard links, without trusted_links
//                `external.not_regular`  a folder, device, FIFO or socket
//   SystemError  ENOENT and whatever else the system says; filename() is the location.
FileDescriptor OpenBeneath(int folder, const std::string& location,
                           const OpenBeneathOptions& options = {});

}  // namespace onnx_light
