#include "onnx_light/value_handles.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace onnx_light {
namespace {

// A cache that is known by its position.
PagedCache At(int64_t start) {
  const float row[] = {1, 2};
  const ArrayView view = ContiguousView(row, DType::kFloat32, {1, 1, 1, 2});
  return PagedCache::FromArrays(view, view, 16, start);
}

std::string CodeOf(int64_t handle) {
  try {
    CacheOf(handle);
  } catch (const ValueError& error) {
    return error.code();
  }
  return "";
}

TEST(ValueHandles, GiveTheirValueUntilTheScopeEnds) {
  const int64_t before = HeldValues();
  int64_t first, second;
  std::shared_ptr<const PagedCache> kept;
  {
    ValueScope scope;
    first = scope.Add(At(3));
    second = AddBeside(first, At(5));
    EXPECT_EQ(CacheOf(first)->start(), 3);
    EXPECT_EQ(CacheOf(second)->start(), 5);
    EXPECT_GT(first, 0);
    EXPECT_EQ(HeldValues(), before + 2);
    kept = CacheOf(second);
  }
  EXPECT_EQ(CodeOf(first), "runtime.handle");
  EXPECT_EQ(CodeOf(second), "runtime.handle");
  EXPECT_THROW(AddBeside(first, At(0)), ValueError);
  EXPECT_EQ(kept->start(), 5);
  EXPECT_EQ(HeldValues(), before);
}

TEST(ValueHandles, NoOtherNumberIsOne) {
  for (const int64_t number : {int64_t{0}, int64_t{1}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(CodeOf(number), "runtime.handle") << number;
    EXPECT_THROW(ReleaseHandle(number), ValueError) << number;
  }
  ValueScope scope;
  const int64_t handle = scope.Add(At(0));
  EXPECT_EQ(CodeOf(handle + 1), "runtime.handle");
  EXPECT_EQ(CodeOf(handle - 1), "runtime.handle");
  EXPECT_EQ(CodeOf(handle ^ int64_t{1} << 40), "runtime.handle");
}

TEST(ValueHandles, ReleasingTheFirstEndsItsScope) {
  const int64_t before = HeldValues();
  const int64_t past = NewHandle(At(1));
  const int64_t present = AddBeside(past, At(2));
  const int64_t other = AddBeside(present, At(3));
  ReleaseHandle(other);
  EXPECT_EQ(CodeOf(other), "runtime.handle");
  EXPECT_EQ(CacheOf(present)->start(), 2);
  EXPECT_THROW(ReleaseHandle(other), ValueError);
  ReleaseHandle(past);
  EXPECT_EQ(CodeOf(present), "runtime.handle");
  EXPECT_EQ(HeldValues(), before);
}

TEST(ValueHandles, TheFirstFailureIsKept) {
  ValueScope scope;
  const int64_t handle = scope.Add(At(0));
  EXPECT_FALSE(scope.failure());
  TellFailure(handle, {"node_1", "cache.shape", "key", "first"});
  TellFailure(handle, {"node_2", "cache.shape", "key", "second"});
  TellFailure(17, {"node_3", "", "", ""});
  ASSERT_TRUE(scope.failure());
  EXPECT_EQ(scope.failure()->node, "node_1");
  EXPECT_EQ(scope.failure()->message, "first");
}

TEST(ValueHandles, ThreadsHaveScopesOfTheirOwn) {
  const int64_t before = HeldValues();
  std::vector<std::thread> threads;
  for (int64_t number = 0; number < 8; ++number) {
    threads.emplace_back([number] {
      for (int round = 0; round < 500; ++round) {
        ValueScope scope;
        int64_t handle = scope.Add(At(number));
        for (int step = 0; step < 4; ++step) handle = AddBeside(handle, *CacheOf(handle));
        EXPECT_EQ(CacheOf(handle)->start(), number);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(HeldValues(), before);
}

}  // namespace
}  // namespace onnx_light
