#include "onnx_light/attention.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace onnx_light {
namespace {

std::vector<float> Random(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(random);
  return numbers;
}

// The attention of the rows [first, last) of plain keys and values, in double.
std::vector<double> Expected(const std::vector<float>& query, const std::vector<float>& key,
                             const std::vector<float>& value, int64_t width, int64_t first,
                             int64_t last) {
  std::vector<double> weights, result(width);
  double largest = -INFINITY, total = 0;
  for (int64_t token = first; token < last; ++token) {
    double score = 0;
    for (int64_t i = 0; i < width; ++i) {
      score += static_cast<double>(query[i]) * static_cast<double>(key[token * width + i]);
    }
    weights.push_back(score / std::sqrt(static_cast<double>(width)));
    largest = std::max(largest, weights.back());
  }
  for (double& weight : weights) total += weight = std::exp(weight - largest);
  for (int64_t token = first; token < last; ++token) {
    for (int64_t i = 0; i < width; ++i) {
      result[i] += weights[token - first] / total * static_cast<double>(value[token * width + i]);
    }
  }
  return result;
}

// Memory whose last byte lies before a page that cannot be read.
class GuardedMemory {
 public:
  explicit GuardedMemory(const std::vector<float>& numbers)
      : GuardedMemory(numbers.data(), numbers.size() * sizeof(float)) {}
  GuardedMemory(const void* source, size_t size) {
    const size_t page = sysconf(_SC_PAGESIZE);
    mapped_ = (size + page - 1) / page * page + page;
    void* memory =
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    begin_ = static_cast<std::byte*>(memory);
    data_ = begin_ + mapped_ - page - size;
    if (size > 0) std::memcpy(data_, source, size);
    mprotect(begin_ + mapped_ - page, page, PROT_NONE);
    size_ = size;
  }
  ~GuardedMemory() { munmap(begin_, mapped_); }
  SharedBytes bytes() const { return SharedBytes(data_, size_, BufferRef()); }
  // From now on no byte of it can be read.
  void Close() { mprotect(begin_, mapped_, PROT_NONE); }

