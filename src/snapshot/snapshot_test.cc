#include "onnx_light/snapshot.h"

#include <gtest/gtest.h>

#include <thread>

#include "onnx_light/cache_proto.h"
#include "onnx_light/serialization.h"
#include "snapshot/plan.h"
#include "snapshot/record_writer.h"
#include "snapshot/test_content.h"

namespace onnx_light {
namespace {

TEST(Snapshot, RoundTrip) {
  const SnapshotContent content = TestContent(45);
  const std::string bytes = Dump(content);
  EXPECT_EQ(bytes.size() % 64, 0u);
  const Snapshot snapshot = OpenBytes(bytes, true);
  ExpectHolds(snapshot, content);
  EXPECT_EQ(snapshot.start(), 0);
  EXPECT_EQ(snapshot.end(), 45);
  EXPECT_EQ(snapshot.records(), 1);
  EXPECT_EQ(snapshot.nbytes(), 3u * 2 * 45 * 2 * 4 * 2);
  EXPECT_EQ(snapshot.Find("layers.2"), 2);
  EXPECT_EQ(snapshot.Find("layers.3"), -1);
}

TEST(Snapshot, RoundTripOfEveryForm) {
  for (DType dtype : kDTypes) {
    for (int64_t width : {1, 7, 33, 64}) {
      CacheRecipe recipe{{2, 3, width, width + 1}, dtype, 10, 0};
      SnapshotContent content;
      content.caches.push_back({"a", TestCache(37, 1, recipe)});
      recipe.shape = {1, 1, 5, 2};
      recipe.page_size = 1;
      content.caches.push_back({"b", TestCache(37, 2, recipe)});
      recipe.dtype = DType::kFloat32;
      recipe.page_size = 100;
      content.caches.push_back({"c", TestCache(37, 3, recipe)});
      ExpectHolds(OpenBytes(Dump(content), true), content);
    }
  }
}

TEST(Snapshot, PagesOfSeveralForms) {
  CacheRecipe recipe;
  PagedCache cache = TestCache(20, 1, recipe);
  recipe.dtype = DType::kFloat32;
  cache = Appended(cache, recipe, 1, 2);
  recipe.dtype = DType::kBFloat16;
  cache = Appended(cache, recipe, 40, 3);
  SnapshotContent content;
  content.caches.push_back({"mixed", cache});
  content.caches.push_back({"joined", TestCache(20, 1).Concat(TestCache(41, 2))});
  ExpectHolds(OpenBytes(Dump(content), true), content);
}

TEST(Snapshot, NothingAtAll) {
  const Snapshot none = OpenBytes(Dump({}), true);
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(none.length(), 0);
  SnapshotContent content;
  content.caches = {{"a", PagedCache()}, {"b", PagedCache(7)}};
  ExpectHolds(OpenBytes(Dump(content), true), content);
  content.tokens = TestTokens(0);
  ExpectHolds(OpenBytes(Dump(content), true), content);
}

TEST(Snapshot, EmptyCacheKeepsItsPosition) {
  CacheRecipe recipe;
  recipe.start = 32;
  SnapshotContent content;
  content.caches.push_back({"a", TestCache(10, 1, recipe).Truncate(32)});
  content.caches.push_back({"b", TestCache(32, 1)});
  const Snapshot snapshot = OpenBytes(Dump(content), true);
  EXPECT_EQ(snapshot.Cache(0).start(), 32);
  ExpectHolds(snapshot, content);
}

TEST(Snapshot, Window) {
  SnapshotContent content = TestContent(45);
  content.caches[1].cache = content.caches[1].cache.DropBefore(20);
  content.caches[2].cache = content.caches[2].cache.DropBefore(40);
  Snapshot snapshot = OpenBytes(Dump(content), true);
  ExpectHolds(snapshot, content);
  EXPECT_EQ(snapshot.start(), 0);
  content.caches.erase(content.caches.begin());
  snapshot = OpenBytes(Dump(content), true);
  EXPECT_EQ(snapshot.start(), 16);
  EXPECT_EQ(snapshot.length(), 29);
}

TEST(Snapshot, CutRowsStayOut) {
  const PagedCache whole = TestCache(45, 1);
  SnapshotContent content;
  content.caches.push_back({"a", whole.Truncate(20)});
  const std::string bytes = Dump(content);
  ExpectHolds(OpenBytes(bytes, true), content);
  std::string rows(2 * 45 * 4 * 2, '\0');
  whole.ToArray(Side::kKey, DType::kFloat16, rows.data(), rows.size());
  EXPECT_NE(bytes.find(rows.substr(19 * 8, 8)), std::string::npos);
  EXPECT_EQ(bytes.find(rows.substr(20 * 8, 8)), std::string::npos);
}

TEST(Snapshot, SameContentSameBytes) {
  const std::string bytes = Dump(TestContent(45));
  EXPECT_EQ(bytes, Dump(TestContent(45)));
  // Grown token by token, from pages that a file holds, and with checksums known.
  SnapshotContent grown = TestContent(45);
  for (NamedCache& named : grown.caches) named.cache = named.cache.Repage(7).Repage(16);
  EXPECT_EQ(bytes, Dump(grown));
  const Snapshot snapshot = OpenBytes(bytes);
  SnapshotContent read = TestContent(45);
  for (int i = 0; i < 3; ++i) read.caches[i].cache = snapshot.Cache(i);
  EXPECT_EQ(bytes, Dump(read));
  EXPECT_EQ(bytes, Dump(read));
}

TEST(Snapshot, ChecksumsAreKeptForWholePagesInTheirPlace) {
  SnapshotContent content;
  content.caches.push_back({"a", TestCache(40, 1)});
  Dump(content);
  for (const PlacedPage& placed : content.caches[0].cache.pages()) {
    const bool whole = placed.length == placed.page->capacity();
    EXPECT_EQ(placed.page->checksum().Get(placed.start, placed.length).has_value(), whole);
  }
  // A page that went on growing, or stands elsewhere, has another checksum.
  content.caches[0].cache = Appended(content.caches[0].cache, {}, 8, 2);
  ExpectHolds(OpenBytes(Dump(content), true), content);
  content.caches[0].cache = TestCache(16, 5).Concat(content.caches[0].cache);
  ExpectHolds(OpenBytes(Dump(content), true), content);
}

TEST(Snapshot, ReadsWhatTheMessagesSay) {
  const SnapshotContent content = TestContent(45);
  const std::string bytes = Dump(content);
  Owned<ModelProto> model;
  Parse(model.arena(), ModelProto::kInfo, *model, {AsBytes(bytes), BufferRef()});
  const auto caches = model->graph().paged_cache_initializer();
  ASSERT_EQ(caches.size(), 3u);
  for (size_t i = 0; i < caches.size(); ++i) {
    EXPECT_EQ(caches[i]->name(), content.caches[i].name);
    EXPECT_TRUE(CacheFromProto(*caches[i], 16) == content.caches[i].cache);
    for (const PagedCacheBlockProto* block : caches[i]->blocks()) {
      EXPECT_EQ(bytes.find(block->key().raw_data()) % 64, 0u);
      EXPECT_EQ(bytes.find(block->value().raw_data()) % 64, 0u);
    }
  }
  ASSERT_EQ(model->graph().initializer().size(), 1u);
  const TensorProto& tokens = *model->graph().initializer()[0];
  EXPECT_EQ(tokens.raw_data(), content.tokens->ids.view());
  EXPECT_EQ(bytes.find(tokens.raw_data()) % 64, 0u);
}

TEST(Snapshot, Model) {
  const SnapshotContent content = TestContent(45);
  const Snapshot snapshot = OpenBytes(Dump(content, {2048}));
  ASSERT_GT(snapshot.records(), 1);
  Owned<ModelProto> model;
  snapshot.ToModel(model.arena(), *model);
  EXPECT_TRUE(UnknownFields(*model).empty());
  ASSERT_EQ(model->metadata_props().size(), 3u);
  EXPECT_EQ(model->metadata_props()[1]->key(), "onnx_light.identity.weights");
  EXPECT_EQ(model->metadata_props()[2]->value(), "\xc3\xa9");
  ASSERT_EQ(model->graph().paged_cache_initializer().size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const PagedCacheProto& proto = *model->graph().paged_cache_initializer()[i];
    EXPECT_EQ(proto.name(), content.caches[i].name);
    EXPECT_TRUE(CacheFromProto(proto, 16) == snapshot.Cache(i));
  }
  ASSERT_EQ(model->graph().initializer().size(), 1u);
  EXPECT_EQ(model->graph().initializer()[0]->raw_data(), content.tokens->ids.view());
}

TEST(Snapshot, Slice) {
  SnapshotContent content = TestContent(45);
  content.tokens = TestTokens(45, 1);
  const Snapshot slice = OpenBytes(Dump(content)).Slice(20, 40);
  EXPECT_EQ(slice.start(), 20);
  EXPECT_EQ(slice.length(), 20);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(slice.Cache(i) == content.caches[i].cache.Slice(20, 40));
  }
  EXPECT_EQ(slice.nbytes(), 3u * 2 * 29 * 2 * 4 * 2);  // pages of 16 and 13 tokens
  EXPECT_EQ(slice.Tokens()->length, 40);
  EXPECT_EQ(slice.Tokens()->ids.view(), content.tokens->ids.view().substr(0, 40 * 8));
  EXPECT_EQ(slice.Slice(25, 25).length(), 0);
  for (auto [start, end] : {std::pair(19, 40), {20, 41}, {30, 29}}) {
    EXPECT_EQ(Thrown<ValueError>([&] { slice.Slice(start, end); }).code(), "snapshot.position");
  }
}

TEST(Snapshot, CachesOutliveTheirSnapshot) {
  const SnapshotContent content = TestContent(45);
  std::optional<Snapshot> snapshot = OpenBytes(Dump(content));
  const PagedCache cache = snapshot->Cache(1);
  snapshot.reset();
  EXPECT_TRUE(cache == content.caches[1].cache);
}

TEST(Snapshot, ManyReaders) {
  const SnapshotContent content = TestContent(300);
  const Snapshot snapshot = OpenBytes(Dump(content));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] { ExpectHolds(snapshot, content); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Snapshot, File) {
  const TestFolder folder;
  const std::string path = folder / "a.kvcache";
  const SnapshotContent content = TestContent(45);
  const SnapshotWriter writer(content);
  std::vector<uint64_t> done;
  writer.WriteToFile(path, true, false, [&](uint64_t bytes, uint64_t total) {
    EXPECT_EQ(total, writer.size());
    done.push_back(bytes);
  });
  ASSERT_FALSE(done.empty());
  EXPECT_EQ(done.back(), writer.size());
  EXPECT_EQ(ReadTestFile(path), Dump(content));
  EXPECT_EQ(Thrown<SystemError>([&] { writer.WriteToFile(path, false); }).error_number(), EEXIST);
  const auto stop = [](uint64_t, uint64_t) { throw ValueError("stop", "", "now"); };
  EXPECT_EQ(Thrown<ValueError>([&] { writer.WriteToFile(path, true, false, stop); }).code(),
            "stop");
  EXPECT_EQ(folder.Names(), std::vector<std::string>{"a.kvcache"});
}

std::string WriteError(const SnapshotContent& content, const SnapshotWriterOptions& options = {}) {
  return Thrown<ValueError>([&] { SnapshotWriter(content, options); }).what();
}

TEST(SnapshotWriter, RefusesWhatDoesNotGoTogether) {
  SnapshotContent content = TestContent(45);
  content.caches[2].cache = TestCache(40, 1);
  EXPECT_EQ(WriteError(content),
            "layers.2: ends at position 40, but layers.0 at 45: all caches of a snapshot end at "
            "one position");
  content = TestContent(45);
  content.tokens = TestTokens(44);
  EXPECT_EQ(WriteError(content),
            "tokens: ids [44] do not cover the positions 0 to 45 where the caches end");
  content.tokens = TestTokens(45, 2);
  EXPECT_EQ(WriteError(content), "tokens: ids [2, 45] do not go with layers.0, whose batch is 1");
  content.tokens = TestTokens(45);
  content.tokens->ids = content.tokens->ids.Slice(0, 44 * 8);
  EXPECT_EQ(WriteError(content), "tokens: 352 bytes are no int64 ids [45]");
  for (const char* name : {"", "\xff", "onnx_light.tokens", "layers.0"}) {
    content = TestContent(45);
    content.caches[1].name = name;
    EXPECT_EQ(WriteError(content).substr(0, 10), "caches[1]:") << name;
  }
  content = TestContent(45);
  content.metadata = {{"onnx_light.x", "y"}};
  EXPECT_EQ(WriteError(content),
            "metadata[onnx_light.x]: keys that begin with onnx_light. are reserved");
  content.metadata = {{"a", ""}, {"a", ""}};
  EXPECT_EQ(WriteError(content), "metadata[a]: the key is given twice");
  content.metadata = {{"a", "\xc0\x80"}};
  EXPECT_EQ(WriteError(content), "metadata: a key or its value is no UTF-8");
}

TEST(SnapshotWriter, RefusesATokenThatFitsNoRecord) {
  EXPECT_EQ(Thrown<ValueError>([] { Dump(TestContent(45), {1024}); }).code(), "snapshot.too_large");
  CacheRecipe recipe;
  recipe.start = (int64_t{1} << 35) - 1;
  SnapshotContent content;
  content.caches.push_back({"a", TestCache(1, 1, recipe)});
  EXPECT_EQ(Thrown<ValueError>([&] { Dump(content); }).code(), "snapshot.too_large");
}

}  // namespace
}  // namespace onnx_light
