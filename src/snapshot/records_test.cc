// Files of several records.
#include <gtest/gtest.h>

#include "snapshot/plan.h"
#include "snapshot/record_writer.h"
#include "snapshot/test_content.h"

namespace onnx_light {
namespace {

// Where the records of a file end.
std::vector<size_t> Ends(const std::string& bytes) {
  std::vector<size_t> ends;
  for (size_t at = 0; at < bytes.size();) {
    at += HeadOf(bytes, at).byte_length;
    ends.push_back(at);
  }
  return ends;
}

// The record that an append of content's tokens [first, end) writes.
std::string RecordBytes(const SnapshotContent& content, uint32_t number, int64_t first) {
  const std::string model = snapshot::ModelFields(content);
  auto plan = *snapshot::PlanRecord(content, model, first, snapshot::EndOf(content),
                                    snapshot::kMaxRecordSize);
  plan.head.number = number;
  std::string bytes;
  snapshot::PartWriter out([&](snapshot::PartWriter::Parts parts) {
    for (const auto part : parts) {
      bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
  });
  snapshot::WriteRecord(plan, model, content, out);
  return bytes;
}

TEST(Records, CutBySize) {
  for (uint64_t size : {2048u, 3000u, 4096u, 10000u}) {
    const SnapshotContent content = TestContent(333);
    const std::string bytes = Dump(content, {size});
    size_t before = 0;
    for (size_t end : Ends(bytes)) {
      EXPECT_LE(end - before, size);
      before = end;
    }
    const Snapshot snapshot = OpenBytes(bytes, true);
    EXPECT_GT(snapshot.records(), 1);
    EXPECT_EQ(snapshot.records(), SnapshotWriter(content, {size}).records());
    if (size > 2048) {
      ExpectHolds(snapshot, content);  // cut between pages
    } else {
      for (int i = 0; i < 3; ++i) {  // cut inside pages: the same rows
        EXPECT_TRUE(snapshot.Cache(i).Repage(16) == content.caches[i].cache);
      }
    }
  }
}

TEST(Records, CutBetweenPagesOfAllCaches) {
  SnapshotContent content = TestContent(333);
  content.caches[1].cache = content.caches[1].cache.Repage(48);
  content.caches[2].cache = content.caches[2].cache.DropBefore(200);
  content.tokens = TestTokens(333, 1);
  const std::string bytes = Dump(content, {10000});
  EXPECT_GT(Ends(bytes).size(), 2u);
  ExpectHolds(OpenBytes(bytes, true), content);
}

TEST(Records, TokensOfABatch) {
  CacheRecipe recipe;
  recipe.shape.batch = 3;
  SnapshotContent content;
  content.caches.push_back({"a", TestCache(100, 1, recipe)});
  content.tokens = TestTokens(100, 3);
  const Snapshot snapshot = OpenBytes(Dump(content, {6000}), true);
  EXPECT_GT(snapshot.records(), 1);
  ExpectHolds(snapshot, content);
  EXPECT_EQ(snapshot.Slice(0, 10).Tokens()->ids.size, 3u * 10 * 8);
}

TEST(Records, EveryPrefixOfRecordsIsASnapshot) {
  SnapshotContent content = TestContent(333);
  content.caches[2].cache = content.caches[2].cache.DropBefore(300);
  const std::string bytes = Dump(content, {10000});
  for (size_t end : Ends(bytes)) {
    const Snapshot snapshot = OpenBytes(bytes.substr(0, end), true);
    EXPECT_TRUE(snapshot.Cache(0) == content.caches[0].cache.Truncate(snapshot.end()));
    EXPECT_EQ(snapshot.Cache(2).end(), snapshot.end());
    EXPECT_EQ(snapshot.Tokens()->length, snapshot.end());
  }
}

TEST(Records, LaterOnesContinueAndSupersede) {
  SnapshotContent content = TestContent(20);
  std::string bytes = Dump(content);
  // A flush, the fuller page, a roll back to 30 and other tokens from there.
  for (const auto& [keep, added, first] :
       {std::tuple(20, 5, 20), {25, 39, 16}, {30, 11, 30}, {41, 1, 41}}) {
    for (NamedCache& named : content.caches) {
      named.cache = Appended(named.cache.Truncate(keep), {}, added, 77 + added);
    }
    content.tokens = TestTokens(keep + added);
    content.metadata.emplace_back("n" + std::to_string(added), "x");
    content.metadata[0].second += "!";
    bytes += RecordBytes(content, OpenBytes(bytes).records(), first);
    const Snapshot snapshot = OpenBytes(bytes, true);
    EXPECT_EQ(snapshot.end(), keep + added);
    EXPECT_EQ(snapshot.metadata(), content.metadata);
    EXPECT_EQ(snapshot.Tokens()->ids.view(), content.tokens->ids.view());
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(snapshot.Cache(i).Repage(16) == content.caches[i].cache.Repage(16));
    }
  }
}

TEST(Records, AWindowMovesOn) {
  SnapshotContent content = TestContent(64);
  std::string bytes = Dump(content);
  for (NamedCache& named : content.caches) {
    named.cache = Appended(named.cache, {}, 36, 5).DropBefore(50);
  }
  content.tokens.reset();
  bytes += RecordBytes(content, 1, 64);
  const Snapshot snapshot = OpenBytes(bytes, true);
  EXPECT_EQ(snapshot.start(), 48);
  EXPECT_FALSE(snapshot.Tokens().has_value());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(snapshot.Cache(i) == content.caches[i].cache);
}

TEST(Records, RefusesWhatDoesNotGoTogether) {
  const SnapshotContent content = TestContent(40);
  const std::string first = Dump(content);
  const auto append = [&](const SnapshotContent& next, uint32_t number, int64_t from) {
    const ValueError error = OpenError(first + RecordBytes(next, number, from), false);
    EXPECT_EQ(error.code(), "snapshot.corrupt");
    return error.message().substr(error.message().find(": ") + 2);
  };
  EXPECT_EQ(append(TestContent(60), 2, 40),
            "a record with number 2: records are missing or in another order");
  EXPECT_EQ(append(TestContent(60), 1, 48), "begins at position 48, the records before end at 40");
  EXPECT_EQ(append(TestContent(60, 2), 1, 40), "does not name the caches of the records before");
  SnapshotContent other = TestContent(60);
  other.caches[1].name = "x";
  EXPECT_EQ(append(other, 1, 40), "has the cache x in place of layers.1");
  other = TestContent(60);
  CacheRecipe recipe;
  recipe.shape.heads = 3;
  other.caches[1].cache = TestCache(60, 1, recipe);
  EXPECT_EQ(append(other, 1, 40), "layers.1 has another shape than in the records before");
  recipe = {};
  recipe.start = 50;
  other.caches[1].cache = TestCache(10, 1, recipe);
  EXPECT_EQ(append(other, 1, 40), "pages of layers.1 are missing before position 50");
}

TEST(Records, Torn) {
  const SnapshotContent content = TestContent(100);
  const std::string bytes = Dump(content, {4096});
  const std::vector<size_t> ends = Ends(bytes);
  ASSERT_GT(ends.size(), 2u);
  const size_t whole = ends[ends.size() - 2];
  const auto expect_torn = [&](const std::string& torn) {
    const ValueError error = OpenError(torn);
    EXPECT_EQ(error.code(), "snapshot.torn") << error.what();
    EXPECT_EQ(error.path(), "record[" + std::to_string(ends.size() - 1) + "]");
    OpenOptions options;
    options.recover = true;
    const Snapshot snapshot = Snapshot::Open(Source(torn), options);
    EXPECT_EQ(snapshot.records(), static_cast<int64_t>(ends.size() - 1));
    EXPECT_TRUE(snapshot.Cache(1) == content.caches[1].cache.Truncate(snapshot.end()));
    const SnapshotReport report = VerifySnapshot(Source(torn));
    ASSERT_EQ(report.problems.size(), 1u);
    EXPECT_EQ(report.problems[0].code, "snapshot.torn");
    EXPECT_EQ(report.length, snapshot.length());
  };
  for (size_t cut = whole + 1; cut < bytes.size(); cut += 61) expect_torn(bytes.substr(0, cut));
  expect_torn(bytes.substr(0, bytes.size() - 64) + std::string(64, '\0'));
  expect_torn(bytes.substr(0, whole) + std::string(4096, '\0'));
  // Bytes of the last record that never arrived.
  std::string torn = bytes.substr(0, bytes.size() - 64) + std::string(64, '\0');
  std::fill(torn.begin() + whole, torn.begin() + whole + 640, '\0');
  expect_torn(torn);
}

TEST(Records, DamageInsideIsNoTear) {
  const std::string bytes = Dump(TestContent(100), {4096});
  const std::vector<size_t> ends = Ends(bytes);
  OpenOptions recover;
  recover.recover = true;
  const auto expect_corrupt = [&](const std::string& damaged) {
    EXPECT_EQ(OpenError(damaged).code(), "snapshot.corrupt");
    EXPECT_EQ(Thrown<ValueError>([&] { Snapshot::Open(Source(damaged), recover); }).code(),
              "snapshot.corrupt");
  };
  for (size_t at : {ends[0], ends[0] - 1, ends[1] + 40, ends[1] - 30, size_t{3}, size_t{50}}) {
    std::string damaged = bytes;
    damaged[at] ^= 4;
    expect_corrupt(damaged);
    // And a foot that says so, further behind than the tear.
    damaged.resize(damaged.size() - 5);
    if (at != ends[0] - 1 && at != ends[1] - 30) expect_corrupt(damaged);
  }
  // A whole length, but a foot that is not zero.
  std::string damaged = bytes;
  damaged[damaged.size() - 7] ^= 1;
  expect_corrupt(damaged);
  // Without the first, and in another order.
  expect_corrupt(bytes.substr(ends[0]));
  expect_corrupt(bytes.substr(ends[0], ends[1] - ends[0]) + bytes.substr(0, ends[0]));
}

}  // namespace
}  // namespace onnx_light
