// For tests: caches full of numbers that are all different, and files made of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/test_folder.h"
#include "onnx_light/errors.h"
#include "onnx_light/snapshot.h"
#include "snapshot/format.h"

namespace onnx_light {

struct CacheRecipe {
  CacheShape shape{1, 2, 4, 4};
  DType dtype = DType::kFloat16;
  int64_t page_size = 16;
  int64_t start = 0;
};

// Rows [batch, heads, tokens, width] of bytes that depend on the place and on `seed`.
inline std::string TestRows(int64_t rows, int64_t width, DType dtype, int seed) {
  std::string bytes(rows * width * ElementSize(dtype), '\0');
  uint64_t state = seed * 7919 + 1;
  for (char& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 57);  // below 0x80: no NaN in the high byte
  }
  return bytes;
}

inline PagedCache Appended(const PagedCache& cache, const CacheRecipe& recipe, int64_t tokens,
                           int seed) {
  const CacheShape& shape = recipe.shape;
  const int64_t rows = shape.batch * shape.heads * tokens;
  const std::string key = TestRows(rows, shape.key_width, recipe.dtype, seed);
  const std::string value = TestRows(rows, shape.value_width, recipe.dtype, seed + 1000);
  return cache.Append(
      ContiguousView(key.data(), recipe.dtype, {shape.batch, shape.heads, tokens, shape.key_width}),
      ContiguousView(value.data(), recipe.dtype,
                     {shape.batch, shape.heads, tokens, shape.value_width}));
}

inline PagedCache TestCache(int64_t tokens, int seed, const CacheRecipe& recipe = {}) {
  const ArrayView nothing = ContiguousView(nullptr, DType::kFloat32, {1, 1, 0, 1});
  const PagedCache empty = PagedCache::FromArrays(nothing, nothing, recipe.page_size, recipe.start);
  return Appended(empty, recipe, tokens, seed);
}

inline TokenIds TestTokens(int64_t length, int64_t batch = 0) {
  std::vector<int64_t> ids(length * std::max<int64_t>(batch, 1));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 3 + 5);
  return {batch, length, CopyBytes(ids.data(), ids.size() * 8)};
}

inline SnapshotContent TestContent(int64_t tokens, int caches = 3) {
  SnapshotContent content;
  for (int i = 0; i < caches; ++i) {
    content.caches.push_back({"layers." + std::to_string(i), TestCache(tokens, i)});
  }
  content.tokens = TestTokens(tokens);
  content.identity = {{"architecture", "llama"}, {"weights", "sha256:aa"}};
  content.metadata = {{"note", "\xc3\xa9"}};
  return content;
}

inline std::string Dump(const SnapshotContent& content, const SnapshotWriterOptions& options = {}) {
  const SnapshotWriter writer(content, options);
  std::string bytes(writer.size(), '\xff');
  writer.WriteTo(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

inline SharedBytes Source(const std::string& bytes) {
  return CopyBytes(bytes.data(), bytes.size());
}

inline Snapshot OpenBytes(const std::string& bytes, bool verify_all = false) {
  OpenOptions options;
  options.verify_all = verify_all;
  return Snapshot::Open(Source(bytes), options);
}

inline ValueError OpenError(const std::string& bytes, bool verify_all = true) {
  return Thrown<ValueError>([&] { OpenBytes(bytes, verify_all); });
}

inline void ExpectHolds(const Snapshot& snapshot, const SnapshotContent& content) {
  ASSERT_EQ(snapshot.size(), static_cast<int64_t>(content.caches.size()));
  for (int64_t i = 0; i < snapshot.size(); ++i) {
    EXPECT_EQ(snapshot.name(i), content.caches[i].name);
    EXPECT_TRUE(snapshot.Cache(i) == content.caches[i].cache) << content.caches[i].name;
    EXPECT_EQ(snapshot.Cache(i).page_size(), content.caches[i].cache.page_size());
  }
  const auto tokens = snapshot.Tokens();
  ASSERT_EQ(tokens.has_value(), content.tokens.has_value());
  if (tokens) {
    EXPECT_EQ(tokens->batch, content.tokens->batch);
    EXPECT_EQ(tokens->length, content.tokens->length);
    EXPECT_EQ(tokens->ids.view(), content.tokens->ids.view());
  }
  EXPECT_EQ(snapshot.identity(), content.identity);
  EXPECT_EQ(snapshot.metadata(), content.metadata);
}

// The heads and feet of a file, changed so that everything but the change is in order.
inline std::span<std::byte> Mutable(std::string& bytes) {
  return std::as_writable_bytes(std::span(bytes));
}
inline snapshot::Head HeadOf(const std::string& bytes, size_t offset = 0) {
  return *snapshot::DecodeHead(AsBytes(bytes).subspan(offset, 64));
}
inline void SetHead(std::string& bytes, const snapshot::Head& head, size_t offset = 0) {
  std::memcpy(bytes.data() + offset, snapshot::EncodeHead(head).data(), 64);
}
inline snapshot::Foot FootOf(const std::string& bytes) {
  return *snapshot::DecodeFoot(AsBytes(bytes).last(64));
}
inline void SetFoot(std::string& bytes, const snapshot::Foot& foot) {
  std::memcpy(bytes.data() + bytes.size() - 64, snapshot::EncodeFoot(foot).data(), 64);
}
// The index of a file of one record.
inline std::string_view IndexOf(const std::string& bytes) {
  const uint64_t size = FootOf(bytes).index_size;
  return std::string_view(bytes).substr(bytes.size() - 64 - size, size);
}
// Makes the foot believe in the index as it is now.
inline void SealIndex(std::string& bytes) {
  snapshot::Foot foot = FootOf(bytes);
  foot.index_checksum = Checksum(AsBytes(IndexOf(bytes)));
  SetFoot(bytes, foot);
}

}  // namespace onnx_light
