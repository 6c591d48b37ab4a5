#include "onnx_light/page_sequence.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace onnx_light {
namespace {

std::shared_ptr<const Page> AnyPage() {
  static const float kZeros[2] = {};
  const DensePayload payload{DType::kFloat32, CopyBytes(kZeros, sizeof(kZeros))};
  return Page::Borrow({1, 1, 1, 1}, 2, payload, payload, "");
}

// Pages of 1 and 2 tokens in turn.
std::vector<PlacedPage> Pages(int64_t count) {
  std::vector<PlacedPage> pages;
  int64_t start = 5;
  for (int64_t i = 0; i < count; ++i) {
    pages.push_back({start, 1 + i % 2, AnyPage()});
    start = pages.back().end();
  }
  return pages;
}

bool Same(const PlacedPage& a, const PlacedPage& b) {
  return a.start == b.start && a.length == b.length && a.page == b.page;
}

void ExpectHolds(const PageSequence& sequence, std::span<const PlacedPage> pages) {
  ASSERT_EQ(sequence.size(), static_cast<int64_t>(pages.size()));
  ASSERT_EQ(sequence.empty(), pages.empty());
  for (size_t i = 0; i < pages.size(); ++i) {
    const int64_t index = static_cast<int64_t>(i);
    ASSERT_TRUE(Same(sequence[index], pages[i])) << i << " of " << pages.size();
    for (int64_t position = pages[i].start; position < pages[i].end(); ++position) {
      ASSERT_EQ(sequence.Find(position), index) << position;
    }
  }
  size_t walked = 0;
  while (walked < pages.size()) {
    const auto chunk = sequence.Chunk(static_cast<int64_t>(walked));
    ASSERT_FALSE(chunk.empty());
    for (const PlacedPage& page : chunk) ASSERT_TRUE(Same(page, pages[walked++]));
  }
}

// Counts around the fan-out of 32 and its square and cube.
constexpr int64_t kCounts[] = {0,  1,  2,   31,  32,   33,   63,   64,   65,
                               95, 96, 992, 993, 1023, 1024, 1025, 1056, 1057};

TEST(PageSequenceTest, BuiltAtOnceOrByPushing) {
  for (int64_t count : kCounts) {
    const auto pages = Pages(count);
    PageSequence pushed;
    for (const PlacedPage& page : pages) pushed = pushed.PushBack(page);
    ExpectHolds(pushed, pages);
    ExpectHolds(PageSequence(pages), pages);
  }
}

TEST(PageSequenceTest, PushingBeyondThreeLevels) {
  const auto pages = Pages(32 * 32 * 32 + 40);
  PageSequence pushed;
  for (const PlacedPage& page : pages) pushed = pushed.PushBack(page);
  ExpectHolds(pushed, pages);
  ExpectHolds(PageSequence(pages), pages);
  ExpectHolds(PageSequence(std::span(pages).first(32768)).PushBack(pages[32768]),
              std::span(pages).first(32769));
}

TEST(PageSequenceTest, CutsAtEveryIndexAndGrowsOn) {
  for (int64_t count : {1, 33, 70, 1057}) {
    const auto pages = Pages(count);
    const PageSequence whole(pages);
    const int64_t step = count > 100 ? 13 : 1;
    for (int64_t cut = 0; cut <= count; cut += step) {
      const PageSequence first = whole.First(cut), rest = whole.WithoutFirst(cut);
      ExpectHolds(first, std::span(pages).first(cut));
      ExpectHolds(rest, std::span(pages).subspan(cut));
      PageSequence again = first;
      for (int64_t i = cut; i < count; ++i) again = again.PushBack(pages[i]);
      ExpectHolds(again, pages);
    }
    ExpectHolds(whole, pages);
  }
}

TEST(PageSequenceTest, ReplacesOne) {
  for (int64_t count : {1, 32, 33, 1057}) {
    auto pages = Pages(count);
    const auto before = pages;
    const PageSequence whole(pages);
    for (int64_t index : {int64_t{0}, count / 2, count - 1}) {
      pages = before;
      pages[index].page = AnyPage();
      ExpectHolds(whole.With(index, pages[index]), pages);
    }
    ExpectHolds(whole, before);
  }
}

TEST(PageSequenceTest, WindowThatMovesForEver) {
  const auto pages = Pages(20000);
  PageSequence window;
  for (size_t i = 0; i < pages.size(); ++i) {
    window = window.PushBack(pages[i]);
    if (window.size() > 50) window = window.WithoutFirst(window.size() - 50);
    if (i % 997 == 0) {
      ExpectHolds(window, std::span(pages).subspan(i + 1 - window.size(), window.size()));
    }
  }
}

TEST(PageSequenceTest, RandomOperations) {
  std::mt19937 random(3);
  const auto source = Pages(4000);
  for (int round = 0; round < 20; ++round) {
    PageSequence sequence;
    size_t first = 0, last = 0;  // the pages of `source` it should hold
    while (last < source.size()) {
      const auto size = static_cast<int64_t>(last - first);
      switch (random() % 8) {
        case 0: {
          const int64_t count = random() % (size + 1);
          sequence = sequence.WithoutFirst(std::min<int64_t>(count, random() % 40));
          first = last - sequence.size();
          break;
        }
        case 1: {
          const int64_t drop = std::min<int64_t>(size, random() % 60);
          sequence = sequence.First(size - drop);
          last -= drop;
          break;
        }
        default:
          for (size_t i = random() % 50; i > 0 && last < source.size(); --i) {
            sequence = sequence.PushBack(source[last++]);
          }
      }
    }
    ExpectHolds(sequence, std::span(source).subspan(first, last - first));
  }
}

TEST(PageSequenceTest, KeepsExactlyItsPages) {
  std::vector<std::weak_ptr<const Page>> alive;
  PageSequence whole;
  {
    const auto pages = Pages(200);
    for (const PlacedPage& page : pages) alive.push_back(page.page);
    whole = PageSequence(pages);
  }
  const PageSequence middle = whole.WithoutFirst(45).First(100);
  whole = PageSequence();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(!alive[i].expired(), i >= 45 && i < 145) << i;
}

}  // namespace
}  // namespace onnx_light
