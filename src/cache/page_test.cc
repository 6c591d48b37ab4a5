#include "onnx_light/page.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "cache/open_page.h"
#include "cache/payload.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

PagePayload Dense(int64_t bytes, DType dtype = DType::kFloat32) {
  const std::vector<std::byte> zeros(bytes);
  return DensePayload{dtype, CopyBytes(zeros.data(), bytes)};
}

template <typename F>
std::string CodeOf(F f, std::string* path = nullptr) {
  try {
    f();
  } catch (const ValueError& error) {
    if (path != nullptr) *path = error.path();
    return error.code();
  }
  return "";
}

TEST(PageTest, BorrowedPageKeepsItsPayloads) {
  const PagePayload key = Dense(2 * 3 * 4 * 5 * 4),
                    value = Dense(2 * 3 * 4 * 6, DType::kFloat8E5M2);
  const auto page = Page::Borrow({2, 3, 5, 6}, 4, key, value, "");
  EXPECT_EQ(page->capacity(), 4);
  EXPECT_EQ(std::get<DensePayload>(page->key()).bytes.data, std::get<DensePayload>(key).bytes.data);
  EXPECT_EQ(DenseDType(page->value()), DType::kFloat8E5M2);
  EXPECT_EQ(PayloadSize(page->key()), 480);
}

TEST(PageTest, BorrowChecksSizes) {
  std::string path;
  const auto borrow = [](CacheShape shape, int64_t capacity, int64_t key, int64_t value) {
    return [=] { Page::Borrow(shape, capacity, Dense(key), Dense(value), "blocks[3]"); };
  };
  EXPECT_EQ(CodeOf(borrow({1, 1, 2, 2}, 2, 16, 16)), "");
  EXPECT_EQ(CodeOf(borrow({1, 1, 2, 2}, 2, 15, 16), &path), "cache.payload_size");
  EXPECT_EQ(path, "blocks[3].key");
  EXPECT_EQ(CodeOf(borrow({1, 1, 2, 2}, 2, 16, 17), &path), "cache.payload_size");
  EXPECT_EQ(path, "blocks[3].value");
  EXPECT_EQ(CodeOf(borrow({0, 1, 2, 2}, 2, 0, 0), &path), "cache.shape");
  EXPECT_EQ(path, "blocks[3]");
  EXPECT_EQ(CodeOf(borrow({-1, -1, 2, 2}, 2, 16, 16)), "cache.shape");
  EXPECT_EQ(CodeOf(borrow({1, 1, 2, 2}, 0, 0, 0)), "cache.shape");
  // 2^62 * 4 * 4 bytes are 0 modulo 2^64; 4 + 2^59 rows of 32 bytes are 128.
  EXPECT_EQ(CodeOf(borrow({1, 1, 4, 4}, int64_t{1} << 62, 0, 0)), "cache.too_large");
  EXPECT_EQ(CodeOf(borrow({1, 1, 8, 8}, 4 + (int64_t{1} << 59), 128, 128)), "cache.too_large");
  EXPECT_EQ(CodeOf(borrow({kMost, kMost, kMost, kMost}, kMost, 16, 16)), "cache.too_large");
}

TEST(PageTest, ClaimIsForTheFirstThatGoesOnFromALength) {
  const auto page = OpenPage::Make({1, 1, 1, 1}, 8, DType::kFloat32, DType::kFloat32, 3);
  EXPECT_FALSE(OpenPage::Claim(*page, 3, 6));  // too small
  EXPECT_TRUE(OpenPage::Claim(*page, 3, 2));
  EXPECT_FALSE(OpenPage::Claim(*page, 3, 2));
  EXPECT_FALSE(OpenPage::Claim(*page, 2, 1));
  EXPECT_TRUE(OpenPage::Claim(*page, 5, 3));
  EXPECT_FALSE(OpenPage::Claim(*page, 8, 1));
  EXPECT_FALSE(OpenPage::Claim(*page, 1, kMost));
}

TEST(PageTest, BorrowedPagesNeverGrow) {
  const auto page = Page::Borrow({1, 1, 1, 1}, 8, Dense(32), Dense(32), "");
  for (int64_t length = 1; length <= 8; ++length) EXPECT_FALSE(OpenPage::Claim(*page, length, 1));
}

TEST(PageTest, NewPagesAreAligned) {
  const auto page = OpenPage::Make({1, 3, 5, 7}, 9, DType::kFloat16, DType::kFloat8E4M3FN, 1);
  for (Side side : {Side::kKey, Side::kValue}) {
    const auto& bytes = std::get<DensePayload>(page->payload(side)).bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data) % kBufferAlignment, 0u);
  }
  EXPECT_EQ(PayloadSize(page->key()), 3 * 9 * 5 * 2);
  EXPECT_EQ(PayloadSize(page->value()), 3 * 9 * 7);
}

