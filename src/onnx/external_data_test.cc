// References to external data, written by hand: what is read, and what is refused and how.
#include "onnx/external_data.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/test_folder.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_file.h"
#include "onnx_light/messages.h"

namespace onnx_light {
namespace {

using EntryList = std::vector<std::pair<std::string, std::string>>;

class ExternalDataTest : public testing::Test {
 protected:
  ExternalDataTest() { WriteTestFile(folder_ / "w.bin", content_); }

  // A model whose initializers refer to files.
  void Build(Owned<ModelProto>& model, const std::vector<EntryList>& tensors) {
    GraphProto& graph = *model->mutable_graph(model.arena());
    for (const EntryList& entries : tensors) {
      TensorProto& tensor = *graph.add_initializer(model.arena());
      tensor.set_data_location(model.arena(), TensorProto::EXTERNAL);
      for (const auto& [key, value] : entries) {
        StringStringEntryProto& entry = *tensor.add_external_data(model.arena());
        entry.set_key(model.arena(), key);
        entry.set_value(model.arena(), value);
      }
    }
  }

  void Load(Owned<ModelProto>& model, const ParseOptions& options = {}) {
    LoadExternalData(model.arena(), ModelProto::kInfo, *model, folder_.path(), options);
  }

  // The payload that these entries mean.
  std::string Read(const EntryList& entries, const ParseOptions& options = {}) {
    Owned<ModelProto> model;
    Build(model, {entries});
    Load(model, options);
    const TensorProto& tensor = *model->graph().initializer()[0];
    EXPECT_TRUE(tensor.has_raw_data());
    EXPECT_FALSE(tensor.has_external_data());
    EXPECT_FALSE(tensor.has_data_location());
    return std::string(tensor.raw_data());
  }

  // The code of the error that the second of two tensors causes; the message names the location.
  std::string Refused(const EntryList& entries, const ParseOptions& options = {}) {
    Owned<ModelProto> model;
    Build(model, {{{"location", "w.bin"}}, entries});
    const ValueError error = Thrown<ValueError>([&] { Load(model, options); });
    EXPECT_EQ(error.path(), "graph.initializer[1]") << error.what();
    for (const auto& [key, value] : entries) {
      if (key == "location" && !value.starts_with("//")) {  // shown with one slash
        EXPECT_NE(error.message().find(value), std::string::npos) << error.what();
      }
    }
    EXPECT_TRUE(model->graph().initializer()[0]->has_external_data());
    return error.code();
  }

