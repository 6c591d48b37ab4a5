#include "onnx_light/cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "cache/cache_model.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr DType kF32 = DType::kFloat32, kF16 = DType::kFloat16;

struct Fixture {
  CacheModel model;
  PagedCache cache;
  std::mt19937 random{17};

  explicit Fixture(CacheShape shape = {2, 3, 5, 4}, int64_t page_size = 16) : cache(page_size) {
    model.shape = shape;
    model.page_size = page_size;
  }
  std::vector<ModelToken> Tokens(int64_t count, DType key = kF32, DType value = kF32) {
    return RandomTokens(model.shape, count, key, value, random);
  }
  void Add(int64_t count, DType key = kF32, DType value = kF32) {
    const auto tokens = Tokens(count, key, value);
    model.Append(tokens);
    cache = AppendTokens(cache, model.shape, tokens);
  }
};

// A value of ones in the shape [1, 1, tokens, width].
ArrayView Ones(int64_t tokens, int64_t width, int64_t heads = 1, int64_t batch = 1) {
  static const std::vector<float> kOnes(4096, 1.0f);
  return ContiguousView(kOnes.data(), kF32, {batch, heads, tokens, width});
}

struct Caught {
  std::string code, path, message;
};

Caught Catch(const std::function<void()>& f) {
  try {
    f();
  } catch (const ValueError& error) {
    return {error.code(), error.path(), error.message()};
  }
  return {};
}

TEST(CacheTest, EmptyCache) {
  const PagedCache empty;
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(empty.start(), 0);
  EXPECT_EQ(empty.end(), 0);
  EXPECT_EQ(empty.page_size(), 64);
  EXPECT_EQ(empty.shape(), CacheShape());
  EXPECT_EQ(empty.pages().size(), 0);
  EXPECT_TRUE(empty.pages().begin() == empty.pages().end());
  EXPECT_EQ(empty.nbytes(), 0);
  EXPECT_EQ(empty.bits_per_value(), 0);
  EXPECT_EQ(empty.CommonDType(Side::kKey), std::nullopt);
  EXPECT_TRUE(empty == PagedCache(3));
  EXPECT_TRUE(empty.Truncate(0) == empty);
  EXPECT_TRUE(empty.DropBefore(0) == empty);
  EXPECT_TRUE(empty.Slice(0, 0) == empty);
  EXPECT_TRUE(empty.Concat(empty) == empty);
  EXPECT_TRUE(empty.Repage(5) == empty);
  EXPECT_TRUE(empty.Compare(empty).empty());
  empty.Validate();
  empty.ToArray(Side::kKey, kF32, nullptr, 0);
}

TEST(CacheTest, EveryWayToReachALength) {
  for (int64_t page_size : {1, 2, 15, 16, 17, 33, 64}) {
    for (int64_t length : {1, 14, 15, 16, 17, 31, 32, 33, 34, 48, 49, 63, 64, 65, 66, 129}) {
      for (int64_t step : {int64_t{1}, page_size - 1, page_size, page_size + 1, length}) {
        if (step == 0) continue;
        Fixture f({1, 2, 3, 2}, page_size);
        while (f.cache.length() < length) f.Add(std::min(step, length - f.cache.length()));
        ASSERT_EQ(Difference(f.cache, f.model), "") << page_size << " " << length << " " << step;
      }
    }
  }
}

TEST(CacheTest, OldValuesStay) {
  Fixture f;
  std::vector<std::pair<PagedCache, CacheModel>> old;
  for (int i = 0; i < 60; ++i) {
    old.emplace_back(f.cache, f.model);
    f.Add(1 + i % 5);
  }
  for (const auto& [cache, model] : old) ASSERT_EQ(Difference(cache, model), "");
}

