// Many threads on shared values. Run it under the thread sanitizer, too.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "cache/cache_model.h"

namespace onnx_light {
namespace {

constexpr CacheShape kShape{1, 2, 3, 2};
constexpr int kThreads = 4;

void InThreads(const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(f, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(CacheThreadTest, ForksOfOneValue) {
  std::mt19937 random(1);
  CacheModel model;
  model.shape = kShape;
  model.page_size = 32;
  PagedCache base(32);
  int in_place = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::vector<ModelToken>> tokens;
    for (int i = 0; i < kThreads; ++i) {
      tokens.push_back(
          RandomTokens(kShape, 1 + round % 7, DType::kFloat32, DType::kFloat32, random));
    }
    std::vector<PagedCache> results(kThreads);
    InThreads([&](int i) { results[i] = AppendTokens(base, kShape, tokens[i]); });
    const std::shared_ptr<const Page> open =
        base.empty() ? nullptr : base.pages()[base.pages().size() - 1].page;
    int same = 0;
    for (int i = 0; i < kThreads; ++i) {
      CacheModel expected = model;
      expected.Append(tokens[i]);
      ASSERT_EQ(Difference(results[i], expected), "") << "round " << round;
      const PageRange pages = results[i].pages();
      for (const PlacedPage& placed : pages)
        same += placed.page == open && placed.end() > base.end();
    }
    ASSERT_LE(same, 1);
    in_place += same;
    ASSERT_EQ(Difference(base, model), "");
    base = results[round % kThreads];
    model.Append(tokens[round % kThreads]);
  }
  EXPECT_GT(in_place, 0);
}

TEST(CacheThreadTest, ReadersOfOldValuesBesideAWriter) {
  std::mt19937 random(2);
  std::vector<ModelToken> all = RandomTokens(kShape, 400, DType::kFloat16, DType::kFloat32, random);
  std::mutex mutex;
  PagedCache latest(16);
  std::atomic<bool> done = false;
  std::thread writer([&] {
    PagedCache cache = latest;
    for (const ModelToken& token : all) {
      cache = AppendTokens(cache, kShape, {token});
      const std::lock_guard lock(mutex);
      latest = cache;
    }
    done = true;
  });
  InThreads([&](int) {
    while (!done) {
      PagedCache seen;
      {
        const std::lock_guard lock(mutex);
        seen = latest;
      }
      if (seen.empty()) continue;
      const int64_t start = std::max<int64_t>(0, seen.end() - 40);
      CacheModel model;
      model.shape = kShape;
      model.page_size = 16;
      model.Append({all.begin(), all.begin() + seen.end()});
      model.Slice(start, seen.end());
      if (Difference(seen.Slice(start, seen.end()), model) != "") {
        ADD_FAILURE() << "at " << seen.end();
        return;
      }
    }
  });
  writer.join();
  CacheModel model;
  model.shape = kShape;
  model.page_size = 16;
  model.Append(all);
  EXPECT_EQ(Difference(latest, model), "");
}

TEST(CacheThreadTest, LongForksBesideEachOther) {
  std::mt19937 random(3);
  const auto prompt = RandomTokens(kShape, 50, DType::kFloat32, DType::kFloat32, random);
  const PagedCache base = AppendTokens(PagedCache(16), kShape, prompt);
  InThreads([&](int i) {
    std::mt19937 own(100 + i);
    PagedCache cache = base;
    CacheModel model;
    model.shape = kShape;
    model.page_size = 16;
    model.Append(prompt);
    for (int step = 0; step < 60; ++step) {
      const auto tokens =
          RandomTokens(kShape, 1 + own() % 3, DType::kFloat32, DType::kFloat32, own);
      cache = AppendTokens(cache, kShape, tokens);
      model.Append(tokens);
      if (step % 7 == 6) {
        cache = cache.Truncate(cache.end() - 5);
        model.Truncate(model.end() - 5);
      }
    }
    EXPECT_EQ(Difference(cache, model), "");
  });
}

}  // namespace
}  // namespace onnx_light
