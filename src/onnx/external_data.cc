#include "onnx/external_data.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "base/mapped_file.h"
#include "base/math.h"
#include "base/open_beneath.h"
#include "base/quote.h"
#include "base/threads.h"
#include "onnx/load_mode.h"
#include "onnx_light/errors.h"
#include "onnx_light/messages.h"
#include "wire/visit.h"

namespace onnx_light {
namespace {

using Entries = Repeated<StringStringEntryProto*>;

std::span<StringStringEntryProto* const> EntriesOf(const MessageInfo& info,
                                                   const Message& message) {
  return ViewList(message, info.fields[info.external_data]).span<StringStringEntryProto*>();
}

// The value of the last entry with this key, as for any scalar that occurs twice.
std::optional<std::string_view> Find(std::span<StringStringEntryProto* const> entries,
                                     std::string_view key) {
  std::optional<std::string_view> value;
  for (const StringStringEntryProto* entry : entries) {
    if (entry->key() == key) value = entry->value();
  }
  return value;
}

// Digits only: no sign, no space, no other text, nothing over 64 bits.
std::optional<uint64_t> ParseDecimal(std::string_view text) {
  uint64_t value = 0;
  const char *begin = text.data(), *end = begin + text.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (text.empty() || stop != end || error != std::errc()) return std::nullopt;
  return value;
}

std::string Normalized(std::string_view location) {
  std::string result;
  for (size_t begin = 0;;) {
    const size_t slash = location.find('/', begin);
    const std::string_view component = location.substr(begin, slash - begin);
    if (slash == std::string_view::npos) return result.append(component);
    // A leading slash stays, so that an absolute path stays one.
    if (slash == 0 || (!component.empty() && component != ".")) {
      result.append(component).append("/");
    }
    begin = slash + 1;
  }
}

std::string PathOf(const MessageInfo& info, const Message& root, const Message& message) {
  std::string found;
  VisitPayloads(info, root, [&](const MessageInfo&, const Message& visited, const auto& path) {
    if (&visited == &message) found = path.ToString();
  });
  return found;
}

void SetEntry(Arena& arena, Entries& entries, std::string_view key, std::string_view value) {
  auto& entry = static_cast<StringStringEntryProto&>(
      *AddMessage(arena, StringStringEntryProto::kInfo, entries));
  entry.set_key(arena, key);
  entry.set_value(arena, value);
}

}  // namespace

bool IsExternal(const MessageInfo& info, const Message& message) {
  const FieldInfo& field = info.fields[info.data_location];
  return Has(message, field) && Member<int32_t>(message, field) == TensorProto::EXTERNAL;
}

bool HasInlineData(const MessageInfo& info, const Message& message) {
  if (Member<String>(message, info.fields[info.raw_data]).size() != 0) return true;
  return std::any_of(info.fields.begin(), info.fields.end(), [&](const FieldInfo& field) {
    return field.repeated && field.index != info.external_data && Has(message, field) &&
           std::string_view(field.name).ends_with("_data") && ViewList(message, field).size != 0;
  });
}

std::string LocationOf(const MessageInfo& info, const Message& message) {
  return Normalized(Find(EntriesOf(info, message), "location").value_or(""));
}

ExternalReference ReadReference(const MessageInfo& info, const Message& message) {
  const auto entries = EntriesOf(info, message);
  ExternalReference reference{LocationOf(info, message), 0, {}};
  const auto number = [&](std::string_view key) -> std::optional<uint64_t> {
    const std::optional<std::string_view> text = Find(entries, key);
    if (!text) return std::nullopt;
    const std::optional<uint64_t> value = ParseDecimal(*text);
    if (value) return value;
    throw ValueError("external.number", "",
                     std::string(key) + " " + Quote(*text) + " of external data location " +
                         Quote(reference.location) + " is not a decimal number of at most 64 bits");
  };
  reference.offset = number("offset").value_or(0);
  reference.length = number("length");
  return reference;
}

void CheckReference(const MessageInfo& info, const Message& message,
                    const ExternalReference& reference) {
  const std::string& location = reference.location;
  if (HasInlineData(info, message)) {
    throw ValueError("external.inline", "",
                     "data_location is EXTERNAL (location " + Quote(location) +
                         "), but the message has data of its own, too");
  }
  if (location.empty()) {
    throw ValueError("external.location", "",
                     "data_location is EXTERNAL, but external_data has no \"location\"");
  }
  if (location.front() == '#') {
    throw ValueError("external.location", "",
                     "external data location " + Quote(location) +
                         " marks memory of another program; it is no file");
  }
}

void SetReference(Arena& arena, const MessageInfo& info, Message& message,
                  std::string_view location, uint64_t offset, uint64_t length) {
  auto& entries =
      static_cast<Entries&>(*MutableRepeated(arena, message, info.fields[info.external_data]));
  SetEntry(arena, entries, "location", location);
  SetEntry(arena, entries, "offset", std::to_string(offset));
  SetEntry(arena, entries, "length", std::to_string(length));
  const FieldInfo& field = info.fields[info.data_location];
  Select(arena, info, message, field);
  Member<int32_t>(message, field) = TensorProto::EXTERNAL;
}

void SetInline(Arena& arena, const MessageInfo& info, Message& message, SharedBytes bytes) {
  ClearField(arena, message, info.fields[info.external_data]);
  ClearField(arena, message, info.fields[info.data_location]);
  const FieldInfo& field = info.fields[info.raw_data];
  Select(arena, info, message, field);
  String& raw_data = Member<String>(message, field);
  if (bytes.size == 0) {
    raw_data.Set(arena, {});
  } else {
    raw_data.SetShared(arena, std::move(bytes));
  }
}

OpenLocation OpenerBeneath(const std::string& folder, bool trusted_links) {
  const std::string path = folder.empty() ? "." : folder;
  auto descriptor = std::make_shared<FileDescriptor>(OpenFolder(path));
  return [path, descriptor, trusted_links](const std::string& location) {
    const std::string name = path + "/" + location;
    try {
      return OpenedFile{OpenBeneath(descriptor->get(), location, {.trusted_links = trusted_links}),
                        name};
    } catch (const SystemError& error) {
      throw SystemError(error.error_number(), name, "open");
    }
  };
}

// ---------------------------------------------------------------------------------------------
// Reading

ExternalReader::ExternalReader(const MessageInfo& info, const Message& root,
                               const ParseOptions& options, std::optional<uint64_t> limit)
    : info_(info), root_(root), options_(options), limit_(limit) {
  if (options.skip_raw_data) {
    limit_ = limit_ ? std::min(*limit_, options.raw_data_threshold) : options.raw_data_threshold;
  }
}

void ExternalReader::Refuse(const std::string& code, const Message& message,
                            const std::string& text) const {
  throw ValueError(code, PathOf(info_, root_, message), text);
}

void ExternalReader::CheckLimit(const Message& message, const std::string& location,
                                uint64_t length) const {
  if (options_.max_tensor_size_bytes == 0 || length <= options_.max_tensor_size_bytes) return;
  Refuse("external.payload_limit", message,
         "a payload of " + std::to_string(length) + " bytes at external data location " +
             Quote(location) + ", at most " + std::to_string(options_.max_tensor_size_bytes) +
             " are allowed");
}

void ExternalReader::Add(const MessageInfo& info, const Message& message) {
  try {
    ExternalReference reference = ReadReference(info, message);
    const Request request{&message, reference.offset, reference.length, results_.size()};
    results_.emplace_back();
    if (IsLeft(request.length.value_or(0))) return;
    CheckReference(info, message, reference);
    groups_[std::move(reference.location)].push_back(request);
  } catch (const ValueError& error) {
    Refuse(error.code(), message, error.message());
  }
}

std::vector<std::string> ExternalReader::Locations() const {
  std::vector<std::string> locations;
  locations.reserve(groups_.size());
  for (const auto& group : groups_) locations.push_back(group.first);
  return locations;
}

std::vector<std::optional<SharedBytes>> ExternalReader::Read(const OpenLocation& open) {
  for (auto& [location, requests] : groups_) ReadGroup(location, requests, open);
  return std::move(results_);
}

void ExternalReader::ReadGroup(const std::string& location, std::vector<Request>& requests,
                               const OpenLocation& open) {
  OpenedFile file;
  uint64_t size = 0;
  try {
    file = open(location);
    size = RegularFileSize(file.descriptor.get(), file.name);
  } catch (const ValueError& error) {
    Refuse(error.code(), *requests.front().message, error.message());
  } catch (const SystemError& error) {
    throw SystemError(
        error.error_number(), error.filename(),
        "open the external data of " + PathOf(info_, root_, *requests.front().message));
  }
  Resolve(location, requests, size);
  if (requests.empty()) return;
  if (!options_.no_copy || !MapsFile(options_.file_load_mode, size)) {
    ReadRanges(file, requests);
    return;
  }
  const SharedBytes whole = MapFile(file.descriptor.get(), 0, size, file.name);
  for (const Request& request : requests) {
    results_[request.result] = whole.Slice(request.offset, *request.length);
  }
}

// Fills in the lengths, checks the ranges and drops the payloads that are left where they are.
void ExternalReader::Resolve(const std::string& location, std::vector<Request>& requests,
                             uint64_t file_size) {
  for (Request& request : requests) {
    const bool fits = request.length ? RangeFits(request.offset, *request.length, file_size)
                                     : request.offset <= file_size;
    if (!fits) {
      Refuse("external.range", *request.message,
             "offset " + std::to_string(request.offset) +
                 (request.length ? " with length " + std::to_string(*request.length) : "") +
                 " is outside the file of " + std::to_string(file_size) +
                 " bytes at external data location " + Quote(location));
    }
    if (!request.length) request.length = file_size - request.offset;
    if (!IsLeft(*request.length)) CheckLimit(*request.message, location, *request.length);
  }
  std::erase_if(requests, [&](const Request& request) { return IsLeft(*request.length); });
}

// Copies every byte that is asked for once: ranges that overlap are read as one and shared, so a
// small message cannot ask for more memory than its files have bytes.
void ExternalReader::ReadRanges(const OpenedFile& file, std::vector<Request>& requests) {
  struct Run {
    uint64_t begin, end;
    size_t first, last;  // requests [first, last)
  };
  std::sort(requests.begin(), requests.end(),
            [](const Request& a, const Request& b) { return a.offset < b.offset; });
  std::vector<Run> runs;
  for (size_t i = 0; i < requests.size(); ++i) {
    const uint64_t begin = requests[i].offset;
    const uint64_t end = begin + *requests[i].length;
    if (!runs.empty() && begin < runs.back().end) {
      runs.back().end = std::max(runs.back().end, end);
      runs.back().last = i + 1;
    } else {
      runs.push_back({begin, end, i, i + 1});
    }
  }
  ParallelFor(options_.num_threads, runs.size(), [&](uint64_t i) {
    const Run& run = runs[i];
    const SharedBytes bytes =
        ReadFile(file.descriptor.get(), run.begin, run.end - run.begin, file.name);
    for (size_t j = run.first; j < run.last; ++j) {
      const Request& request = requests[j];
      results_[request.result] = bytes.Slice(request.offset - run.begin, *request.length);
    }
  });
}

}  // namespace onnx_light