TEST(CacheTest, OpenPageGrowsInPlaceForOneAndIsCopiedForTheOthers) {
  Fixture f;
  f.Add(3);
  const PagedCache base = f.cache;
  CacheModel forked = f.model;
  const auto other = f.Tokens(2);
  f.Add(2);
  EXPECT_EQ(f.cache.pages()[0].page, base.pages()[0].page);
  const PagedCache fork = AppendTokens(base, f.model.shape, other);
  forked.Append(other);
  EXPECT_NE(fork.pages()[0].page, base.pages()[0].page);
  EXPECT_EQ(Difference(f.cache, f.model), "");
  EXPECT_EQ(Difference(fork, forked), "");
  EXPECT_EQ(base.end(), 3);
  EXPECT_EQ(fork.pages()[0].page->capacity(), 16);
}

TEST(CacheTest, CapacityGrowsFromSixteenToThePageSize) {
  Fixture f({1, 1, 2, 2}, 100);
  std::vector<int64_t> capacities;
  for (int i = 0; i < 101; ++i) {
    f.Add(1);
    const PageRange pages = f.cache.pages();
    capacities.push_back(pages[pages.size() - 1].page->capacity());
  }
  EXPECT_EQ(capacities[0], 16);
  EXPECT_EQ(capacities[15], 16);
  EXPECT_EQ(capacities[16], 32);
  EXPECT_EQ(capacities[63], 64);
  EXPECT_EQ(capacities[64], 100);
  EXPECT_EQ(capacities[99], 100);
  EXPECT_EQ(capacities[100], 16);
  EXPECT_EQ(PagedCache(5).Append(Ones(1, 2), Ones(1, 2)).pages()[0].page->capacity(), 5);
}

TEST(CacheTest, ChangeOfDtypeOnEitherSideBeginsAPage) {
  Fixture f;
  f.Add(20);
  f.Add(3, kF16, kF32);
  f.Add(3, kF16, kF16);
  f.Add(0, kF32, kF32);
  f.Add(2, kF16, kF16);
  f.Add(1);
  EXPECT_EQ(f.model.lengths, (std::vector<int64_t>{16, 4, 3, 5, 1}));
  EXPECT_EQ(Difference(f.cache, f.model), "");
  EXPECT_EQ(f.cache.CommonDType(Side::kKey), std::nullopt);
  EXPECT_EQ(f.cache.Truncate(20).CommonDType(Side::kKey), kF32);
}

TEST(CacheTest, TruncateAtEveryLengthAndGrowOn) {
  Fixture f({1, 2, 3, 2}, 8);
  f.Add(27);
  for (int64_t end = 0; end <= 27; ++end) {
    Fixture cut = f;
    cut.cache = f.cache.Truncate(end);
    cut.model.Truncate(end);
    ASSERT_EQ(Difference(cut.cache, cut.model), "") << end;
    cut.Add(11);
    ASSERT_EQ(Difference(cut.cache, cut.model), "") << end;
  }
  EXPECT_EQ(Difference(f.cache, f.model), "");
}

TEST(CacheTest, DropBeforeEveryPositionAndGrowOn) {
  for (int64_t length : {24, 27}) {
    Fixture f({1, 2, 3, 2}, 8);
    f.Add(length);
    for (int64_t position = 0; position <= length; ++position) {
      Fixture cut = f;
      cut.cache = f.cache.DropBefore(position);
      cut.model.DropBefore(position);
      ASSERT_EQ(Difference(cut.cache, cut.model), "") << position;
      ASSERT_TRUE(cut.cache.DropBefore(0) == cut.cache);
      cut.Add(11);
      ASSERT_EQ(Difference(cut.cache, cut.model), "") << position;
    }
  }
}

TEST(CacheTest, SliceAtEveryPairAndGrowOn) {
  Fixture f({2, 1, 3, 2}, 8);
  f.Add(19, kF16, kF32);
  f.Add(4);
  for (int64_t start = 0; start <= 23; ++start) {
    for (int64_t end = start; end <= 23; ++end) {
      Fixture cut = f;
      cut.cache = f.cache.Slice(start, end);
      cut.model.Slice(start, end);
      ASSERT_EQ(Difference(cut.cache, cut.model), "") << start << " " << end;
      cut.Add(9);
      ASSERT_EQ(Difference(cut.cache, cut.model), "") << start << " " << end;
    }
  }
}

