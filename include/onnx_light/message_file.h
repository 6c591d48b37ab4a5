// Messages in files, and payloads in files of their own ("external data"): a payload whose
// data_location is EXTERNAL lies in the file that its entry `location` names, a relative POSIX path
// in or below the folder of the message file, at the decimal numbers `offset` and `length`.
//
// Errors of external data are ValueError with a code `external.*` and the path of the payload
// ("graph.initializer[3]"); what the system says is SystemError with the file's name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx_light/export.h"
#include "onnx_light/interrupt.h"
#include "onnx_light/message.h"
#include "onnx_light/serialization.h"

namespace onnx_light {

// Parses the file at `path` into `message`, as Parse does. A mapped file (options.file_load_mode)
// is kept and borrowed from with no_copy, else it is let go. On error the message is in an
// unspecified state, so callers parse into a fresh arena.
//
// With `external_data_file`, every external payload is read from that file and becomes inline; the
// caller's path is trusted and stands for the location. If the message refers to several files,
// they must be the parts of one split by max_external_file_size, NAME, NAME.1, NAME.2, ..., and
// what follows NAME is appended to the caller's path. Without it, references stay, except for
// payloads below options.tiny_external_data_threshold, which are read as LoadExternalData does.
// Payloads that skip_raw_data leaves out stay references, too.
ONNX_LIGHT_EXPORT void ParseFile(Arena& arena, const MessageInfo& info, Message& message,
                                 const std::string& path, const ParseOptions& options = {},
                                 const std::string& external_data_file = {});

// Reads all external payloads of `message` from the files that their locations name beneath
// `folder` and makes them inline: without external_data and data_location. With no_copy, files of
// at least 64 KiB (kMmap: all, kStream: none) are mapped and borrowed from. Otherwise at most every
// byte of a file is copied once: payloads that overlap share memory. On error the message is
// unchanged.
//
// Refused: locations that are missing, absolute, leave the folder, lead through links (unless
// trusted_links) or begin with '#', which marks memory of another program; files that are not
// regular; numbers that are not plain decimal; ranges outside the file; external payloads that also
// have inline data. Unknown entries are ignored.
ONNX_LIGHT_EXPORT void LoadExternalData(Arena& arena, const MessageInfo& info, Message& message,
                                        const std::string& folder,
                                        const ParseOptions& options = {});

// Writes a message to a file, in two steps: the constructor reads the message and throws whatever
// is wrong with the arguments, Write does the work and needs the message no more.
//
// With `external_data_file`, which must lie in or below the folder of `path`, payloads (raw_data)
// of at least raw_data_threshold bytes go there and the message that is written refers to them; the
// message in memory is not changed. Each begins at a multiple of `alignment`, counted from the
// file's start. A file that would grow over max_external_file_size is continued in NAME.1, NAME.2,
// ...; a single payload over it gets a file of its own. If no payload is that large, or
// skip_raw_data leaves them out, no data file is written.
//
// Payloads that are external already keep their location, unless a data file would replace the file
// that they lie in: `external.overwrite`. With use_external_data_location false and an external
// file they are read from where they lie beneath the folder of `path` and treated as inline ones.
class ONNX_LIGHT_EXPORT MessageFileWriter {
 public:
  MessageFileWriter(const MessageInfo& info, const Message& message, const std::string& path,
                    const SerializeOptions& options = {},
                    const std::string& external_data_file = {});
  MessageFileWriter(MessageFileWriter&&) noexcept;
  MessageFileWriter& operator=(MessageFileWriter&&) noexcept;
  ~MessageFileWriter();

  // Prepare and Commit.
  void Write(const Interrupt& interrupt = {});
  // Brings all files to the disk beside their targets. On error, what `interrupt` throws included,
  // and without Commit, every old file is whole and nothing new is left. At most once.
  void Prepare(const Interrupt& interrupt = {});
  // Renames the files into place, data first. After a kill or a failed rename between two of them
  // new data lie beside the old message; a failed sync of a folder is told when all have their
  // names. REQUIRES: Prepare returned.
  void Commit();

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

// A file that somebody else has brought to the disk under a temporary name in a folder that is open
// for reading.
struct WrittenFile {
  int folder;
  std::string temporary;
  std::string name;
};

// Gives files their names, in this order, and then the files of `message`, if there is one and
// Prepare returned, theirs. What goes wrong is as for MessageFileWriter::Commit.
ONNX_LIGHT_EXPORT void CommitFiles(const std::vector<WrittenFile>& files,
                                   MessageFileWriter* message);

// Writes a message to a file: MessageFileWriter, both steps.
ONNX_LIGHT_EXPORT void SerializeFile(const MessageInfo& info, const Message& message,
                                     const std::string& path, const SerializeOptions& options = {},
                                     const std::string& external_data_file = {});

// Writes what Gather made to a descriptor, from its position on: all of it, however many calls it
// takes, unless `interrupt` throws. Never closes it.
ONNX_LIGHT_EXPORT void WriteToDescriptor(const Serializer::Segments& segments, int fd,
                                         const Interrupt& interrupt = {});
// The same for a message.
ONNX_LIGHT_EXPORT void SerializeToDescriptor(const MessageInfo& info, const Message& message,
                                             int fd, const SerializeOptions& options = {});

}  // namespace onnx_light
