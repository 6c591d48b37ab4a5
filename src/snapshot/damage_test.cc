// Files that are damaged, hostile, or no snapshots.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "onnx_light/serialization.h"
#include "snapshot/fields.h"
#include "snapshot/index.h"
#include "snapshot/layout.h"
#include "snapshot/test_content.h"

namespace onnx_light {
namespace {

// One record with all parts, as small as they can be.
std::string SmallFile() {
  SnapshotContent content;
  CacheRecipe recipe{{1, 1, 2, 3}, DType::kFloat16, 4, 0};
  content.caches.push_back({"a", TestCache(6, 1, recipe)});
  content.caches.push_back({"b", PagedCache::FromPages({}, 4)});
  recipe.start = 6;
  content.caches[1].cache = TestCache(1, 2, recipe).Truncate(6);
  content.tokens = TestTokens(6);
  content.identity = {{"weights", "w"}};
  content.metadata = {{"k", "v"}};
  return Dump(content);
}

TEST(Damage, EveryCut) {
  const std::string bytes = SmallFile();
  OpenBytes(bytes, true);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const ValueError error = OpenError(bytes.substr(0, size));
    EXPECT_EQ(error.code(), "snapshot.corrupt") << size;
    EXPECT_EQ(error.message().substr(0, 5), "byte ") << size;
  }
}

TEST(Damage, EveryBit) {
  const std::string bytes = SmallFile();
  ASSERT_LT(bytes.size(), 4096u);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const ValueError error = OpenError(damaged);
    EXPECT_EQ(error.code(), "snapshot.corrupt") << bit;
    EXPECT_EQ(error.message().substr(0, 5), "byte ") << bit;
    EXPECT_NE(error.path(), "") << bit;
  }
}

TEST(Damage, ShowsAtTheFirstUse) {
  const SnapshotContent content = TestContent(45);
  std::string bytes = Dump(content);
  // The third page of layers.1: 13 tokens.
  const auto& page = std::get<DensePayload>(content.caches[1].cache.pages()[2].page->key());
  const size_t at = bytes.find(page.bytes.view().substr(0, 2 * 4 * 2));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 5] ^= 8;
  const Snapshot snapshot = OpenBytes(bytes);
  EXPECT_TRUE(snapshot.Cache(0) == content.caches[0].cache);
  EXPECT_TRUE(snapshot.Cache(2) == content.caches[2].cache);
  EXPECT_TRUE(snapshot.Tokens().has_value());
  for (int i = 0; i < 2; ++i) {
    const ValueError error = Thrown<ValueError>([&] { snapshot.Cache(1); });
    EXPECT_EQ(error.code(), "snapshot.corrupt");
    EXPECT_EQ(error.path(), "layers.1.blocks[2]");
  }
  const SnapshotReport report = snapshot.Verify();
  ASSERT_EQ(report.problems.size(), 1u);
  const SnapshotProblem& problem = report.problems[0];
  EXPECT_EQ(problem.code, "snapshot.corrupt");
  EXPECT_EQ(problem.layer, "layers.1");
  EXPECT_EQ(problem.page, 2);
  EXPECT_LE(problem.offset, at);
  EXPECT_GT(problem.offset + 64 * 16, at);
  EXPECT_EQ(problem.offset % 64, 0u);
  EXPECT_EQ(report.bytes_checked, bytes.size());
}

TEST(Damage, OfTokensLeavesThePagesAlone) {
  const SnapshotContent content = TestContent(45);
  std::string bytes = Dump(content);
  bytes[bytes.find(content.tokens->ids.view()) + 9] ^= 1;
  const Snapshot snapshot = OpenBytes(bytes);
  EXPECT_TRUE(snapshot.Cache(1) == content.caches[1].cache);
  EXPECT_EQ(Thrown<ValueError>([&] { snapshot.Tokens(); }).path(), "record[0].tokens");
  const SnapshotReport report = snapshot.Verify();
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0].path, "record[0].tokens");
}