 private:
  std::byte *begin_, *data_;
  size_t mapped_, size_;
};

TEST(Attend, NothingPastARowOrOutsideOfAWindowIsRead) {
  for (int64_t width : {1, 3, 8, 16, 17, 32, 80, 128}) {
    constexpr int64_t kTokens = 37;
    const auto key = Random(3 * kTokens * width, 1), value = Random(3 * kTokens * width, 2);
    std::vector<std::unique_ptr<GuardedMemory>> memory;
    std::vector<PlacedPage> pages;
    for (int64_t page = 0; page < 3; ++page) {
      const auto part = [&](const std::vector<float>& all) {
        const auto begin = all.begin() + page * kTokens * width;
        memory.push_back(
            std::make_unique<GuardedMemory>(std::vector<float>(begin, begin + kTokens * width)));
        return DensePayload{DType::kFloat32, memory.back()->bytes()};
      };
      DensePayload keys = part(key), values = part(value);
      pages.push_back({page * kTokens, kTokens,
                       Page::Borrow({1, 1, width, width}, kTokens, std::move(keys),
                                    std::move(values), "page")});
    }
    const PagedCache cache = PagedCache::FromPages(pages);
    memory[0]->Close();
    memory[1]->Close();
    const auto query = Random(width, 3);
    const ArrayView view = ContiguousView(query.data(), DType::kFloat32, {1, 1, 1, width});
    AttentionOptions options;
    options.left_window_size = 2 * kTokens - 1;  // all but the first page
    std::vector<float> actual(width);
    Attend(cache, view, options, actual.data());
    const auto expected = Expected(query, key, value, width, kTokens, 3 * kTokens);
    for (int64_t i = 0; i < width; ++i) EXPECT_NEAR(actual[i], expected[i], 1e-4);
  }
}

// Codes, scales and zero points end where memory does, and pages before the window are not there.
TEST(Attend, NothingPastAnEncodedPayloadIsRead) {
  constexpr int64_t kTokens = 37;
  for (const char* policy :
       {"float16", "bfloat16", "float8_e4m3fn", "int8/channel", "int8/token", "uint8/channel:16",
        "uint8/token:32", "int4/channel", "uint4/channel:32", "uint4/token:64", "int4/token",
        "uint2/token", "key=q8_0 value=q4_0", "key=q4_0 value=q8_0", "int4"}) {
    for (int64_t width : {64, 128, 320}) {
      const auto rows = Random(3 * kTokens * width, 10), query = Random(2 * width, 11);
      const ArrayView tokens =
          ContiguousView(rows.data(), DType::kFloat32, {1, 1, 3 * kTokens, width});
      const PagedCache plain =
          PagedCache::FromArrays(tokens, tokens, kTokens, 0, CachePolicy::Parse(policy));
      std::vector<std::unique_ptr<GuardedMemory>> memory;
      const auto guard = [&](const SharedBytes& bytes) {
        memory.push_back(std::make_unique<GuardedMemory>(bytes.data, bytes.size));
        return memory.back()->bytes();
      };
      const auto guarded = [&](PagePayload payload) {
        if (auto* dense = std::get_if<DensePayload>(&payload)) {
          dense->bytes = guard(dense->bytes);
        } else {
          auto& encoded = std::get<EncodedPayload>(payload);
          encoded.codes = guard(encoded.codes);
          encoded.scales = guard(encoded.scales);
          encoded.zero_points = guard(encoded.zero_points);
        }
        return payload;
      };
      std::vector<PlacedPage> pages;
      size_t hidden = 0;
      for (const PlacedPage& placed : plain.pages()) {
        PagePayload key = guarded(placed.page->key()), value = guarded(placed.page->value());
        if (placed.start == 0) hidden = memory.size();
        pages.push_back({placed.start, kTokens,
                         Page::Borrow(placed.page->shape(), kTokens, std::move(key),
                                      std::move(value), "page")});
      }
      const PagedCache cache = PagedCache::FromPages(pages);
      for (size_t i = 0; i < hidden; ++i) memory[i]->Close();
      for (int64_t heads : {1, 2}) {
        const ArrayView view = ContiguousView(query.data(), DType::kFloat32, {1, heads, 1, width});
        AttentionOptions options;
        options.left_window_size = 2 * kTokens - 1;
        std::vector<float> expected(heads * width), actual(heads * width);
        Attend(plain, view, options, expected.data());
        Attend(cache, view, options, actual.data());
        EXPECT_EQ(actual, expected) << policy << " " << width;
      }
    }
  }
}

TEST(Attend, LoopsOfSomebodyElseGiveTheSameBits) {
  const auto rows = Random(2 * 700 * 32, 4), query = Random(4 * 32, 5);
  const PagedCache cache =
      PagedCache::FromArrays(ContiguousView(rows.data(), DType::kFloat32, {1, 2, 700, 32}),
                             ContiguousView(rows.data(), DType::kFloat32, {1, 2, 700, 32}));
  const ArrayView view = ContiguousView(query.data(), DType::kFloat32, {1, 4, 1, 32});
  std::vector<float> expected(4 * 32), actual(4 * 32);
  Attend(cache, view, {}, expected.data());
  uint64_t calls = 0;
  const ParallelLoop backwards = [&](uint64_t count, const std::function<void(uint64_t)>& f) {
    std::jthread([&] {
      for (uint64_t i = count; i-- > 0; ++calls) f(i);
    });
  };
  AttentionOptions options;
  options.parallel_for = &backwards;
  // Two parts of 512 tokens, and the heads together or, where threads would be idle, apart.
  for (const auto& [threads, tasks] : {std::pair(1, 2u), std::pair(2, 2u), std::pair(4, 4u)}) {
    options.num_threads = threads;
    calls = 0;
    std::fill(actual.begin(), actual.end(), -1.0f);
    Attend(cache, view, options, actual.data());
    EXPECT_EQ(calls, tasks);
    EXPECT_EQ(std::memcmp(actual.data(), expected.data(), sizeof(float) * actual.size()), 0);
  }
}

#if !defined(__SANITIZE_THREAD__)  // which does not let a forked process start threads
TEST(Attend, AForkedProcessAttends) {
  const auto rows = Random(8 * 2000 * 32, 6), query = Random(8 * 32, 7);
  const ArrayView tokens = ContiguousView(rows.data(), DType::kFloat32, {1, 8, 2000, 32});
  const PagedCache cache = PagedCache::FromArrays(tokens, tokens);
  const ArrayView view = ContiguousView(query.data(), DType::kFloat32, {1, 8, 1, 32});
  AttentionOptions options;
  options.num_threads = 3;
  std::vector<float> expected(8 * 32);
  Attend(cache, view, options, expected.data());
  const pid_t child = fork();
  if (child == 0) {
    std::vector<float> actual(8 * 32);
    Attend(cache, view, options, actual.data());
    _exit(actual == expected ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

TEST(Attend, ManyThreadsUseOneCache) {
  const auto rows = Random(2 * 600 * 32, 8), query = Random(4 * 32, 9);
  const ArrayView tokens = ContiguousView(rows.data(), DType::kFloat32, {1, 2, 600, 32});
  const PagedCache cache =
      PagedCache::FromArrays(tokens, tokens, 64, 0, CachePolicy::Parse("int8"));
  const ArrayView view = ContiguousView(query.data(), DType::kFloat32, {1, 4, 1, 32});
  std::vector<float> expected(4 * 32);
  Attend(cache, view, {}, expected.data());
  std::vector<std::vector<float>> results(4, std::vector<float>(4 * 32));
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) {
      threads.emplace_back([&] {
        for (int round = 0; round < 20; ++round) Attend(cache, view, {}, result.data());
      });
    }
  }
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace onnx_light