TEST(CacheTest, ConcatRenumbers) {
  for (int64_t first : {0, 5, 16, 20}) {
    for (int64_t second : {0, 3, 16, 39}) {
      Fixture a, b;
      a.Add(first);
      b.Add(second);
      b.Add(second, kF16, kF16);
      b.cache = b.cache.DropBefore(second);
      b.model.DropBefore(second);
      a.cache = a.cache.Concat(b.cache);
      a.model.Concat(b.model);
      ASSERT_EQ(Difference(a.cache, a.model), "") << first << " " << second;
      a.Add(20, kF16, kF16);
      ASSERT_EQ(Difference(a.cache, a.model), "") << first << " " << second;
    }
  }
}

TEST(CacheTest, ConcatWithItselfSharesPages) {
  Fixture f;
  f.Add(20);
  const PagedCache twice = f.cache.Concat(f.cache);
  EXPECT_EQ(twice.end(), 40);
  EXPECT_EQ(twice.pages()[0].page, twice.pages()[2].page);
  EXPECT_EQ(twice.pages()[1].page, twice.pages()[3].page);
  EXPECT_EQ(twice.pages()[2].start, 20);
}

TEST(CacheTest, GatherReordersRepeatsAndGrowsOn) {
  const std::vector<std::vector<int64_t>> choices = {{0}, {1, 0}, {1, 1, 0}, {0, 1}, {0, 0, 1, 1}};
  for (int64_t length : {3, 16, 21}) {
    for (const auto& indices : choices) {
      Fixture f;
      f.Add(length, kF16, kF32);
      const PagedCache before = f.cache;
      f.cache = f.cache.Gather(indices);
      f.model.Gather(indices);
      ASSERT_EQ(Difference(f.cache, f.model), "");
      EXPECT_EQ(f.cache.pages()[0].page == before.pages()[0].page,
                indices == (std::vector<int64_t>{0, 1}));
      f.Add(20, kF16, kF32);
      ASSERT_EQ(Difference(f.cache, f.model), "");
    }
  }
}

TEST(CacheTest, RepageCutsAnewAndSharesWhatFits) {
  Fixture f;
  f.Add(40);
  f.Add(5, kF16, kF16);
  for (int64_t size : {1, 7, 8, 16, 32, 100}) {
    Fixture again = f;
    again.cache = f.cache.Repage(size);
    again.model.Repage(size);
    ASSERT_EQ(Difference(again.cache, again.model), "") << size;
    again.Add(20, kF16, kF16);
    ASSERT_EQ(Difference(again.cache, again.model), "") << size;
  }
  EXPECT_EQ(f.cache.Repage(16).pages()[1].page, f.cache.pages()[1].page);
  EXPECT_EQ(Difference(f.cache, f.model), "");
}

TEST(CacheTest, StartMayBeAnywhere) {
  const auto cache = PagedCache::FromArrays(Ones(5, 2), Ones(5, 3), 4, 100);
  EXPECT_EQ(cache.start(), 100);
  EXPECT_EQ(cache.end(), 105);
  EXPECT_EQ(cache.pages()[1].start, 104);
  EXPECT_EQ(cache.shape(), (CacheShape{1, 1, 2, 3}));
  EXPECT_EQ(PagedCache::FromArrays(Ones(5, 2), Ones(5, 3), 64, kMost - 5).end(), kMost);
}

TEST(CacheTest, ToArrayConvertsOnce) {
  Fixture f({2, 2, 3, 2}, 8);
  std::vector<float> keys(2 * 2 * 20 * 3), values(2 * 2 * 20 * 2);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<float>(i) + 0.25f;
  for (size_t i = 0; i < values.size(); ++i) values[i] = -static_cast<float>(i);
  const auto cache = PagedCache::FromArrays(ContiguousView(keys.data(), kF32, {2, 2, 20, 3}),
                                            ContiguousView(values.data(), kF32, {2, 2, 20, 2}), 8);
  std::vector<float> out(keys.size());
  cache.ToArray(Side::kKey, kF32, out.data(), out.size() * 4);
  EXPECT_EQ(out, keys);
  std::vector<uint16_t> halves(values.size());
  cache.ToArray(Side::kValue, DType::kBFloat16, halves.data(), halves.size() * 2);
  EXPECT_EQ(halves[0], 0x8000u);  // -0
  EXPECT_EQ(halves[1], 0xbf80u);  // -1
  EXPECT_EQ(halves[3], 0xc040u);  // -3
  // A slice has its own length, and so another stride.
  const auto slice = cache.Slice(3, 17);
  out.assign(2 * 2 * 14 * 3, 0);
  slice.ToArray(Side::kKey, kF32, out.data(), out.size() * 4);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 14 * 3; ++j) ASSERT_EQ(out[i * 42 + j], keys[i * 60 + 9 + j]);
  }
  EXPECT_EQ(Catch([&] { cache.ToArray(Side::kKey, kF32, out.data(), 7); }).code, "cache.shape");
}

