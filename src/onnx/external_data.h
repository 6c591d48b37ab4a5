// Payloads that lie in other files: what their entries say, and reading them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "onnx_light/bytes.h"
#include "onnx_light/message.h"
#include "onnx_light/serialization.h"

namespace onnx_light {

// All functions here take messages whose class carries a payload.

bool IsExternal(const MessageInfo& info, const Message& message);

// Whether the message itself holds elements, as raw or typed data.
bool HasInlineData(const MessageInfo& info, const Message& message);

// The location without components that mean nothing ("a/./b" is "a/b"), so that equal files have
// equal texts; empty if there is none. Not checked.
std::string LocationOf(const MessageInfo& info, const Message& message);

// Where an external payload lies. No length: to the end of the file.
struct ExternalReference {
  std::string location;  // LocationOf
  uint64_t offset = 0;
  std::optional<uint64_t> length;
};

// What the entries say; of several with one key the last counts, others mean nothing. Throws
// ValueError `external.number` without a path.
ExternalReference ReadReference(const MessageInfo& info, const Message& message);

// That the message names a place and holds no data itself. Throws ValueError `external.inline`,
// `external.location` without a path.
void CheckReference(const MessageInfo& info, const Message& message,
                    const ExternalReference& reference);

// Makes the message one that refers to a file; raw_data must be empty. REQUIRES: it has no
// external_data.
void SetReference(Arena& arena, const MessageInfo& info, Message& message,
                  std::string_view location, uint64_t offset, uint64_t length);

// Makes `bytes` the payload of a message that refers to a file.
void SetInline(Arena& arena, const MessageInfo& info, Message& message, SharedBytes bytes);

// A file that is open for reading, and its name in messages.
struct OpenedFile {
  FileDescriptor descriptor;
  std::string name;
};
using OpenLocation = std::function<OpenedFile(const std::string& location)>;

// Opens locations beneath a folder.
OpenLocation OpenerBeneath(const std::string& folder, bool trusted_links);

// Reads external payloads, file by file, so that few files are open at once and payloads that
// overlap share memory.
class ExternalReader {
 public:
  // Payloads of at least `limit` bytes, and those that skip_raw_data leaves out, are left where
  // they are. The tree is walked again only to say where an error is.
  ExternalReader(const MessageInfo& info, const Message& root, const ParseOptions& options,
                 std::optional<uint64_t> limit = {});

  // Notes an external payload of the tree. Throws ValueError `external.*`.
  void Add(const MessageInfo& info, const Message& message);

  // The locations noted so far, as LocationOf gives them.
  std::vector<std::string> Locations() const;

  // The payloads in the order of Add; nothing for those that are left. Throws ValueError
  // `external.*`, SystemError.
  std::vector<std::optional<SharedBytes>> Read(const OpenLocation& open);

 private:
  struct Request {
    const Message* message;
    uint64_t offset;
    std::optional<uint64_t> length;
    size_t result;
  };

  void ReadGroup(const std::string& location, std::vector<Request>& requests,
                 const OpenLocation& open);
  void Resolve(const std::string& location, std::vector<Request>& requests, uint64_t file_size);
  void ReadRanges(const OpenedFile& file, std::vector<Request>& requests);
  bool IsLeft(uint64_t length) const { return limit_ && length >= *limit_; }
  void CheckLimit(const Message& message, const std::string& location, uint64_t length) const;
  [[noreturn]] void Refuse(const std::string& code, const Message& message,
                           const std::string& text) const;

  const MessageInfo& info_;
  const Message& root_;
  const ParseOptions& options_;
  std::optional<uint64_t> limit_;
  std::map<std::string, std::vector<Request>> groups_;  // by location
  std::vector<std::optional<SharedBytes>> results_;
};

}  // namespace onnx_light