TEST(Damage, NamesTheFile) {
  OpenOptions options;
  options.name = "x.kvcache";
  const std::string bytes = SmallFile();
  const auto error = Thrown<ValueError>(
      [&] { Snapshot::Open(Source(bytes.substr(0, bytes.size() - 64)), options); });
  EXPECT_EQ(error.path(), "x.kvcache: record[0]");
}

TEST(Damage, IsReportedByVerify) {
  std::string bytes = SmallFile();
  EXPECT_TRUE(VerifySnapshot(Source(bytes)).ok());
  bytes[10] ^= 1;
  const SnapshotReport report = VerifySnapshot(Source(bytes));
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0].code, "snapshot.corrupt");
  EXPECT_EQ(Thrown<ValueError>([] { VerifySnapshot(Source("hello")); }).code(), "snapshot.kind");
}

TEST(Damage, WhatIsNoSnapshot) {
  const std::string zeros(200, '\0');
  const std::string safetensors = "\x10" + std::string(7, '\0') + "{\"a\": {}}" + zeros;
  for (const auto& [bytes, what] : {std::pair<std::string, std::string>("GGUF" + zeros, "GGUF"),
                                    {"PK\x03\x04" + zeros, "zip"},
                                    {std::string("\x93NUMPY") + zeros, "numpy"},
                                    {safetensors, "safetensors"},
                                    {"hello hello\n", "text"},
                                    {"caf\xc3\xa9 hello\n", "text"},
                                    {"{\"a\": 1}\n", "JSON"},
                                    {std::string("\x08\x08\x12\x01x"), "ONNX model"},
                                    {"\xff\xfe" + zeros, "unknown"}}) {
    const ValueError error = OpenError(bytes);
    EXPECT_EQ(error.code(), "snapshot.kind");
    EXPECT_NE(error.message().find(what), std::string::npos) << error.what();
  }
}

TEST(Damage, Rewritten) {
  // Canonical writing keeps the fields of the format as unknown ones, at the end.
  const std::string bytes = SmallFile();
  Owned<ModelProto> model;
  Parse(model.arena(), ModelProto::kInfo, *model, {AsBytes(bytes), BufferRef()});
  const Serializer serializer(ModelProto::kInfo, *model);
  std::string rewritten(serializer.size(), '\0');
  serializer.WriteTo(Mutable(rewritten).data());
  EXPECT_EQ(OpenError(rewritten).code(), "snapshot.rewritten");
  rewritten.resize(rewritten.size() - 67);
  EXPECT_EQ(OpenError(rewritten).code().substr(0, 9), "snapshot.");
}

TEST(Damage, TextMode) {
  std::string bytes = SmallFile();
  bytes.erase(bytes.find('\r'), 1);
  const ValueError error = OpenError(bytes);
  EXPECT_EQ(error.code(), "snapshot.corrupt");
  EXPECT_NE(error.message().find("text mode"), std::string::npos) << error.what();
}

TEST(Damage, LaterVersion) {
  std::string bytes = SmallFile();
  snapshot::Head head = HeadOf(bytes);
  head.version = 2;
  SetHead(bytes, head);
  EXPECT_EQ(OpenError(bytes).code(), "snapshot.version");
  // Its foot may look different.
  bytes[bytes.size() - 1] ^= 1;
  EXPECT_EQ(OpenError(bytes).code(), "snapshot.version");
}

// A file of one record with another index, in order but for what `change` did to it.
template <typename F>
std::string WithIndex(const std::string& bytes, F change) {
  snapshot::Index index = snapshot::DecodeIndex(AsBytes(IndexOf(bytes)), 0, "");
  const auto layout = snapshot::LayOutRecord(index, index.extents[0].length,
                                             index.extents[1].length, index.extents[2].length);
  change(index);
  const std::string text = snapshot::EncodeIndex(index);
  std::string changed = bytes.substr(0, layout->graph_end);
  snapshot::PutFiller(changed, snapshot::FillerBeforeIndex(*layout, text.size()));
  changed += text;
  snapshot::Foot foot = FootOf(bytes);
  foot.byte_length = changed.size() + 64;
  foot.index_size = text.size();
  foot.index_checksum = Checksum(AsBytes(text));
  changed += std::string(64, '\0');
  SetFoot(changed, foot);
  snapshot::Head head = HeadOf(changed);
  head.byte_length = changed.size();
  SetHead(changed, head);
  return changed;
}

