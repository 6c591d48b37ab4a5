#include "onnx_light/message_file.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/mapped_file.h"
#include "onnx/external_data.h"
#include "onnx/load_mode.h"
#include "onnx_light/errors.h"
#include "wire/visit.h"

namespace onnx_light {
namespace {

SharedBytes LoadFile(const std::string& path, FileLoadMode mode) {
  if (mode == FileLoadMode::kAuto) {
    const FileDescriptor file = OpenForReading(path);
    const uint64_t size = RegularFileSize(file.get(), path);
    mode = MapsFile(mode, size) ? FileLoadMode::kMmap : FileLoadMode::kStream;
  }
  return mode == FileLoadMode::kMmap ? MapFile(path) : ReadFile(path);
}

struct Target {
  const MessageInfo* info;
  Message* message;
};

// Notes the external payloads of a message in `reader`.
std::vector<Target> FindExternal(const MessageInfo& info, Message& root, ExternalReader& reader) {
  std::vector<Target> targets;
  VisitPayloads(info, root, [&](const MessageInfo& visited, Message& message, const auto&) {
    if (!IsExternal(visited, message)) return;
    reader.Add(visited, message);
    targets.push_back({&visited, &message});
  });
  return targets;
}

void MakeInline(Arena& arena, const std::vector<Target>& targets,
                std::vector<std::optional<SharedBytes>> payloads) {
  for (size_t i = 0; i < targets.size(); ++i) {
    if (payloads[i]) {
      SetInline(arena, *targets[i].info, *targets[i].message, *std::move(payloads[i]));
    }
  }
}

void LoadBeneath(Arena& arena, const MessageInfo& info, Message& message, const std::string& folder,
                 const ParseOptions& options, std::optional<uint64_t> limit) {
  ExternalReader reader(info, message, options, limit);
  const std::vector<Target> targets = FindExternal(info, message, reader);
  if (reader.Locations().empty()) return;
  MakeInline(arena, targets, reader.Read(OpenerBeneath(folder, options.trusted_links)));
}

// Whether `text` is `name`, a dot and the number of a part of a split file.
bool IsPartOf(std::string_view name, std::string_view text) {
  if (text.size() < name.size() + 2 || !text.starts_with(name) || text[name.size()] != '.') {
    return false;
  }
  const std::string_view number = text.substr(name.size() + 1);
  return number.front() != '0' && number.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string_view WithoutNumber(std::string_view location) {
  const std::string_view name = location.substr(0, location.rfind('.'));
  return IsPartOf(name, location) ? name : location;
}

// The location that the parts of one split file begin with. One location alone is the whole file,
// unless it says that it is a part of the file that the caller names.
std::string SplitName(const std::vector<std::string>& locations, const std::string& file) {
  if (locations.size() == 1) {
    const std::string& only = locations.front();
    return IsPartOf(SplitPath(file).name, SplitPath(only).name) ? std::string(WithoutNumber(only))
                                                                : only;
  }
  const auto shortest =
      std::min_element(locations.begin(), locations.end(),
                       [](const auto& a, const auto& b) { return a.size() < b.size(); });
  const bool first_is_there =
      std::all_of(locations.begin(), locations.end(), [&](const std::string& location) {
        return location == *shortest || IsPartOf(*shortest, location);
      });
  return first_is_there ? *shortest : std::string(WithoutNumber(*shortest));
}

// Which file each location means, now that the caller's file stands for the first of them.
OpenLocation OpenerOf(const std::vector<std::string>& locations, const std::string& file) {
  const std::string name = SplitName(locations, file);
  return [name, file](const std::string& location) {
    if (location != name && !IsPartOf(name, location)) {
      throw ValueError("external.location", "",
                       "the payloads lie in several files that are not the parts of one (" + name +
                           ", " + location + "), so " + file + " cannot stand for them all");
    }
    const std::string path = file + location.substr(name.size());
    return OpenedFile{OpenForReading(path), path};
  };
}

}  // namespace

void LoadExternalData(Arena& arena, const MessageInfo& info, Message& message,
                      const std::string& folder, const ParseOptions& options) {
  LoadBeneath(arena, info, message, folder, options, std::nullopt);
}

void ParseFile(Arena& arena, const MessageInfo& info, Message& message, const std::string& path,
               const ParseOptions& options, const std::string& external_data_file) {
  {
    const SharedBytes bytes = LoadFile(path, options.file_load_mode);
    if (bytes.size != 0) Parse(arena, info, message, {bytes.span(), bytes.owner}, options);
  }
  if (!external_data_file.empty()) {
    ExternalReader reader(info, message, options);
    const std::vector<Target> targets = FindExternal(info, message, reader);
    const std::vector<std::string> locations = reader.Locations();
    if (locations.empty()) return;
    MakeInline(arena, targets, reader.Read(OpenerOf(locations, external_data_file)));
  } else if (options.tiny_external_data_threshold >= 0) {
    LoadBeneath(arena, info, message, SplitPath(path).folder, options,
                static_cast<uint64_t>(options.tiny_external_data_threshold));
  }
}

}  // namespace onnx_light
