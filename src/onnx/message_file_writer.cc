// Writing messages to files: what goes where is settled in MessageFileWriter's constructor, Write
// only moves bytes.
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/math.h"
#include "base/open_beneath.h"
#include "onnx/external_data.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_file.h"
#include "wire/visit.h"

namespace onnx_light {
namespace {

// One data file: payloads at ascending offsets.
struct DataFile {
  std::string path;
  std::string location;
  struct Piece {
    uint64_t offset;
    SharedBytes bytes;
  };
  std::vector<Piece> pieces;
  uint64_t size = 0;
};

std::string RealPath(const std::string& path) {
  std::error_code error;
  std::string real = std::filesystem::canonical(path, error);
  if (error) throw SystemError(error.value(), path, "open folder");
  return real;
}

// The location of the file at `data_path` for a message file at `path`.
std::string RelativeLocation(const std::string& path, const std::string& data_path) {
  CheckPath(path);
  CheckPath(data_path);
  const std::string folder = RealPath(SplitPath(path).folder);
  const PathParts data = SplitPath(data_path);
  const std::string data_folder = RealPath(data.folder);
  const std::string prefix = folder == "/" ? folder : folder + "/";
  if (data_folder != folder && !data_folder.starts_with(prefix)) {
    throw ValueError("external.path", data_path,
                     "external data must lie in or below the folder of the message file, " +
                         SplitPath(path).folder);
  }
  std::string location =
      data_folder == folder ? data.name : data_folder.substr(prefix.size()) + "/" + data.name;
  CheckLocation(location);
  if (location.front() == '#') {
    throw ValueError("external.path", data_path,
                     "a location must not begin with '#', which marks memory of another program");
  }
  return location;
}

// Data files must be ones that readers accept, and none may be the message file itself.
void CheckDataFile(const DataFile& file, const std::string& message_path) {
  struct stat data;
  struct stat message;
  const bool exists = lstat(file.path.c_str(), &data) == 0;
  if (exists && S_ISLNK(data.st_mode)) {
    throw ValueError("external.link", file.path,
                     "is a symbolic link, through which external data is not read");
  }
  std::error_code ignored;  // a path that cannot be resolved is refused when it is opened
  const bool same_file = exists && stat(message_path.c_str(), &message) == 0 &&
                         data.st_dev == message.st_dev && data.st_ino == message.st_ino;
  if (same_file || std::filesystem::weakly_canonical(file.path, ignored) ==
                       std::filesystem::weakly_canonical(message_path, ignored)) {
    throw ValueError("external.path", file.path, "is the message file itself");
  }
}

// Lays payloads out over data files.
class Layout {
 public:
  Layout(const SerializeOptions& options, std::string path, std::string location)
      : alignment_(std::max<uint64_t>(options.alignment, 1)),
        largest_(options.max_external_file_size),
        path_(std::move(path)),
        location_(std::move(location)) {
    if (!IsPowerOfTwo(alignment_)) {
      throw ValueError(
          "options.alignment", "",
          "alignment " + std::to_string(alignment_) + " is neither 0 nor a power of two");
    }
  }

  // The file and the offset that `bytes` get.
  std::pair<const DataFile*, uint64_t> Place(SharedBytes bytes) {
    if (files_.empty()) Begin();
    std::optional<uint64_t> offset = CheckedRoundUp(files_.back()->size, alignment_);
    if (largest_ != 0 && !files_.back()->pieces.empty() &&
        (!offset || !RangeFits(*offset, bytes.size, largest_))) {
      Begin();
      offset = 0;
    }
    const auto end = offset ? CheckedAdd(*offset, bytes.size) : std::nullopt;
    if (!end) throw ValueError("external.size", path_, "the data takes over 2^64 bytes");
    DataFile& file = *files_.back();
    file.pieces.push_back({*offset, std::move(bytes)});
    file.size = *end;
    return {&file, *offset};
  }

  std::vector<std::unique_ptr<DataFile>> Take() { return std::move(files_); }

 private:
  void Begin() {
    const std::string suffix = files_.empty() ? "" : "." + std::to_string(files_.size());
    files_.push_back(std::make_unique<DataFile>(path_ + suffix, location_ + suffix));
  }

  const uint64_t alignment_;
  const uint64_t largest_;
  const std::string path_;
  const std::string location_;
  std::vector<std::unique_ptr<DataFile>> files_;
};

// Moves payloads of a message to data files, on paper: the message stays as it is and what is
// written in place of its parts lies in an arena of its own.
class Externalizer {
 public:
  Externalizer(const MessageInfo& info, const Message& root, const std::string& path,
               const SerializeOptions& options, const std::string& data_path)
      : options_(options),
        path_(path),
        layout_(options, data_path, RelativeLocation(path, data_path)) {
    Find(info, root);
    ReadOld(info, root);
    for (const Candidate& candidate : candidates_) Move(candidate);
    files_ = layout_.Take();
    for (const auto& file : files_) CheckDataFile(*file, path);
    CheckKept();
  }