TEST(Damage, UnknownFeatures) {
  const std::string bytes = SmallFile();
  OpenBytes(WithIndex(bytes, [](snapshot::Index&) {}));
  ValueError error = OpenError(
      WithIndex(bytes, [](snapshot::Index& index) { index.required_features = {"states"}; }));
  EXPECT_EQ(error.code(), "snapshot.features");
  EXPECT_NE(error.message().find("states"), std::string::npos);
  error = OpenError(WithIndex(
      bytes, [](snapshot::Index& index) { index.caches[0].runs[0].key_format = "int3"; }));
  EXPECT_EQ(error.code(), "snapshot.features");
  EXPECT_NE(error.message().find("int3"), std::string::npos);
  error =
      OpenError(WithIndex(bytes, [](snapshot::Index& index) { index.caches[0].policy = "int3"; }));
  EXPECT_EQ(error.code(), "snapshot.features");
}

TEST(Damage, AnIndexThatLies) {
  using snapshot::Index;
  const std::string bytes = SmallFile();
  constexpr int64_t kHuge = INT64_MAX;
  const std::vector<std::function<void(Index&)>> lies = {
      [](Index& i) { i.extents[0].offset = 0; },
      [](Index& i) { i.extents[0].length = kHuge; },
      [](Index& i) { i.extents[1].length += 1; },
      [](Index& i) { i.extents[2].offset = kHuge; },
      [](Index& i) { i.extents.pop_back(); },
      [](Index& i) { i.extents.erase(i.extents.begin()); },
      [](Index& i) { i.extents[2].name = "other"; },
      [](Index& i) { i.caches.pop_back(); },
      [](Index& i) { i.caches[1].name = "a"; },
      [](Index& i) { i.caches[0].batch = 0; },
      [](Index& i) { i.caches[0].batch = kHuge; },
      [](Index& i) { i.caches[0].heads = int64_t{1} << 40; },
      [](Index& i) { i.caches[0].key_width = 3; },
      [](Index& i) { i.caches[0].page_size = 0; },
      [](Index& i) { i.caches[0].checksums.pop_back(); },
      [](Index& i) { i.caches[0].checksums.push_back(0); },
      [](Index& i) { i.caches[0].runs.clear(); },
      [](Index& i) { i.caches[0].runs[0].count = 0; },
      [](Index& i) { i.caches[0].runs[0].count = kHuge; },
      [](Index& i) { i.caches[0].runs[0].start = kHuge; },
      [](Index& i) { i.caches[0].runs[0].start = 1; },
      [](Index& i) { i.caches[0].runs[0].length = kHuge; },
      [](Index& i) { i.caches[0].runs[0].length = 0; },
      [](Index& i) { i.caches[0].runs[0].capacity = kHuge; },
      [](Index& i) { i.caches[0].runs[0].capacity = 3; },
      [](Index& i) { i.caches[0].runs[0].key_format = "int8/channel:64"; },
      [](Index& i) { i.caches[0].runs[0].key_format = "uint4/axis:0:9223372036854775807"; },
      [](Index& i) { i.caches[0].runs[0].value_format = "q8_0"; },
      [](Index& i) { i.caches[0].runs[0].offset += 64; },
      [](Index& i) { i.caches[0].runs[0].stride = 0; },
      [](Index& i) { i.caches[0].runs[1].offset = kHuge; },
      [](Index& i) { i.caches[0].runs[0].key_format = "float32"; },
      [](Index& i) { i.caches[1].start = 0; },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    EXPECT_EQ(OpenError(WithIndex(bytes, lies[i])).code(), "snapshot.corrupt") << i;
  }
  // What only a look at the page tells: bfloat16 is as long as float16.
  const std::string lying =
      WithIndex(bytes, [](Index& i) { i.caches[0].runs[0].value_format = "bfloat16"; });
  const Snapshot snapshot = OpenBytes(lying);
  EXPECT_EQ(Thrown<ValueError>([&] { snapshot.Cache(0); }).path(), "a.blocks[0]");
}