TEST(CacheTest, EqualityIsBitsFormatsAndBorders) {
  Fixture a, b;  // the same random numbers
  a.Add(21);
  b.Add(21);
  EXPECT_TRUE(a.cache == b.cache);
  EXPECT_TRUE(a.cache == b.cache.Append(Ones(4, 5, 3, 2), Ones(4, 4, 3, 2)).Truncate(21));
  EXPECT_FALSE(a.cache == a.cache.Truncate(20));
  EXPECT_FALSE(a.cache == a.cache.Repage(8));
  EXPECT_FALSE(a.cache == a.cache.Slice(1, 21));
  EXPECT_FALSE(a.cache == PagedCache(16));
  const float zero = 0.0f, minus = -0.0f, nan = std::nanf("");
  const auto single = [](const float& x) {
    const ArrayView view = ContiguousView(&x, kF32, {1, 1, 1, 1});
    return PagedCache::FromArrays(view, view);
  };
  EXPECT_FALSE(single(zero) == single(minus));
  EXPECT_TRUE(single(nan) == single(nan));
  const ArrayView half = ContiguousView(&zero, kF16, {1, 1, 1, 1});
  EXPECT_FALSE(PagedCache::FromArrays(half, half) == single(zero));
  EXPECT_FALSE(PagedCache::FromArrays(Ones(2, 4), Ones(2, 4)) ==
               PagedCache::FromArrays(Ones(2, 4), Ones(2, 4), 64, 1));
  EXPECT_TRUE(PagedCache::FromArrays(Ones(2, 4), Ones(2, 4), 2) ==
              PagedCache::FromArrays(Ones(2, 4), Ones(2, 4), 64));
}

TEST(CacheTest, CompareGivesErrorsPerPage) {
  const std::vector<float> keys = {1, 2, 3, 4, 5, 6}, others = {1, 2.5f, 3, 4, 4, 6};
  const auto cache = [](const std::vector<float>& k, int64_t page_size) {
    return PagedCache::FromArrays(ContiguousView(k.data(), kF32, {1, 1, 3, 2}), Ones(3, 1),
                                  page_size);
  };
  const auto errors = cache(keys, 2).Compare(cache(others, 64));
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0].start, 0);
  EXPECT_EQ(errors[0].end, 2);
  EXPECT_EQ(errors[0].key_max, 0.5);
  EXPECT_DOUBLE_EQ(errors[0].key_rms, std::sqrt(0.25 / 4));
  EXPECT_EQ(errors[1].start, 2);
  EXPECT_EQ(errors[1].key_max, 1.0);
  EXPECT_DOUBLE_EQ(errors[1].key_rms, std::sqrt(1.0 / 2));
  EXPECT_EQ(errors[1].value_max, 0);
  EXPECT_EQ(errors[1].value_rms, 0);
  EXPECT_EQ(Catch([&] { cache(keys, 2).Compare(cache(keys, 2).Truncate(2)); }).code,
            "cache.mismatch");
}

TEST(CacheTest, CompareOfInfinitiesAndNaN) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const auto error = [](float a, float b) {
    const auto cache = [](const float& x) {
      const ArrayView view = ContiguousView(&x, kF32, {1, 1, 1, 1});
      return PagedCache::FromArrays(view, view);
    };
    return cache(a).Compare(cache(b))[0].key_max;
  };
  EXPECT_EQ(error(infinity, infinity), 0);
  EXPECT_EQ(error(infinity, -infinity), HUGE_VAL);
  EXPECT_EQ(error(nan, nan), 0);
  EXPECT_TRUE(std::isnan(error(nan, 1)));
  EXPECT_TRUE(std::isnan(error(1, nan)));
}

