// External data: entries that lead anywhere, resolved beneath a folder of files, links, a FIFO and
// folders. The first byte holds options. The rest is text: a line for each tensor, "LOCATION OFFSET
// LENGTH" with tabs between; a part that is missing makes no entry.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fuzz.h"
#include "onnx_light/message_file.h"

namespace onnx_light::fuzz {
namespace {

constexpr char kSecret = '\xee';       // what files outside of the folder are full of
constexpr size_t kMappedSize = 70000;  // mapped with no_copy

void WriteFile(const std::string& path, size_t size, char content) {
  std::ofstream(path, std::ios::binary) << std::string(size, content);
}

// Made once, removed when the process ends well.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "onnx_light_fuzz.XXXXXX";
    Check(mkdtemp(name.data()) != nullptr, "there is a temporary folder");
    root_ = name;
    path_ = root_ + "/model";
    std::filesystem::create_directories(path_ + "/sub");
    WriteFile(root_ + "/secret", 100, kSecret);
    WriteFile(path_ + "/data", 100, 'd');
    WriteFile(path_ + "/sub/data", 5000, 's');
    WriteFile(path_ + "/big", kMappedSize, 'b');
    WriteFile(path_ + "/empty", 0, ' ');
    std::filesystem::create_symlink("../secret", path_ + "/link");
    std::filesystem::create_symlink("..", path_ + "/up");
    std::filesystem::create_hard_link(root_ + "/secret", path_ + "/hard");
    Check(mkfifo((path_ + "/fifo").c_str(), 0600) == 0, "there is a FIFO");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string root_, path_;
};

// Cuts off what stands before `separator`, which goes, too.
std::string_view Cut(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view front = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return front;
}

void AddTensor(Arena& arena, GraphProto& graph, std::string_view line) {
  TensorProto& tensor = *graph.add_initializer(arena);
  tensor.set_data_type(arena, TensorProto::UINT8);
  tensor.set_data_location(arena, TensorProto::EXTERNAL);
  for (const std::string_view key : {"location", "offset", "length"}) {
    const std::string_view value = Cut(line, '\t');
    if (value.empty()) continue;
    StringStringEntryProto& entry = *tensor.add_external_data(arena);
    entry.set_key(arena, key);
    entry.set_value(arena, value);
  }
}

// Whether everything was read, and from the folder.
void CheckLoaded(const GraphProto& graph) {
  for (const TensorProto* tensor : graph.initializer()) {
    Check(!tensor->has_data_location() && tensor->external_data().empty(), "all is inline");
    Check(tensor->raw_data().find(kSecret) == std::string_view::npos, "nothing from outside");
    Check(tensor->raw_data().size() <= kMappedSize, "nothing behind the end of a file");
  }
}

// Moves the payloads to a file, and reads them back.
void CheckFiles(const Owned<GraphProto>& graph, const std::string& folder) {
  SerializeOptions options;
  options.alignment = 64;
  options.max_external_file_size = 8192;
  SerializeFile(GraphProto::kInfo, *graph, folder + "/out", options, folder + "/out.data");
  Owned<GraphProto> read;
  ParseFile(read.arena(), GraphProto::kInfo, *read, folder + "/out");
  LoadExternalData(read.arena(), GraphProto::kInfo, *read, folder);
  Check(Equal(GraphProto::kInfo, *graph, *read), "what was written is read");
}

void Run(Input input) {
  static const Folder folder;
  const uint8_t flags = input.Byte();
  ParseOptions options;
  options.no_copy = (flags & 1) != 0;
  options.skip_raw_data = (flags & 2) != 0;
  options.max_tensor_size_bytes = (flags & 4) != 0 ? 1000 : 0;
  options.file_load_mode = static_cast<FileLoadMode>(flags >> 3 & 1);  // kAuto or kMmap

  Owned<GraphProto> graph;
  const std::span<const std::byte> rest = input.Rest();
  std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  for (int i = 0; i < 20 && !text.empty(); ++i) AddTensor(graph.arena(), *graph, Cut(text, '\n'));
  const std::string before = Write(GraphProto::kInfo, *graph);
  try {
    LoadExternalData(graph.arena(), GraphProto::kInfo, *graph, folder.path(), options);
  } catch (const Error& error) {
    Check(!error.path().empty(), "an error says where");
    Check(Write(GraphProto::kInfo, *graph) == before, "an error changes nothing");
    return;
  }
  if (options.skip_raw_data) return;
  CheckLoaded(*graph);
  if ((flags & 0xf0) == 0) CheckFiles(graph, folder.path());  // seldom: files are slow
}

}  // namespace
}  // namespace onnx_light::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnx_light::fuzz::Run({data, size});
  return 0;
}