// What is wrong before a tear is in the report, too.
TEST(Damage, BeforeATear) {
  const std::string lying =
      WithIndex(SmallFile(), [](snapshot::Index& index) { index.caches[0].page_size = 0; });
  const std::string torn = lying + std::string(640, '\0');
  EXPECT_EQ(OpenError(torn).code(), "snapshot.torn");
  const SnapshotReport report = VerifySnapshot(Source(torn));
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_EQ(report.problems[0].code, "snapshot.corrupt");
  EXPECT_EQ(report.problems[0].path, "record[0].index");
  EXPECT_EQ(report.problems[1].code, "snapshot.torn");
  EXPECT_EQ(report.problems[1].offset, lying.size());
}

// A key that only a later program knows is not taken for the user's, which could not be saved
// again.
TEST(Damage, ReservedMetadataIsSkipped) {
  std::string bytes = SmallFile();
  const std::string known = "onnx_light.identity.weights", later = "onnx_light.identica.weights";
  const size_t at = bytes.find(known);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, known.size(), later);
  const Snapshot snapshot = OpenBytes(WithIndex(bytes, [&](snapshot::Index& index) {
    for (snapshot::Extent& extent : index.extents) {
      if (extent.name != snapshot::kModelExtent) continue;
      extent.checksum = Checksum(AsBytes(bytes).subspan(extent.offset, extent.length));
    }
  }));
  EXPECT_EQ(snapshot.identity(), KeyValues());
  EXPECT_EQ(snapshot.metadata(), (KeyValues{{"k", "v"}}));
}

// Any index at all, with checksums that fit, either opens or is refused.
TEST(Damage, RandomIndexBytes) {
  const std::string bytes = SmallFile();
  const size_t size = IndexOf(bytes).size(), begin = bytes.size() - 64 - size;
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string changed = bytes;
    for (int i = 0; i <= static_cast<int>(random() % 3); ++i) {
      changed[begin + random() % size] = static_cast<char>(random());
    }
    SealIndex(changed);
    try {
      const Snapshot snapshot = OpenBytes(changed, true);
      for (int64_t i = 0; i < snapshot.size(); ++i) snapshot.Cache(i);
    } catch (const ValueError& error) {
      EXPECT_EQ(error.code().substr(0, 9), "snapshot.") << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 15000);
}

TEST(Damage, HeadAndFootThatLie) {
  const std::string bytes = SmallFile();
  for (uint64_t length : {0, 1, 64, 128, 192, 1 << 20}) {
    std::string lying = bytes;
    snapshot::Foot foot = FootOf(lying);
    foot.byte_length = length;
    SetFoot(lying, foot);
    EXPECT_EQ(OpenError(lying).code(), "snapshot.corrupt");
    snapshot::Head head = HeadOf(lying);
    head.byte_length = length;
    SetHead(lying, head);
    EXPECT_EQ(OpenError(lying).code(), "snapshot.corrupt");
  }
  for (uint64_t size : {uint64_t{0}, uint64_t{1} << 40, UINT64_MAX}) {
    std::string lying = bytes;
    snapshot::Foot foot = FootOf(lying);
    foot.index_size = size;
    SetFoot(lying, foot);
    EXPECT_EQ(OpenError(lying).code(), "snapshot.corrupt");
  }
  for (uint64_t tokens : {uint64_t{0}, uint64_t{5}, uint64_t{1} << 40, UINT64_MAX}) {
    std::string lying = bytes;
    snapshot::Foot foot = FootOf(lying);
    foot.tokens_after = tokens;
    SetFoot(lying, foot);
    EXPECT_EQ(OpenError(lying).code(), "snapshot.corrupt");
    snapshot::Head head = HeadOf(lying);
    head.tokens_before = tokens + 7;
    SetHead(lying, head);
    EXPECT_EQ(OpenError(lying).code(), "snapshot.corrupt");
  }
}

}  // namespace
}  // namespace onnx_light