TEST(CacheTest, SizesOfAllPages) {
  const auto cache = PagedCache::FromArrays(Ones(20, 3, 2), Ones(20, 5, 2), 16);
  EXPECT_EQ(cache.nbytes(), 2 * (3 + 5) * 4 * (16 + 16));
  EXPECT_EQ(cache.bits_per_value(), 32);
}

TEST(CacheTest, PositionsOutsideAreErrors) {
  Fixture f;
  f.Add(40);
  const PagedCache cache = f.cache.DropBefore(16);
  for (int64_t position : {kLeast, int64_t{-1}, int64_t{15}, int64_t{41}, kMost}) {
    const Caught caught = Catch([&] { cache.Truncate(position); });
    EXPECT_EQ(caught.code, "cache.position") << position;
    EXPECT_EQ(caught.path, "end");
    EXPECT_EQ(Catch([&] { cache.Slice(position, 40); }).code, "cache.position") << position;
    EXPECT_EQ(Catch([&] { cache.Slice(20, position); }).code, "cache.position") << position;
    EXPECT_EQ(Catch([&] { cache.DropBefore(position); }).code,
              position == 15 ? "" : "cache.position");
  }
  EXPECT_EQ(Catch([&] { cache.Slice(30, 29); }).path, "start");
  EXPECT_EQ(Difference(f.cache, f.model), "");
}

TEST(CacheTest, OtherArgumentsOutsideAreErrors) {
  Fixture f;
  f.Add(5);
  for (int64_t size : {kLeast, int64_t{-1}, int64_t{0}}) {
    EXPECT_EQ(Catch([&] { PagedCache{size}; }).code, "cache.page_size");
    EXPECT_EQ(Catch([&] { f.cache.Repage(size); }).path, "page_size");
  }
  EXPECT_EQ(f.cache.Repage(kMost).length(), 5);
  EXPECT_EQ(PagedCache(kMost).Append(Ones(40, 2), Ones(40, 2)).pages()[0].page->capacity(), 64);
  const auto gather = [&](std::vector<int64_t> indices) {
    return Catch([&] { f.cache.Gather(indices); });
  };
  EXPECT_EQ(gather({}).code, "cache.batch_index");
  EXPECT_EQ(gather({0, 2}).path, "batch_indices[1]");
  EXPECT_EQ(gather({-1}).code, "cache.batch_index");
  EXPECT_EQ(gather({kMost}).code, "cache.batch_index");
  EXPECT_EQ(gather({kLeast}).code, "cache.batch_index");
  EXPECT_EQ(Catch([] { PagedCache::FromArrays(Ones(1, 2), Ones(1, 2), 64, -1); }).path, "start");
  EXPECT_EQ(Catch([] { PagedCache::FromArrays(Ones(2, 2), Ones(2, 2), 64, kMost - 1); }).code,
            "cache.too_large");
  const auto late = PagedCache::FromArrays(Ones(1, 2), Ones(1, 2), 64, kMost - 2);
  EXPECT_EQ(Catch([&] { late.Concat(late.Concat(late)); }).code, "cache.too_large");
  EXPECT_EQ(Catch([&] { late.Concat(f.cache); }).code, "cache.mismatch");
}