  const Replacements& replacements() const { return replacements_; }
  std::vector<std::unique_ptr<DataFile>> TakeFiles() { return std::move(files_); }

 private:
  struct Candidate {
    const MessageInfo* info;
    const Message* message;
    std::optional<SharedBytes> bytes;  // nothing: in another file
  };
  struct Kept {
    std::string path;
    std::string location;
  };

  void Find(const MessageInfo& info, const Message& root) {
    VisitPayloads(info, root,
                  [&](const MessageInfo& visited, const Message& message, const auto& path) {
                    if (!IsExternal(visited, message)) {
                      AddInline(visited, message);
                      return;
                    }
                    if (HasInlineData(visited, message)) {
                      throw ValueError("external.inline", path.ToString(),
                                       "data_location is EXTERNAL, but the message has data of "
                                       "its own, too");
                    }
                    if (options_.use_external_data_location) {
                      kept_.push_back({path.ToString(), LocationOf(visited, message)});
                    } else {
                      candidates_.push_back({&visited, &message, std::nullopt});
                    }
                  });
  }

  void AddInline(const MessageInfo& info, const Message& message) {
    const FieldInfo& field = info.fields[info.raw_data];
    if (!Has(message, field)) return;
    const String& payload = Member<String>(message, field);
    if (payload.size() < options_.raw_data_threshold) return;
    candidates_.push_back({&info, &message,
                           payload.size() >= String::kPayloadSize
                               ? payload.Shared()
                               : CopyBytes(payload.data(), payload.size())});
  }

  // Mapped where they lie: the files may well be those that are about to be replaced.
  void ReadOld(const MessageInfo& info, const Message& root) {
    ParseOptions options;
    options.no_copy = true;
    options.num_threads = options_.num_threads;
    ExternalReader reader(info, root, options);
    std::vector<Candidate*> old;
    for (Candidate& candidate : candidates_) {
      if (candidate.bytes) continue;
      reader.Add(*candidate.info, *candidate.message);
      old.push_back(&candidate);
    }
    if (old.empty()) return;
    auto payloads = reader.Read(OpenerBeneath(SplitPath(path_).folder, /*trusted_links=*/false));
    for (size_t i = 0; i < old.size(); ++i) old[i]->bytes = std::move(payloads[i]);
  }

  void Move(const Candidate& candidate) {
    const MessageInfo& info = *candidate.info;
    Message& copy = CopyWithoutPayload(info, *candidate.message);
    if (candidate.bytes->size < options_.raw_data_threshold) {
      SetInline(arena_, info, copy, *candidate.bytes);
    } else {
      const auto [file, offset] = layout_.Place(*candidate.bytes);
      SetReference(arena_, info, copy, file->location, offset, candidate.bytes->size);
    }
    replacements_.emplace(candidate.message, &copy);
  }

  // A copy of the struct alone. All that it points to belongs to the original, so the members that
  // change are forgotten, not cleared.
  Message& CopyWithoutPayload(const MessageInfo& info, const Message& message) {
    void* memory = arena_.Allocate(info.size);
    std::memcpy(memory, &message, info.size);
    Message& copy = *static_cast<Message*>(memory);
    const auto forget = [&](uint8_t index, size_t size) {
      copy.presence &= ~(uint32_t{1} << index);
      std::memset(&Member<char>(copy, info.fields[index]), 0, size);
    };
    forget(info.raw_data, sizeof(String));
    forget(info.external_data, sizeof(ListSlot));
    forget(info.data_location, sizeof(int32_t));
    return copy;
  }

  void CheckKept() const {
    std::set<std::string> written;
    for (const auto& file : files_) written.insert(file->location);
    for (const Kept& kept : kept_) {
      if (!written.contains(kept.location)) continue;
      throw ValueError("external.overwrite", kept.path,
                       "the payload lies in the external data file that would be replaced; load "
                       "it first, or choose another file");
    }
  }

