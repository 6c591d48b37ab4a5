// Caches from messages. The input is a PagedCacheProto.
#include "onnx_light/cache_proto.h"

#include <vector>

#include "fuzz.h"

namespace onnx_light::fuzz {
namespace {

// The cache, or nothing where the message is none or describes none.
std::optional<PagedCache> TryCache(const PagedCacheProto& proto) {
  try {
    return CacheFromProto(proto, 4, "cache");
  } catch (const ValueError& error) {
    Check(error.path().starts_with("cache"), "an error says where");
    return std::nullopt;
  }
}

std::vector<float> Numbers(const PagedCache& cache, Side side) {
  const CacheShape& shape = cache.shape();
  std::vector<float> numbers(shape.batch * shape.heads * cache.length() * shape.width(side));
  cache.ToArray(side, DType::kFloat32, numbers.data(), numbers.size() * sizeof(float));
  return numbers;
}

// As bits: NaN is equal to itself.
bool SameNumbers(const PagedCache& a, const PagedCache& b) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const std::vector<float> left = Numbers(a, side), right = Numbers(b, side);
    if (left.size() != right.size()) return false;
    if (!left.empty() && std::memcmp(left.data(), right.data(), left.size() * 4) != 0) return false;
  }
  return true;
}

void CheckProto(const PagedCache& cache) {
  Owned<PagedCacheProto> proto;
  try {
    CacheToProto(cache, proto.arena(), *proto);
  } catch (const ValueError& error) {
    Check(error.code() == "quant.unknown_layout", "only rows that nobody knows cannot be cut off");
    return;
  }
  const std::optional<PagedCache> again = TryCache(*proto);
  Check(again.has_value(), "a cache as a message is a cache");
  Check(cache.empty() ? again->empty() : *again == cache, "the same one");
}

void CheckPages(const PagedCache& cache) {
  int64_t position = cache.start();
  for (const PlacedPage& placed : cache.pages()) {
    Check(placed.start == position && placed.length > 0, "pages follow each other");
    Check(placed.length <= placed.page->capacity(), "rows lie in their page");
    position = placed.end();
  }
  Check(position == cache.end(), "pages reach to the end");
}

void CheckParts(const PagedCache& cache) {
  const int64_t middle = cache.start() + cache.length() / 2;
  const PagedCache front = cache.Slice(cache.start(), middle);
  const PagedCache back = cache.Slice(middle, cache.end());
  Check(SameNumbers(front, cache.Truncate(middle)), "the front is the cache truncated");
  Check(front.length() + back.length() == cache.length(), "two parts are the whole");
  Check(SameNumbers(front.Concat(back), cache), "joined parts are the whole");
  Check(SameNumbers(cache.Repage(3), cache), "other pages hold the same");
  const PagedCache window = cache.DropBefore(middle);
  Check(window.end() == cache.end(), "a window keeps its end");
  window.Validate();
}

void Run(Input input) {
  Owned<PagedCacheProto> proto;
  const std::span<const std::byte> bytes = input.Rest();
  try {
    Parse(proto.arena(), PagedCacheProto::kInfo, *proto, {bytes, {}});
  } catch (const ParseError&) {
    return;
  }
  const std::optional<PagedCache> cache = TryCache(*proto);
  if (!cache) return;
  cache->Validate();
  CheckPages(*cache);
  Check(*cache == *cache, "a cache is equal to itself");
  CheckProto(*cache);
  if (cache->empty()) return;
  try {
    CheckParts(*cache);
  } catch (const ValueError& error) {
    Check(error.code() == "quant.unknown_layout", "only values that nobody knows cannot be had");
  }
}

}  // namespace
}  // namespace onnx_light::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnx_light::fuzz::Run({data, size});
  return 0;
}