TEST(CacheTest, ShapesThatDoNotFitAreErrors) {
  const auto cache = PagedCache::FromArrays(Ones(3, 4, 2), Ones(3, 4, 2));
  const auto code = [&](ArrayView key, ArrayView value, const char* path) {
    const Caught caught = Catch([&] { cache.Append(key, value); });
    EXPECT_EQ(caught.path, path) << caught.message;
    return caught.code;
  };
  EXPECT_EQ(code(Ones(1, 4, 3), Ones(1, 4, 3), "key"), "cache.shape");
  EXPECT_EQ(code(Ones(1, 5, 2), Ones(1, 4, 2), "key"), "cache.shape");
  EXPECT_EQ(code(Ones(1, 4, 2), Ones(1, 5, 2), "value"), "cache.shape");
  EXPECT_EQ(code(Ones(1, 4, 2), Ones(2, 4, 2), "value"), "cache.shape");
  EXPECT_EQ(code(Ones(1, 4, 2), Ones(1, 4, 1), "value"), "cache.shape");
  EXPECT_EQ(code(Ones(1, 4, 2, 2), Ones(1, 4, 2, 2), "key"), "cache.shape");
  EXPECT_EQ(code(Ones(1, 0, 2), Ones(1, 4, 2), "key"), "cache.shape");
  EXPECT_EQ(code(Ones(1, 4, 0), Ones(1, 4, 0), "key"), "cache.shape");
  ArrayView negative = Ones(1, 4, 2);
  negative.shape[2] = -1;
  EXPECT_EQ(code(negative, negative, "key"), "cache.shape");
  EXPECT_TRUE(cache.Append(Ones(0, 4, 2), Ones(0, 4, 2)) == cache);
  const Caught caught = Catch([&] { cache.Append(Ones(1, 4, 3), Ones(1, 4, 3)); });
  EXPECT_EQ(caught.message, "shape [1, 3, 1, 4] does not continue the cache's [1, 2, tokens, 4]");
}

TEST(CacheTest, SizesThatDoNotFitAreErrors) {
  // Repeated by stride 0, so that such arrays exist.
  const float one = 1;
  const ArrayView huge{reinterpret_cast<const std::byte*>(&one),
                       kF32,
                       {int64_t{1} << 31, int64_t{1} << 31, 1, 4},
                       {0, 0, 0, 0}};
  EXPECT_EQ(Catch([&] { PagedCache().Append(huge, huge); }).code, "cache.too_large");
  ArrayView long_array = huge;
  long_array.shape = {1, 1, kMost, 1};
  const auto cache = PagedCache::FromArrays(Ones(1, 1), Ones(1, 1));
  EXPECT_EQ(Catch([&] { cache.Append(long_array, long_array); }).code, "cache.too_large");
}

TEST(CacheTest, TruncatedToNothingIsEmptyAndKeepsItsPosition) {
  Fixture f;
  f.Add(40);
  const PagedCache none = f.cache.Truncate(0);
  EXPECT_TRUE(none == PagedCache());
  EXPECT_EQ(none.shape(), CacheShape());
  EXPECT_EQ(none.Append(Ones(1, 2), Ones(1, 7)).shape(), (CacheShape{1, 1, 2, 7}));
  const PagedCache later = f.cache.DropBefore(16).Truncate(16);
  EXPECT_TRUE(later.empty());
  EXPECT_EQ(later.end(), 16);
  EXPECT_EQ(later.Append(Ones(1, 2), Ones(1, 7)).start(), 16);
}

std::shared_ptr<const Page> Borrowed(
    int64_t capacity, std::function<void()> release = [] {}) {
  static const std::vector<float> kNumbers(1024, 0.5f);
  // Not aligned to anything.
  const SharedBytes bytes(reinterpret_cast<const char*>(kNumbers.data()) + 1, capacity * 8,
                          BufferRef::Wrap(kNumbers.data(), 4096, std::move(release)));
  const SharedBytes other(kNumbers.data(), capacity * 4, BufferRef());
  return Page::Borrow({1, 1, 2, 1}, capacity, DensePayload{kF32, bytes}, DensePayload{kF32, other},
                      "");
}

TEST(CacheTest, FromPagesSharesAndNeverGrowsThem) {
  const std::vector<PlacedPage> pages = {{8, 4, Borrowed(4)}, {12, 3, Borrowed(16)}};
  const auto cache = PagedCache::FromPages(pages, 16);
  EXPECT_EQ(cache.start(), 8);
  EXPECT_EQ(cache.end(), 15);
  EXPECT_EQ(cache.pages()[1].page, pages[1].page);
  const auto grown = cache.Append(Ones(2, 2), Ones(2, 1));
  EXPECT_EQ(grown.end(), 17);
  EXPECT_EQ(grown.pages().size(), 2);
  EXPECT_EQ(grown.pages()[1].length, 5);
  EXPECT_NE(grown.pages()[1].page, pages[1].page);
  EXPECT_EQ(cache.pages()[1].length, 3);
  // A last page that is as long as a page here stays as it is.
  const auto next = PagedCache::FromPages(pages, 3).Append(Ones(2, 2), Ones(2, 1));
  EXPECT_EQ(next.pages().size(), 3);
  EXPECT_EQ(next.pages()[1].page, pages[1].page);
}