  const SerializeOptions& options_;
  const std::string& path_;
  Layout layout_;
  Arena arena_;
  std::vector<Candidate> candidates_;
  std::vector<Kept> kept_;
  Replacements replacements_;
  std::vector<std::unique_ptr<DataFile>> files_;
};

constexpr std::array<std::byte, 64 << 10> kZeros{};

// The bytes of a data file, gaps included.
std::vector<std::span<const std::byte>> PartsOf(const DataFile& file) {
  std::vector<std::span<const std::byte>> parts;
  uint64_t position = 0;
  for (const DataFile::Piece& piece : file.pieces) {
    while (position < piece.offset) {
      const uint64_t gap = std::min<uint64_t>(piece.offset - position, kZeros.size());
      parts.push_back(std::span(kZeros).first(gap));
      position += gap;
    }
    parts.push_back(piece.bytes.span());
    position += piece.bytes.size;
  }
  return parts;
}

std::vector<std::span<const std::byte>> PartsOf(const Serializer::Segments& segments) {
  std::vector<std::span<const std::byte>> parts;
  parts.reserve(segments.runs().size());
  for (const Serializer::Segments::Run& run : segments.runs()) parts.push_back(run.bytes);
  return parts;
}

}  // namespace

struct MessageFileWriter::Plan {
  std::string path;
  std::vector<std::unique_ptr<DataFile>> data_files;
  Serializer::Segments message;
  std::vector<std::unique_ptr<AtomicFile>> prepared;
};

MessageFileWriter::MessageFileWriter(const MessageInfo& info, const Message& message,
                                     const std::string& path, const SerializeOptions& options,
                                     const std::string& external_data_file)
    : plan_(std::make_unique<Plan>()) {
  plan_->path = path;
  if (external_data_file.empty() || options.skip_raw_data) {
    plan_->message = Serializer(info, message, options).Gather();
    return;
  }
  Externalizer externalizer(info, message, path, options, external_data_file);
  plan_->message = Serializer(info, message, options, &externalizer.replacements()).Gather();
  plan_->data_files = externalizer.TakeFiles();
}

MessageFileWriter::MessageFileWriter(MessageFileWriter&&) noexcept = default;
MessageFileWriter& MessageFileWriter::operator=(MessageFileWriter&&) noexcept = default;
MessageFileWriter::~MessageFileWriter() = default;

void MessageFileWriter::Write(const Interrupt& interrupt) {
  Prepare(interrupt);
  Commit();
}

void MessageFileWriter::Prepare(const Interrupt& interrupt) {
  std::vector<std::unique_ptr<AtomicFile>> files;
  const auto write = [&](const std::string& path, const auto& content, AtomicFile::Links links) {
    files.push_back(std::make_unique<AtomicFile>(path, /*overwrite=*/true, links));
    files.back()->Write(PartsOf(content), interrupt);
    files.back()->Finish();
    if (interrupt) interrupt();
  };
  // A link could be put in the data file's place after it was checked.
  for (const auto& data : plan_->data_files) write(data->path, *data, AtomicFile::Links::kRefuse);
  write(plan_->path, plan_->message, AtomicFile::Links::kFollow);
  plan_->prepared = std::move(files);
}

void MessageFileWriter::Commit() {
  const auto files = std::move(plan_->prepared);
  // New data without their message would be worse than a folder that may not be on the disk.
  std::exception_ptr failed_sync;
  for (const auto& file : files) {
    file->Publish();
    try {
      file->SyncFolder();
    } catch (const SystemError&) {
      if (!failed_sync) failed_sync = std::current_exception();
    }
  }
  if (failed_sync) std::rethrow_exception(failed_sync);
}

void CommitFiles(const std::vector<WrittenFile>& files, MessageFileWriter* message) {
  std::set<int> folders;
  for (const WrittenFile& file : files) {
    if (renameat(file.folder, file.temporary.c_str(), file.folder, file.name.c_str()) != 0) {
      throw SystemError(errno, file.name, "rename");
    }
    folders.insert(file.folder);
  }
  int failed_sync = 0;
  for (const int folder : folders) failed_sync = std::max(failed_sync, SyncFolder(folder));
  if (message != nullptr) message->Commit();
  if (failed_sync != 0) {
    throw SystemError(failed_sync, files.back().name,
                      "fsync of the folder (the new file is in place)");
  }
}

void SerializeFile(const MessageInfo& info, const Message& message, const std::string& path,
                   const SerializeOptions& options, const std::string& external_data_file) {
  MessageFileWriter(info, message, path, options, external_data_file).Write();
}

void WriteToDescriptor(const Serializer::Segments& segments, int fd, const Interrupt& interrupt) {
  WriteAll(fd, PartsOf(segments), "file descriptor " + std::to_string(fd), interrupt);
}

void SerializeToDescriptor(const MessageInfo& info, const Message& message, int fd,
                           const SerializeOptions& options) {
  WriteToDescriptor(Serializer(info, message, options).Gather(), fd);
}

}  // namespace onnx_light