TEST(ChecksumSlotTest, KeptForOnePlace) {
  ChecksumSlot slot;
  EXPECT_EQ(slot.Get(0, 4), std::nullopt);
  slot.Set(0, 4, 77);
  slot.Set(8, 4, 99);
  EXPECT_EQ(slot.Get(0, 4), 77u);
  EXPECT_EQ(slot.Get(8, 4), std::nullopt);
  EXPECT_EQ(slot.Get(0, 3), std::nullopt);
}

TEST(ChecksumSlotTest, ThreadsSeeAWholeEntryOrNone) {
  for (int round = 0; round < 200; ++round) {
    ChecksumSlot slot;
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < 4; ++i) {
      threads.emplace_back([&slot, i] {
        slot.Set(i, i + 1, static_cast<uint64_t>(i) * 1000);
        for (int64_t j = 0; j < 4; ++j) {
          const auto got = slot.Get(j, j + 1);
          EXPECT_EQ(got.value_or(j * 1000), static_cast<uint64_t>(j) * 1000);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// An array with the tokens' elements anywhere: every stride may be odd or negative.
struct Strided {
  std::vector<std::byte> bytes;
  ArrayView view;

  Strided(DType dtype, std::array<int64_t, 4> shape, std::array<int, 4> order, bool negative) {
    const int64_t item = ElementSize(dtype);
    int64_t stride = item, last = 0;
    view.dtype = dtype;
    view.shape = shape;
    for (int i = 3; i >= 0; --i) {
      const int axis = order[i];
      view.strides[axis] = stride;
      last += stride * (shape[axis] - 1);
      stride = stride * shape[axis] + item + 1;  // a gap that breaks alignment
    }
    bytes.resize(last + item);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 37 + i / 251);
    view.data = bytes.data();
    if (negative) {
      view.data += last;
      for (int64_t& s : view.strides) s = -s;
    }
  }
  const std::byte* At(int64_t b, int64_t h, int64_t t, int64_t d) const {
    return view.data + b * view.strides[0] + h * view.strides[1] + t * view.strides[2] +
           d * view.strides[3];
  }
};

TEST(PayloadTest, CopiesAnyStrides) {
  constexpr std::array<std::array<int, 4>, 4> kOrders = {
      {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0}, {0, 1, 3, 2}}};
  const std::array<std::array<int64_t, 4>, 3> shapes = {{{2, 3, 4, 5}, {1, 2, 1, 7}, {2, 1, 5, 1}}};
  for (DType dtype : kDTypes) {
    for (const auto& shape : shapes) {
      for (const auto& order : kOrders) {
        for (bool negative : {false, true}) {
          const Strided source(dtype, shape, order, negative);
          const int64_t item = ElementSize(dtype), capacity = shape[2] + 3;
          std::vector<std::byte> target(shape[0] * shape[1] * capacity * shape[3] * item);
          CopyTokens(source.view, target.data(), capacity);
          for (int64_t b = 0; b < shape[0]; ++b) {
            for (int64_t h = 0; h < shape[1]; ++h) {
              for (int64_t t = 0; t < capacity; ++t) {
                for (int64_t d = 0; d < shape[3]; ++d) {
                  const int64_t at = ((b * shape[1] + h) * capacity + t) * shape[3] + d;
                  const std::byte zeros[4] = {};
                  const std::byte* want = t < shape[2] ? source.At(b, h, t, d) : zeros;
                  ASSERT_EQ(std::memcmp(target.data() + at * item, want, item), 0);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(PayloadTest, StrideZeroRepeats) {
  const float one = 1.5f;
  const ArrayView view{reinterpret_cast<const std::byte*>(&one), DType::kFloat32, {1, 2, 3, 4}, {}};
  std::vector<float> target(24);
  CopyTokens(view, reinterpret_cast<std::byte*>(target.data()), 3);
  EXPECT_EQ(target, std::vector<float>(24, 1.5f));
}

TEST(ArrayViewTest, ContiguousViewChecksDims) {
  const auto view = [](std::array<int64_t, 4> shape) {
    return [=] { ContiguousView(nullptr, DType::kFloat32, shape); };
  };
  EXPECT_EQ(ContiguousView(nullptr, DType::kFloat16, {2, 3, 4, 5}).strides,
            (std::array<int64_t, 4>{120, 40, 10, 2}));
  EXPECT_EQ(CodeOf(view({1, -1, 2, 2})), "cache.shape");
  EXPECT_EQ(CodeOf(view({1 << 20, 1 << 20, 1 << 20, 1 << 20})), "cache.too_large");
  EXPECT_EQ(CodeOf(view({kMost, 1, 1, 1})), "cache.too_large");
  EXPECT_EQ(CodeOf(view({1, 1, 0, 2})), "");
}

}  // namespace
}  // namespace onnx_light