TEST(CacheTest, FromPagesChecks) {
  const auto caught = [](std::vector<PlacedPage> pages) {
    return Catch([&] { PagedCache::FromPages(pages, 64, "cache"); });
  };
  const auto page = Borrowed(4);
  EXPECT_EQ(caught({}).code, "");
  EXPECT_EQ(caught({{0, 4, page}, {4, 4, page}}).code, "");
  EXPECT_EQ(caught({{0, 4, page}, {4, 5, page}}).path, "cache.blocks[1].length");
  EXPECT_EQ(caught({{0, 4, page}, {4, 5, page}}).message, "5 exceeds capacity 4");
  EXPECT_EQ(caught({{0, 4, page}, {4, 0, page}}).code, "cache.length");
  EXPECT_EQ(caught({{0, 4, page}, {4, kLeast, page}}).code, "cache.length");
  EXPECT_EQ(caught({{0, 4, page}, {5, 4, page}}).path, "cache.blocks[1].start");
  EXPECT_EQ(caught({{0, 4, page}, {3, 4, page}}).code, "cache.start");
  EXPECT_EQ(caught({{-4, 4, page}, {0, 4, page}}).path, "cache.blocks[0].start");
  EXPECT_EQ(caught({{kMost - 3, 4, page}}).code, "cache.too_large");
  const float zeros[4] = {};
  const DensePayload payload{kF32, SharedBytes(zeros, 16, BufferRef())};
  const auto other = Page::Borrow({1, 1, 1, 1}, 4, payload, payload, "");
  EXPECT_EQ(caught({{0, 4, page}, {4, 4, other}}).path, "cache.blocks[1]");
  EXPECT_EQ(caught({{0, 4, page}, {4, 4, other}}).code, "cache.shape");
}

TEST(CacheTest, MemoryFollowsReachability) {
  int released = 0;
  PagedCache cache(4), old(4);
  {
    std::vector<PlacedPage> pages;
    for (int64_t i = 0; i < 100; ++i) {
      pages.push_back({i * 4, 4, Borrowed(4, [&released] { ++released; })});
    }
    cache = PagedCache::FromPages(pages, 4);
  }
  EXPECT_EQ(released, 0);
  old = cache.Truncate(40);
  cache = cache.DropBefore(200);
  EXPECT_EQ(released, 40);  // pages 10 to 49
  cache = cache.Slice(202, 398);
  EXPECT_EQ(released, 41);  // page 50 was copied; page 99 is shown in part
  cache = cache.Append(Ones(1, 2), Ones(1, 1));
  EXPECT_EQ(released, 42);  // page 99 was copied, too
  old = PagedCache();
  EXPECT_EQ(released, 52);
  const PlacedPage kept = cache.pages()[5];
  cache = PagedCache();
  EXPECT_EQ(released, 99);
}

TEST(CacheTest, WindowHoldsItsPagesOnly) {
  Fixture f({1, 1, 2, 2}, 4);
  std::vector<std::weak_ptr<const Page>> pages;
  for (int i = 0; i < 4000; ++i) {
    f.cache = f.cache.Append(Ones(1, 2), Ones(1, 2)).DropBefore(std::max(0, i - 99));
    const PageRange range = f.cache.pages();
    if (i % 4 == 3) pages.push_back(range[range.size() - 1].page);
    ASSERT_LE(range.size(), 26);
  }
  int64_t alive = 0;
  for (const auto& page : pages) alive += page.expired() ? 0 : 1;
  EXPECT_EQ(alive, f.cache.pages().size());
}

}  // namespace
}  // namespace onnx_light
