// Random operations on a pool of caches that share pages, each beside its model.
#include <gtest/gtest.h>

#include "cache/cache_model.h"

namespace onnx_light {
namespace {

struct Pair {
  PagedCache cache;
  CacheModel model;
};

class Walk {
 public:
  explicit Walk(uint32_t seed) : random_(seed) {
    CacheModel model;
    model.shape = {Pick(1, 2), Pick(1, 3), Pick(1, 6), Pick(1, 6)};
    model.page_size = Pick(1, 20);
    pool_.push_back({PagedCache(model.page_size), model});
  }

  void Step() {
    Pair pair = pool_[Pick(0, static_cast<int64_t>(pool_.size()) - 1)];
    Change(pair);
    ASSERT_EQ(Difference(pair.cache, pair.model), "");
    if (pool_.size() < 8) {
      pool_.push_back(pair);
    } else {
      pool_[Pick(0, 7)] = pair;
    }
  }

  void ExpectAll() const {
    for (const Pair& pair : pool_) ASSERT_EQ(Difference(pair.cache, pair.model), "");
  }

 private:
  int64_t Pick(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % (most - least + 1));
  }

  void Append(Pair& pair) {
    static constexpr DType kChoices[] = {DType::kFloat32, DType::kFloat32, DType::kFloat32,
                                         DType::kFloat16, DType::kFloat8E5M2};
    const DType key = kChoices[Pick(0, 4)], value = kChoices[Pick(0, 4)];
    const auto tokens = RandomTokens(pair.model.shape, Pick(0, 30), key, value, random_);
    pair.cache = AppendTokens(pair.cache, pair.model.shape, tokens);
    pair.model.Append(tokens);
  }

  void Change(Pair& pair) {
    const int64_t start = pair.model.start, end = pair.model.end();
    const int64_t a = Pick(start, end), b = Pick(a, end);
    switch (Pick(0, 11)) {
      case 0:
        pair.cache = pair.cache.Truncate(b);
        pair.model.Truncate(b);
        break;
      case 1:
        pair.cache = pair.cache.DropBefore(a);
        pair.model.DropBefore(a);
        break;
      case 2:
        pair.cache = pair.cache.Slice(a, b);
        pair.model.Slice(a, b);
        break;
      case 3: {
        const Pair& other = pool_[Pick(0, static_cast<int64_t>(pool_.size()) - 1)];
        if (end - start + other.cache.length() > 2000) break;
        if (!(other.model.shape == pair.model.shape)) break;
        pair.cache = pair.cache.Concat(other.cache);
        pair.model.Concat(other.model);
        break;
      }
      case 4: {
        if (pair.cache.empty()) break;
        std::vector<int64_t> indices(Pick(1, 3));
        for (int64_t& index : indices) index = Pick(0, pair.model.shape.batch - 1);
        pair.cache = pair.cache.Gather(indices);
        pair.model.Gather(indices);
        break;
      }
      case 5: {
        const int64_t size = Pick(1, 40);
        pair.cache = pair.cache.Repage(size);
        pair.model.Repage(size);
        break;
      }
      default:
        Append(pair);
    }
  }

  std::mt19937 random_;
  std::vector<Pair> pool_;
};

TEST(CacheRandomTest, OperationsAgreeWithTheModel) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Walk walk(seed);
    for (int step = 0; step < 150; ++step) {
      walk.Step();
      if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
    walk.ExpectAll();
  }
}

}  // namespace
}  // namespace onnx_light
