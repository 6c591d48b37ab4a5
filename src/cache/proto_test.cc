#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "onnx_light/cache_proto.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

std::vector<float> Numbers(int64_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  return numbers;
}

PagedCache Grown(int64_t tokens, int64_t width, int64_t page_size) {
  const std::vector<float> numbers = Numbers(2 * tokens * width);
  const ArrayView view = ContiguousView(numbers.data(), DType::kFloat32, {1, 2, tokens, width});
  return PagedCache::FromArrays(view, view, page_size);
}

const std::byte* KeyData(const PagedCache& cache, int64_t page) {
  return std::get<DensePayload>(cache.pages()[page].page->key()).bytes.data;
}

// A message of one block [1, 1, 2, width] float32 of numbers 0, 1, ....
void AddBlock(Owned<PagedCacheProto>& proto, int64_t start, int64_t width) {
  const std::vector<float> numbers = Numbers(2 * width);
  const std::string_view bytes(reinterpret_cast<const char*>(numbers.data()),
                               numbers.size() * sizeof(float));
  PagedCacheBlockProto* block = proto->add_blocks(proto.arena());
  block->set_start(proto.arena(), start);
  block->set_length(proto.arena(), 2);
  for (TensorProto* tensor :
       {block->mutable_key(proto.arena()), block->mutable_value(proto.arena())}) {
    for (int64_t dim : {int64_t{1}, int64_t{1}, int64_t{2}, width}) {
      tensor->add_dims(proto.arena(), dim);
    }
    tensor->set_data_type(proto.arena(), TensorProto::FLOAT);
    tensor->set_raw_data(proto.arena(), bytes);
  }
}

TEST(CacheToProto, SharesFullPagesAndTrimsOthers) {
  const PagedCache cache = Grown(20, 512, 16);
  Owned<PagedCacheProto> proto;
  CacheToProto(cache, proto.arena(), *proto);
  ASSERT_EQ(proto->blocks().size(), 2u);
  const TensorProto& full = proto->blocks()[0]->key();
  const TensorProto& open = proto->blocks()[1]->key();
  EXPECT_EQ(static_cast<const void*>(full.raw_data().data()), KeyData(cache, 0));
  EXPECT_EQ(full.raw_data().size(), 2u * 16 * 512 * 4);
  EXPECT_NE(static_cast<const void*>(open.raw_data().data()), KeyData(cache, 1));
  EXPECT_EQ(open.raw_data().size(), 2u * 4 * 512 * 4);
  // Head 1, row 0 of the open page is token 16.
  float number = 0;
  std::memcpy(&number, open.raw_data().data() + 4 * 512 * 4, sizeof(number));
  EXPECT_EQ(number, (20 + 16) * 512.0f);
}

TEST(CacheToProto, ReplacesTheBlocksAndKeepsTheRest) {
  Owned<PagedCacheProto> proto;
  proto->set_name(proto.arena(), std::string_view("layer"));
  for (int64_t tokens : {40, 3, 0}) {
    const PagedCache cache = tokens == 0 ? PagedCache() : Grown(tokens, 8, 16);
    CacheToProto(cache, proto.arena(), *proto);
    EXPECT_EQ(proto->blocks().size(), static_cast<size_t>((tokens + 15) / 16));
    EXPECT_EQ(CacheFromProto(*proto), cache);
  }
  EXPECT_EQ(proto->name(), "layer");
}

TEST(CacheFromProto, SharesLargePayloadsBeyondTheMessage) {
  std::optional<PagedCache> small, large;
  {
    Owned<PagedCacheProto> first, second;
    AddBlock(first, 0, 8);
    AddBlock(second, 0, 1024);
    small = CacheFromProto(*first, 32);
    large = CacheFromProto(*second);
    const std::string_view raw = second->blocks()[0]->key().raw_data();
    EXPECT_EQ(static_cast<const void*>(raw.data()), KeyData(*large, 0));
  }
  EXPECT_EQ(small->page_size(), 32);
  EXPECT_EQ(large->page_size(), PagedCache::kDefaultPageSize);
  for (const PagedCache& cache : {*small, *large}) {
    std::vector<float> numbers(2 * cache.shape().key_width);
    cache.ToArray(Side::kKey, DType::kFloat32, numbers.data(), numbers.size() * sizeof(float));
    EXPECT_EQ(numbers, Numbers(2 * cache.shape().key_width));
  }
}

TEST(CacheFromProto, NamesTheOuterPath) {
  Owned<PagedCacheProto> proto;
  AddBlock(proto, 0, 8);
  AddBlock(proto, 3, 8);
  try {
    CacheFromProto(*proto, 64, "graph.paged_cache_initializer[7]");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_EQ(error.code(), "cache.start");
    EXPECT_EQ(error.path(), "graph.paged_cache_initializer[7].blocks[1].start");
  }
  proto->blocks()[1]->set_start(proto.arena(), 2);
  proto->blocks()[1]->mutable_value(proto.arena())->clear_data_type(proto.arena());
  try {
    CacheFromProto(*proto, 64, "x");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_EQ(error.code(), "cache.missing");
    EXPECT_EQ(error.path(), "x.blocks[1].value");
  }
}

}  // namespace
}  // namespace onnx_light
