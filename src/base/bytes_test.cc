#include "onnx_light/bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <vector>

namespace onnx_light {
namespace {

bool IsAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kBufferAlignment == 0;
}

TEST(BufferRef, AllocatesAlignedWritableMemory) {
  for (const uint64_t size : {0, 1, 63, 64, 65, 1'000'000}) {
    BufferRef buffer = BufferRef::Allocate(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_TRUE(IsAligned(buffer.data()));
    std::memset(buffer.mutable_data(), 0xab, size);  // all of it is ours, says the sanitizer
    EXPECT_EQ(buffer.data(), buffer.mutable_data());
  }
  EXPECT_THROW(BufferRef::Allocate(std::numeric_limits<uint64_t>::max()), std::bad_alloc);
}

TEST(BufferRef, ReleasesWrappedMemoryWithTheLastReference) {
  const char text[] = "text";
  int released = 0;
  BufferRef first = BufferRef::Wrap(text, 4, [&] { ++released; });
  EXPECT_EQ(static_cast<const void*>(first.data()), text);
  BufferRef second = first;
  BufferRef third = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size(), 0u);
  second = second.get() != nullptr ? second : BufferRef();  // assignment to itself
  third = BufferRef();
  EXPECT_EQ(released, 0);
  second = BufferRef::Allocate(1);
  EXPECT_EQ(released, 1);
}

TEST(BufferRef, DetachAndAdoptMoveOneCount) {
  int released = 0;
  BufferRef buffer = BufferRef::Wrap("", 0, [&] { ++released; });
  Buffer* bare = buffer.Detach();
  EXPECT_FALSE(buffer);
  EXPECT_EQ(released, 0);
  { const BufferRef adopted = BufferRef::Adopt(bare); }
  EXPECT_EQ(released, 1);
}

TEST(BufferRef, CountsFromManyThreads) {
  int released = 0;
  {
    const BufferRef buffer = BufferRef::Wrap("", 0, [&] { ++released; });
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([copy = buffer] {
        for (int j = 0; j < 10'000; ++j) const BufferRef another = copy;
      });
    }
  }
  EXPECT_EQ(released, 1);
}

TEST(SharedBytes, SlicesKeepTheBufferAlive) {
  SharedBytes slice;
  {
    const SharedBytes bytes = CopyBytes("0123456789", 10);
    EXPECT_EQ(bytes.view(), "0123456789");
    slice = bytes.Slice(3, 4);
  }
  EXPECT_EQ(slice.view(), "3456");
  EXPECT_EQ(slice.span().size(), 4u);
  EXPECT_EQ(slice.Slice(4, 0).size, 0u);
}

TEST(SharedBytes, CopiesAreTheirOwn) {
  char text[] = "abc";
  const SharedBytes bytes = CopyBytes(text, 3);
  text[0] = 'x';
  EXPECT_EQ(bytes.view(), "abc");
  EXPECT_EQ(CopyBytes(nullptr, 0).view(), "");
  EXPECT_EQ(SharedBytes().view(), "");
}

}  // namespace
}  // namespace onnx_light
