#include "onnx_light/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace onnx_light {
namespace {

// Writes all of a block, so that the sanitizer sees whether it is ours, and checks it later.
struct Block {
  Block(Arena& arena, uint64_t bytes, uint8_t fill) : size(bytes), value(fill) {
    memory = static_cast<uint8_t*>(arena.Allocate(size));
    std::memset(memory, value, size);
  }
  bool Intact() const {
    for (uint64_t i = 0; i < size; ++i) {
      if (memory[i] != value) return false;
    }
    return true;
  }
  uint8_t* memory;
  uint64_t size;
  uint8_t value;
};

BufferRef Counted(int& released) {
  static const char text[] = "payload";
  return BufferRef::Wrap(text, 7, [&released] { ++released; });
}

TEST(Arena, GivesAlignedMemoryThatDoesNotOverlap) {
  Arena arena;
  std::mt19937 random(1);
  std::vector<Block> blocks;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t size = random() % (i % 100 == 0 ? 100'000 : 300);
    blocks.emplace_back(arena, size, static_cast<uint8_t>(i));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().memory) % 8, 0u);
  }
  for (const Block& block : blocks) EXPECT_TRUE(block.Intact());
}

TEST(Arena, ReusedMemoryDoesNotOverlapWhatIsInUse) {
  Arena arena;
  std::mt19937 random(2);
  std::vector<Block> blocks;
  for (int i = 0; i < 20'000; ++i) {
    if (blocks.size() < 50 || random() % 2 == 0) {
      // Around the sizes at which the ways of keeping free memory change.
      const uint64_t around[] = {16, 1024, 1280, 2048, 4096, 32 * 1024};
      blocks.emplace_back(arena, around[random() % 6] - 12 + random() % 24,
                          static_cast<uint8_t>(i));
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      ASSERT_TRUE(blocks.back().Intact());
      arena.Free(blocks.back().memory, blocks.back().size);
      blocks.pop_back();
    }
  }
}

TEST(Arena, LoopsOfAllocatingAndFreeingStayBounded) {
  for (const uint64_t size : {8, 24, 1024, 1032, 3000, 4095, 5000, 32'768, 32'769, 1'000'000}) {
    Arena arena;
    const uint64_t asked = Arena::ReusableSize(size);
    const int times = size > 100'000 ? 100 : 10'000;
    for (int i = 0; i < times; ++i) arena.Free(arena.Allocate(asked), asked);
    EXPECT_LE(arena.bytes_reserved(), 8192 + 4 * size) << size;
  }
}

TEST(Arena, ReusableSizesAreAtMostAQuarterLarger) {
  EXPECT_EQ(Arena::ReusableSize(0), 0u);
  for (uint64_t size = 1; size < 40'000; ++size) {
    const uint64_t rounded = Arena::ReusableSize(size);
    EXPECT_GE(rounded, size);
    EXPECT_EQ(rounded % 8, 0u);
    EXPECT_LE(rounded, std::max(size + 7, size + size / 4));
    EXPECT_EQ(Arena::ReusableSize(rounded), rounded);
  }
}

TEST(Arena, PiecesThatAreNoWholeWordsAreNotReused) {
  Arena arena;
  Block block(arena, 64, 7);
  arena.Free(block.memory + 1, 16);
  arena.Free(block.memory, 13);
  Block other(arena, 16, 9);
  EXPECT_TRUE(block.Intact());
}

TEST(Arena, LargeBlocksGoBackToTheSystem) {
  Arena arena;
  void* small = arena.Allocate(8);
  const uint64_t before = arena.bytes_reserved();
  void* first = arena.Allocate(100'001);
  void* second = arena.Allocate(200'000);
  void* third = arena.Allocate(300'000);
  EXPECT_GE(arena.bytes_reserved(), before + 600'001);
  arena.Free(second, 200'000);
  arena.Free(third, 300'000);
  arena.Free(first, 100'001);
  EXPECT_EQ(arena.bytes_reserved(), before);
  arena.Allocate(1 << 20);  // the arena's end frees it
  arena.Free(small, 8);
}

TEST(Arena, SizesThatCannotBeAreRefused) {
  Arena arena;
  EXPECT_THROW(arena.Allocate(std::numeric_limits<uint64_t>::max() / 2), std::bad_alloc);
  EXPECT_THROW(arena.Allocate(std::numeric_limits<uint64_t>::max() - 7), std::bad_alloc);
}

TEST(Arena, PayloadsAreReleasedWhenFreedOrAtTheEnd) {
  int released = 0;
  {
    Arena arena;
    Payload* first = arena.NewPayload(SharedBytes(Counted(released)));
    Payload* second = arena.NewPayload(SharedBytes(Counted(released)));
    Payload* third = arena.NewPayload(SharedBytes(Counted(released)));
    arena.NewPayload(SharedBytes(Counted(released)));
    EXPECT_EQ(std::memcmp(second->data, "payload", 7), 0);
    arena.FreePayload(second);
    EXPECT_EQ(released, 1);
    arena.FreePayload(third);
    arena.FreePayload(first);
    EXPECT_EQ(released, 3);
  }
  EXPECT_EQ(released, 4);
}

TEST(Arena, KeepsBuffersToItsEnd) {
  int released = 0;
  {
    Arena arena;
    arena.Keep(Counted(released));
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

}  // namespace
}  // namespace onnx_light
