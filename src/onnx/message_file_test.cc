// Messages through files, with payloads inside and outside. What files must hold is spelled out
// here byte by byte; the references that readers get are written by hand.
#include "onnx_light/message_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/test_folder.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/messages.h"

namespace onnx_light {
namespace {

std::string Pattern(size_t size, char first) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(first + static_cast<char>(i % 23));
  return text;
}

std::string Bytes(const Message& message) {
  const Serializer serializer(ModelProto::kInfo, message);
  std::string bytes(serializer.size(), '\0');
  serializer.WriteTo(reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

TensorProto& AddInitializer(Owned<ModelProto>& model, std::string_view name,
                            std::string_view data) {
  TensorProto& tensor = *model->mutable_graph(model.arena())->add_initializer(model.arena());
  tensor.set_name(model.arena(), name);
  tensor.set_raw_data(model.arena(), data);
  return tensor;
}

TensorProto& AddExternal(
    Owned<ModelProto>& model,
    const std::vector<std::pair<std::string_view, std::string_view>>& entries) {
  TensorProto& tensor = *model->mutable_graph(model.arena())->add_initializer(model.arena());
  tensor.set_data_location(model.arena(), TensorProto::EXTERNAL);
  for (const auto& [key, value] : entries) {
    StringStringEntryProto& entry = *tensor.add_external_data(model.arena());
    entry.set_key(model.arena(), key);
    entry.set_value(model.arena(), value);
  }
  return tensor;
}

// What the entries of a tensor say: "location=w.bin offset=0 length=100 ".
std::string Entries(const TensorProto& tensor) {
  std::string text;
  for (const StringStringEntryProto* entry : tensor.external_data()) {
    text += std::string(entry->key()) + "=" + std::string(entry->value()) + " ";
  }
  return text;
}

void Save(const ModelProto& model, const std::string& path, const SerializeOptions& options = {},
          const std::string& external = {}) {
  SerializeFile(ModelProto::kInfo, model, path, options, external);
}

void Load(Owned<ModelProto>& model, const std::string& path, const ParseOptions& options = {},
          const std::string& external = {}) {
  ParseFile(model.arena(), ModelProto::kInfo, *model, path, options, external);
}

std::vector<ParseOptions> AllWaysOfReading() {
  std::vector<ParseOptions> ways;
  for (const bool no_copy : {false, true}) {
    for (const FileLoadMode mode :
         {FileLoadMode::kAuto, FileLoadMode::kMmap, FileLoadMode::kStream}) {
      for (const int threads : {1, 3}) {
        ParseOptions options;
        options.no_copy = no_copy;
        options.file_load_mode = mode;
        options.num_threads = threads;
        ways.push_back(options);
      }
    }
  }
  return ways;
}

// ---------------------------------------------------------------------------------------------
// One file

TEST(MessageFile, ComesBackInEveryMode) {
  const TestFolder folder;
  for (const size_t size : {0, 100, 200'000}) {
    Owned<ModelProto> model;
    AddInitializer(model, "a", Pattern(size, 'a'));
    AddInitializer(model, "b", "short");
    Save(*model, folder / "m.onnx");
    EXPECT_EQ(ReadTestFile(folder / "m.onnx"), Bytes(*model));
    for (const ParseOptions& options : AllWaysOfReading()) {
      Owned<ModelProto> read;
      Load(read, folder / "m.onnx", options);
      EXPECT_TRUE(Equal(ModelProto::kInfo, *model, *read));
    }
  }
  EXPECT_EQ(folder.Names(), (std::vector<std::string>{"m.onnx"}));
}

TEST(MessageFile, BorrowedBytesOutliveTheFile) {
  const TestFolder folder;
  Owned<ModelProto> model;
  AddInitializer(model, "a name", Pattern(100'000, 'a'));
  Save(*model, folder / "m.onnx");
  ParseOptions options;
  options.no_copy = true;
  Owned<ModelProto> read;
  Load(read, folder / "m.onnx", options);
  std::filesystem::remove(folder / "m.onnx");
  EXPECT_TRUE(Equal(ModelProto::kInfo, *model, *read));
}

TEST(MessageFile, AnEmptyFileIsAnEmptyMessage) {
  const TestFolder folder;
  WriteTestFile(folder / "m.onnx", "");
  for (const ParseOptions& options : AllWaysOfReading()) {
    Owned<ModelProto> read;
    Load(read, folder / "m.onnx", options);
    EXPECT_EQ(read->presence, 0U);
  }
}

TEST(MessageFile, ErrorsLeaveTheOldFile) {
  const TestFolder folder;
  WriteTestFile(folder / "m.onnx", "old");
  Owned<ModelProto> model;
  AddInitializer(model, "a", Pattern(10'000, 'a'));
  SerializeOptions options;
  options.max_serialized_size_bytes = 5'000;
  EXPECT_EQ(Thrown<ValueError>([&] { Save(*model, folder / "m.onnx", options); }).code(),
            "message.size");
  EXPECT_EQ(ReadTestFile(folder / "m.onnx"), "old");
  EXPECT_EQ(Thrown<SystemError>([&] { Save(*model, folder / "none/m.onnx"); }).error_number(),
            ENOENT);
  // With the payload outside, the message fits.
  Save(*model, folder / "m.onnx", options, folder / "w.bin");
  EXPECT_EQ(folder.Names(), (std::vector<std::string>{"m.onnx", "w.bin"}));
}

TEST(MessageFile, TheWriterNeedsTheMessageNoMore) {
  const TestFolder folder;
  std::string expected;
  std::optional<MessageFileWriter> writer;
  {
    Owned<ModelProto> model;
    AddInitializer(model, "large", Pattern(10'000, 'a'));
    AddInitializer(model, "small", Pattern(100, 'b'));
    expected = Bytes(*model);
    writer.emplace(ModelProto::kInfo, *model, folder / "m.onnx", SerializeOptions(),
                   folder / "w.bin");
  }
  writer->Write();
  Owned<ModelProto> read;
  Load(read, folder / "m.onnx", {}, folder / "w.bin");
  EXPECT_EQ(Bytes(*read), expected);
}

TEST(MessageFile, ADescriptorGetsAllBytesAndStaysOpen) {
  Owned<ModelProto> model;
  AddInitializer(model, "a", Pattern(3'000'000, 'a'));
  AddInitializer(model, "b", "short");
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  std::string received;
  std::thread reader([&] {
    std::string piece(10'007, '\0');
    const std::string expected = Bytes(*model);
    while (received.size() < expected.size()) {
      const ssize_t count = read(ends[1], piece.data(), piece.size());
      if (count > 0) received.append(piece, 0, static_cast<size_t>(count));
      if (count == 0) break;
    }
  });
  SerializeToDescriptor(ModelProto::kInfo, *model, ends[0]);
  reader.join();
  EXPECT_TRUE(received == Bytes(*model));
  EXPECT_GE(fcntl(ends[0], F_GETFD), 0);
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(Thrown<SystemError>([&] {
              SerializeToDescriptor(ModelProto::kInfo, *model, -1);
            }).error_number(),
            EBADF);
}

// ---------------------------------------------------------------------------------------------
// Writing external data

TEST(ExternalDataWriter, MovesLargePayloadsAndLeavesTheMessage) {
  const TestFolder folder;
  Owned<ModelProto> model;
  const std::string large = Pattern(5'000, 'a');
  const std::string medium = Pattern(100, 'b');
  const std::string small = Pattern(63, 'c');
  AddInitializer(model, "large", large);
  AddInitializer(model, "small", small);
  AddInitializer(model, "medium", medium);
  EncodedValueProto& encoded =
      *model->mutable_graph(model.arena())->add_encoded_initializer(model.arena());
  encoded.set_raw_data(model.arena(), medium);
  const std::string before = Bytes(*model);
  SerializeOptions options;
  options.alignment = 256;
  Save(*model, folder / "m.onnx", options, folder / "w.bin");
  EXPECT_EQ(Bytes(*model), before);

  const std::string first_gap(5'120 - 5'000, '\0');
  const std::string second_gap(256 - 100, '\0');
  EXPECT_EQ(ReadTestFile(folder / "w.bin"), large + first_gap + medium + second_gap + medium);
  Owned<ModelProto> read;
  Load(read, folder / "m.onnx");
  const auto tensors = read->graph().initializer();
  EXPECT_EQ(Entries(*tensors[0]), "location=w.bin offset=0 length=5000 ");
  EXPECT_EQ(tensors[0]->data_location(), TensorProto::EXTERNAL);
  EXPECT_FALSE(tensors[0]->has_raw_data());
  EXPECT_EQ(tensors[0]->name(), "large");
  EXPECT_EQ(tensors[1]->raw_data(), small);
  EXPECT_FALSE(tensors[1]->has_data_location());
  EXPECT_EQ(Entries(*tensors[2]), "location=w.bin offset=5120 length=100 ");
  const EncodedValueProto& read_encoded = *read->graph().encoded_initializer()[0];
  EXPECT_EQ(read_encoded.external_data()[1]->value(), "5376");
  for (const ParseOptions& way : AllWaysOfReading()) {
    Owned<ModelProto> inlined;
    Load(inlined, folder / "m.onnx", way, folder / "w.bin");
    EXPECT_EQ(Bytes(*inlined), before);
    Owned<ModelProto> loaded;
    Load(loaded, folder / "m.onnx", way);
    LoadExternalData(loaded.arena(), ModelProto::kInfo, *loaded, folder.path(), way);
    EXPECT_EQ(Bytes(*loaded), before);
  }
}

TEST(ExternalDataWriter, SplitsFilesAndReadsThemUnderAnotherName) {
  const TestFolder folder;
  Owned<ModelProto> model;
  for (const size_t size : {100, 100, 300, 90, 160}) AddInitializer(model, "", Pattern(size, 'a'));
  SerializeOptions options;
  options.max_external_file_size = 250;
  Save(*model, folder / "m.onnx", options, folder / "w.bin");
  EXPECT_EQ(folder.Names(), (std::vector<std::string>{"m.onnx", "w.bin", "w.bin.1", "w.bin.2"}));
  EXPECT_EQ(ReadTestFile(folder / "w.bin"), Pattern(100, 'a') + Pattern(100, 'a'));
  EXPECT_EQ(ReadTestFile(folder / "w.bin.1"), Pattern(300, 'a'));
  EXPECT_EQ(ReadTestFile(folder / "w.bin.2"), Pattern(90, 'a') + Pattern(160, 'a'));
  std::filesystem::create_directory(folder / "other");
  for (const std::string suffix : {"", ".1", ".2"}) {
    std::filesystem::rename(folder / ("w.bin" + suffix), folder / ("other/x" + suffix));
  }
  Owned<ModelProto> read;
  Load(read, folder / "m.onnx", {}, folder / "other/x");
  EXPECT_EQ(Bytes(*read), Bytes(*model));
}

TEST(ExternalDataWriter, APartAloneIsTheFileThatSaysSo) {
  const TestFolder folder;
  WriteTestFile(folder / "w.bin", "first");
  WriteTestFile(folder / "w.bin.2", "third");
  WriteTestFile(folder / "x", "whole");
  Owned<ModelProto> model;
  AddExternal(model, {{"location", "w.bin.2"}});
  Save(*model, folder / "m.onnx");
  Owned<ModelProto> part;
  Load(part, folder / "m.onnx", {}, folder / "w.bin");
  EXPECT_EQ(part->graph().initializer()[0]->raw_data(), "third");
  Owned<ModelProto> whole;
  Load(whole, folder / "m.onnx", {}, folder / "x");
  EXPECT_EQ(whole->graph().initializer()[0]->raw_data(), "whole");
}

TEST(ExternalDataWriter, LocationsAreRelativeToTheMessageFile) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "models/data");
  std::filesystem::create_directory_symlink(folder / "models", folder / "link");
  Owned<ModelProto> model;
  AddInitializer(model, "", Pattern(100, 'a'));
  Save(*model, folder / "link/m.onnx", {}, folder / "models/../models/data/w.bin");
  Owned<ModelProto> read;
  Load(read, folder / "models/m.onnx");
  EXPECT_EQ(Entries(*read->graph().initializer()[0]), "location=data/w.bin offset=0 length=100 ");
}

TEST(ExternalDataWriter, RefusesPlacesThatReadersRefuse) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "models");
  std::filesystem::create_directory(folder / "models2");
  std::filesystem::create_symlink(folder / "models/target", folder / "models/link");
  std::filesystem::create_directory_symlink(folder / "models2", folder / "models/out");
  WriteTestFile(folder / "models/m.onnx", "old");
  Owned<ModelProto> model;
  AddInitializer(model, "", Pattern(100, 'a'));
  const auto code = [&](const std::string& external) {
    return Thrown<ValueError>(
               [&] { Save(*model, folder / "models/m.onnx", {}, folder / external); })
        .code();
  };
  EXPECT_EQ(code("w.bin"), "external.path");
  EXPECT_EQ(code("models2/w.bin"), "external.path");
  EXPECT_EQ(code("models/../w.bin"), "external.path");
  EXPECT_EQ(code("models/out/w.bin"), "external.path");
  EXPECT_EQ(code("models/"), "external.path");
  EXPECT_EQ(code("models/#w"), "external.path");
  EXPECT_EQ(code("models/m.onnx"), "external.path");
  EXPECT_EQ(code("models/./m.onnx"), "external.path");
  EXPECT_EQ(code("models/link"), "external.link");
  SerializeOptions options;
  options.alignment = 24;
  EXPECT_EQ(Thrown<ValueError>([&] {
              Save(*model, folder / "models/m.onnx", options, folder / "models/w.bin");
            }).code(),
            "options.alignment");
  EXPECT_EQ(ReadTestFile(folder / "models/m.onnx"), "old");
  EXPECT_TRUE(std::filesystem::is_empty(folder / "models2"));
}

TEST(ExternalDataWriter, AMessageFileThatCannotBeWrittenLeavesTheOldDataFile) {
  const TestFolder folder;
  WriteTestFile(folder / "w.bin", "old");
  ASSERT_EQ(mkfifo((folder / "m.onnx").c_str(), 0600), 0);
  Owned<ModelProto> model;
  AddInitializer(model, "", Pattern(100, 'a'));
  EXPECT_EQ(
      Thrown<ValueError>([&] { Save(*model, folder / "m.onnx", {}, folder / "w.bin"); }).code(),
      "file.not_regular");
  EXPECT_EQ(ReadTestFile(folder / "w.bin"), "old");
  EXPECT_EQ(folder.Names(), (std::vector<std::string>{"m.onnx", "w.bin"}));
}

TEST(ExternalDataWriter, WritesNoFileForNothing) {
  const TestFolder folder;
  Owned<ModelProto> model;
  AddInitializer(model, "", Pattern(63, 'a'));
  Save(*model, folder / "m.onnx", {}, folder / "w.bin");
  EXPECT_EQ(folder.Names(), (std::vector<std::string>{"m.onnx"}));
  AddInitializer(model, "", Pattern(64, 'a'));
  SerializeOptions options;
  options.skip_raw_data = true;
  Save(*model, folder / "m.onnx", options, folder / "w.bin");
  EXPECT_EQ(folder.Names(), (std::vector<std::string>{"m.onnx"}));
  Owned<ModelProto> read;
  Load(read, folder / "m.onnx");
  EXPECT_EQ(read->graph().initializer()[0]->raw_data(), Pattern(63, 'a'));
  EXPECT_FALSE(read->graph().initializer()[1]->has_raw_data());
}

TEST(ExternalDataWriter, KeepsReferencesButNotToWhatItReplaces) {
  const TestFolder folder;
  WriteTestFile(folder / "old.bin", Pattern(200, 'q'));
  Owned<ModelProto> model;
  AddExternal(model, {{"location", "./old.bin"}, {"offset", "20"}, {"length", "100"}});
  AddInitializer(model, "", Pattern(100, 'a'));
  const ValueError error =
      Thrown<ValueError>([&] { Save(*model, folder / "m.onnx", {}, folder / "old.bin"); });
  EXPECT_EQ(error.code(), "external.overwrite");
  EXPECT_EQ(error.path(), "graph.initializer[0]");
  EXPECT_EQ(ReadTestFile(folder / "old.bin"), Pattern(200, 'q'));

  Save(*model, folder / "m.onnx", {}, folder / "new.bin");
  Owned<ModelProto> kept;
  Load(kept, folder / "m.onnx");
  EXPECT_EQ(Entries(*kept->graph().initializer()[0]), "location=./old.bin offset=20 length=100 ");
  EXPECT_EQ(Entries(*kept->graph().initializer()[1]), "location=new.bin offset=0 length=100 ");

  // Not kept: read from the file and written into the one that replaces it.
  AddExternal(model, {{"location", "old.bin"}, {"offset", "7"}, {"length", "10"}});
  SerializeOptions options;
  options.use_external_data_location = false;
  Save(*model, folder / "m.onnx", options, folder / "old.bin");
  EXPECT_EQ(ReadTestFile(folder / "old.bin"),
            Pattern(200, 'q').substr(20, 100) + Pattern(100, 'a'));
  Owned<ModelProto> moved;
  Load(moved, folder / "m.onnx");
  EXPECT_EQ(Entries(*moved->graph().initializer()[0]), "location=old.bin offset=0 length=100 ");
  EXPECT_EQ(Entries(*moved->graph().initializer()[1]), "location=old.bin offset=100 length=100 ");
  EXPECT_EQ(moved->graph().initializer()[2]->raw_data(), Pattern(200, 'q').substr(7, 10));
  EXPECT_FALSE(moved->graph().initializer()[2]->has_data_location());
}

}  // namespace
}  // namespace onnx_light