  const TestFolder folder_;
  const std::string content_ = "0123456789abcdef";
};

TEST_F(ExternalDataTest, ReadsRanges) {
  ParseOptions mapped;
  mapped.no_copy = true;
  mapped.file_load_mode = FileLoadMode::kMmap;
  for (const ParseOptions& options : {ParseOptions(), mapped}) {
    EXPECT_EQ(Read({{"location", "w.bin"}}, options), content_);
    EXPECT_EQ(Read({{"location", "w.bin"}, {"offset", "3"}}, options), content_.substr(3));
    EXPECT_EQ(Read({{"location", "w.bin"}, {"length", "4"}}, options), "0123");
    EXPECT_EQ(Read({{"length", "2"}, {"offset", "5"}, {"location", "w.bin"}}, options), "56");
    EXPECT_EQ(Read({{"location", "w.bin"}, {"offset", "16"}, {"length", "0"}}, options), "");
    EXPECT_EQ(Read({{"location", "w.bin"}, {"offset", "16"}}, options), "");
    EXPECT_EQ(Read({{"location", ".//./w.bin"}, {"offset", "0010"}}, options), "abcdef");
    EXPECT_EQ(Read({{"checksum", "x"}, {"location", "w.bin"}, {"basepath", "/etc"}}, options),
              content_);
  }
}

TEST_F(ExternalDataTest, ReadsAnEmptyFile) {
  WriteTestFile(folder_ / "empty", "");
  ParseOptions mapped;
  mapped.no_copy = true;
  mapped.file_load_mode = FileLoadMode::kMmap;
  EXPECT_EQ(Read({{"location", "empty"}}), "");
  EXPECT_EQ(Read({{"location", "empty"}}, mapped), "");
}

TEST_F(ExternalDataTest, RefusesNumbersThatAreNotPlainDecimal) {
  for (const std::string key : {"offset", "length"}) {
    for (const std::string number :
         {"", "-1", "+1", " 1", "1 ", "1x", "0x1", "1.0", "1e1", "18446744073709551616"}) {
      EXPECT_EQ(Refused({{"location", "w.bin"}, {key, number}}), "external.number") << number;
    }
  }
}

TEST_F(ExternalDataTest, RefusesRangesOutsideTheFile) {
  const std::vector<std::pair<std::string, std::string>> ranges = {
      {"17", "0"},
      {"0", "17"},
      {"16", "1"},
      {"10", "7"},
      {"18446744073709551615", "2"},
      {"2", "18446744073709551615"},
      {"18446744073709551615", "18446744073709551615"}};
  for (const auto& [offset, length] : ranges) {
    EXPECT_EQ(Refused({{"location", "w.bin"}, {"offset", offset}, {"length", length}}),
              "external.range");
  }
  EXPECT_EQ(Refused({{"location", "w.bin"}, {"offset", "17"}}), "external.range");
}

TEST_F(ExternalDataTest, RefusesLocationsOutsideTheFolder) {
  std::filesystem::create_directory(folder_ / "sub");
  std::filesystem::create_symlink(folder_ / "w.bin", folder_ / "link");
  std::filesystem::create_directory_symlink(folder_.path(), folder_ / "sub/up");
  WriteTestFile(folder_ / "hard", content_);
  std::filesystem::create_hard_link(folder_ / "hard", folder_ / "sub/hard");
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(Refused({}), "external.location");
  EXPECT_EQ(Refused({{"offset", "0"}}), "external.location");
  EXPECT_EQ(Refused({{"location", ""}}), "external.location");
  EXPECT_EQ(Refused({{"location", "#t0"}}), "external.location");
  EXPECT_EQ(Refused({{"location", "/etc/passwd"}}), "external.path");
  EXPECT_EQ(Refused({{"location", "//etc/passwd"}}), "external.path");
  EXPECT_EQ(Refused({{"location", folder_ / "w.bin"}}), "external.path");
  EXPECT_EQ(Refused({{"location", "../w.bin"}}), "external.path");
  EXPECT_EQ(Refused({{"location", "sub/../w.bin"}}), "external.path");
  EXPECT_EQ(Refused({{"location", "sub/"}}), "external.path");
  EXPECT_EQ(Refused({{"location", "w.bin/."}}), "external.path");
  EXPECT_EQ(Refused({{"location", "link"}}), "external.link");
  EXPECT_EQ(Refused({{"location", "sub/up/w.bin"}}), "external.link");
  EXPECT_EQ(Refused({{"location", "hard"}}), "external.link");
  EXPECT_EQ(Refused({{"location", "fifo"}}), "external.not_regular");
  EXPECT_EQ(Refused({{"location", "sub"}}), "external.not_regular");
  ParseOptions trusting;
  trusting.trusted_links = true;
  EXPECT_EQ(Read({{"location", "link"}}, trusting), content_);
  EXPECT_EQ(Read({{"location", "hard"}}, trusting), content_);
  EXPECT_EQ(Refused({{"location", "sub/up/../w.bin"}}, trusting), "external.path");
}

TEST_F(ExternalDataTest, AMissingFileIsTheSystemsError) {
  const SystemError error = Thrown<SystemError>([&] { Read({{"location", "none"}}); });
  EXPECT_EQ(error.error_number(), ENOENT);
  EXPECT_EQ(error.filename(), folder_ / "none");
  EXPECT_NE(error.message().find("graph.initializer[0]"), std::string::npos) << error.what();
}

TEST_F(ExternalDataTest, RefusesInlineDataBesides) {
  const auto refused = [&](const auto& change) {
    Owned<ModelProto> model;
    Build(model, {{{"location", "w.bin"}}});
    change(
        *static_cast<TensorProto*>(
            model->mutable_graph(model.arena())->mutable_initializer(model.arena()).elements()[0]),
        model.arena());
    return Thrown<ValueError>([&] { Load(model); }).code();
  };
  EXPECT_EQ(refused([](TensorProto& t, Arena& arena) { t.set_raw_data(arena, "x"); }),
            "external.inline");
  EXPECT_EQ(refused([](TensorProto& t, Arena& arena) { t.add_float_data(arena, 1); }),
            "external.inline");
  EXPECT_EQ(refused([](TensorProto& t, Arena& arena) { t.add_string_data(arena, "x"); }),
            "external.inline");
}

TEST_F(ExternalDataTest, LimitsPayloads) {
  ParseOptions options;
  options.max_tensor_size_bytes = 15;
  WriteTestFile(folder_ / "large", std::string(16, 'x'));
  WriteTestFile(folder_ / "w.bin", std::string(15, 'x'));
  EXPECT_EQ(Refused({{"location", "large"}}, options), "external.payload_limit");
  EXPECT_EQ(Refused({{"location", "large"}, {"length", "16"}}, options), "external.payload_limit");
  EXPECT_EQ(Read({{"location", "large"}, {"length", "15"}}, options), std::string(15, 'x'));
}

TEST_F(ExternalDataTest, OverlappingPayloadsShareOneCopy) {
  const std::string megabyte(1 << 20, 'x');
  WriteTestFile(folder_ / "large", megabyte);
  std::vector<EntryList> tensors(1'000, {{"location", "large"}});
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].push_back({"offset", std::to_string(i)});
    if (i % 2 == 0) tensors[i][0].second = "./large";
  }
  Owned<ModelProto> model;
  Build(model, tensors);
  Load(model);
  const auto initializers = model->graph().initializer();
  const char* const first = initializers[0]->raw_data().data();
  for (size_t i = 0; i < initializers.size(); ++i) {
    ASSERT_EQ(initializers[i]->raw_data().data(), first + i);
    ASSERT_EQ(initializers[i]->raw_data().size(), megabyte.size() - i);
  }
}

TEST_F(ExternalDataTest, FollowsTheOrderOfTensorsNotOfBytes) {
  for (const int threads : {1, 3}) {
    ParseOptions options;
    options.num_threads = threads;
    Owned<ModelProto> model;
    Build(model, {{{"location", "w.bin"}, {"offset", "8"}, {"length", "2"}},
                  {{"location", "w.bin"}, {"offset", "0"}, {"length", "5"}},
                  {{"location", "w.bin"}, {"offset", "4"}, {"length", "0"}},
                  {{"location", "w.bin"}, {"offset", "3"}, {"length", "4"}}});
    Load(model, options);
    const auto initializers = model->graph().initializer();
    EXPECT_EQ(initializers[0]->raw_data(), "89");
    EXPECT_EQ(initializers[1]->raw_data(), "01234");
    EXPECT_EQ(initializers[2]->raw_data(), "");
    EXPECT_EQ(initializers[3]->raw_data(), "3456");
  }
}

TEST_F(ExternalDataTest, TinyPayloadsComeWithTheFile) {
  Owned<ModelProto> model;
  Build(model, {{{"location", "w.bin"}, {"length", "9"}},
                {{"location", "w.bin"}, {"length", "10"}},
                {{"location", "none"}, {"length", "10"}},
                {{"location", "w.bin"}, {"offset", "6"}},
                {{"location", "w.bin"}, {"offset", "7"}}});
  SerializeFile(ModelProto::kInfo, *model, folder_ / "m.onnx");
  ParseOptions options;
  options.tiny_external_data_threshold = 10;
  Owned<ModelProto> read;
  ParseFile(read.arena(), ModelProto::kInfo, *read, folder_ / "m.onnx", options);
  const auto initializers = read->graph().initializer();
  EXPECT_EQ(initializers[0]->raw_data(), "012345678");
  EXPECT_FALSE(initializers[0]->has_data_location());
  EXPECT_EQ(initializers[1]->data_location(), TensorProto::EXTERNAL);
  EXPECT_EQ(initializers[2]->data_location(), TensorProto::EXTERNAL);
  EXPECT_EQ(initializers[3]->data_location(), TensorProto::EXTERNAL);
  EXPECT_EQ(initializers[4]->raw_data(), content_.substr(7));
}

TEST_F(ExternalDataTest, SkippedPayloadsStayReferences) {
  Owned<ModelProto> model;
  Build(model, {{{"location", "w.bin"}, {"length", "9"}}, {{"location", "w.bin"}}});
  ParseOptions options;
  options.skip_raw_data = true;
  options.raw_data_threshold = 10;
  Load(model, options);
  EXPECT_EQ(model->graph().initializer()[0]->raw_data(), "012345678");
  EXPECT_EQ(model->graph().initializer()[1]->data_location(), TensorProto::EXTERNAL);
}

TEST_F(ExternalDataTest, OneFileCannotStandForStrangers) {
  Owned<ModelProto> model;
  Build(model, {{{"location", "w.bin"}}, {{"location", "other.bin"}}});
  SerializeFile(ModelProto::kInfo, *model, folder_ / "m.onnx");
  Owned<ModelProto> read;
  EXPECT_EQ(Thrown<ValueError>([&] {
              ParseFile(read.arena(), ModelProto::kInfo, *read, folder_ / "m.onnx", {},
                        folder_ / "w.bin");
            }).code(),
            "external.location");
}

}  // namespace
}  // namespace onnx_light
