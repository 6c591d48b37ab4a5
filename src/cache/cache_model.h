// For tests: what a cache should hold, as plain vectors that are copied whole at every operation.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "onnx_light/cache.h"

namespace onnx_light {

struct ModelToken {
  DType dtype[2];
  std::vector<uint8_t> rows[2];  // [batch, heads, width] of key and value
  bool operator==(const ModelToken&) const = default;
};

struct CacheModel {
  CacheShape shape;
  int64_t page_size = 64;
  int64_t start = 0;
  std::vector<ModelToken> tokens;
  std::vector<int64_t> lengths;  // of the pages

  int64_t end() const { return start + static_cast<int64_t>(tokens.size()); }

  int64_t RowSize(int side, DType dtype) const {
    return (side == 0 ? shape.key_width : shape.value_width) * ElementSize(dtype);
  }

  // The first token that belongs to the page `index`, as an index into tokens.
  int64_t FirstOf(size_t index) const {
    int64_t first = 0;
    for (size_t i = 0; i < index; ++i) first += lengths[i];
    return first;
  }

  void Append(const std::vector<ModelToken>& added) {
    for (const ModelToken& token : added) {
      const bool fits = !lengths.empty() && lengths.back() < page_size &&
                        tokens.back().dtype[0] == token.dtype[0] &&
                        tokens.back().dtype[1] == token.dtype[1];
      if (!fits) lengths.push_back(0);
      ++lengths.back();
      tokens.push_back(token);
    }
  }

  void Truncate(int64_t to) {
    tokens.resize(to - start);
    int64_t left = to - start;
    std::vector<int64_t> kept;
    for (int64_t length : lengths) {
      if (left > 0) kept.push_back(std::min(length, left));
      left -= length;
    }
    lengths = kept;
  }

  void DropBefore(int64_t position) {
    while (lengths.size() > 1 && start + lengths[0] <= position) {
      tokens.erase(tokens.begin(), tokens.begin() + lengths[0]);
      start += lengths[0];
      lengths.erase(lengths.begin());
    }
  }

  void Slice(int64_t from, int64_t to) {
    Truncate(to);
    while (!lengths.empty() && start < from) {
      const int64_t cut = std::min(lengths[0], from - start);
      tokens.erase(tokens.begin(), tokens.begin() + cut);
      start += cut;
      lengths[0] -= cut;
      if (lengths[0] == 0) lengths.erase(lengths.begin());
    }
    start = from;
  }

  void Concat(const CacheModel& other) {
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    lengths.insert(lengths.end(), other.lengths.begin(), other.lengths.end());
  }

  void Gather(const std::vector<int64_t>& indices) {
    for (ModelToken& token : tokens) {
      for (int side : {0, 1}) {
        const int64_t size = shape.heads * RowSize(side, token.dtype[side]);
        std::vector<uint8_t> rows;
        for (int64_t index : indices) {
          rows.insert(rows.end(), token.rows[side].begin() + index * size,
                      token.rows[side].begin() + (index + 1) * size);
        }
        token.rows[side] = rows;
      }
    }
    shape.batch = static_cast<int64_t>(indices.size());
  }

  void Repage(int64_t size) {
    page_size = size;
    std::vector<ModelToken> all;
    all.swap(tokens);
    lengths.clear();
    Append(all);
  }
};

inline std::vector<ModelToken> RandomTokens(const CacheShape& shape, int64_t count, DType key,
                                            DType value, std::mt19937& random) {
  std::vector<ModelToken> tokens(count);
  for (ModelToken& token : tokens) {
    token.dtype[0] = key;
    token.dtype[1] = value;
    for (int side : {0, 1}) {
      const int64_t width = side == 0 ? shape.key_width : shape.value_width;
      token.rows[side].resize(shape.batch * shape.heads * width * ElementSize(token.dtype[side]));
      for (uint8_t& byte : token.rows[side]) byte = static_cast<uint8_t>(random());
    }
  }
  return tokens;
}

// Tokens of one dtype as an array in C order.
class TokenArray {
 public:
  TokenArray(const CacheShape& shape, const std::vector<ModelToken>& tokens, int side) {
    const DType dtype = tokens.empty() ? DType::kFloat32 : tokens[0].dtype[side];
    const int64_t width = side == 0 ? shape.key_width : shape.value_width;
    const int64_t row = width * ElementSize(dtype), count = static_cast<int64_t>(tokens.size());
    bytes_.resize(shape.batch * shape.heads * count * row);
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t i = 0; i < shape.batch * shape.heads; ++i) {
        std::memcpy(bytes_.data() + (i * count + t) * row, tokens[t].rows[side].data() + i * row,
                    row);
      }
    }
    view_ = ContiguousView(bytes_.data(), dtype, {shape.batch, shape.heads, count, width});
  }
  const ArrayView& view() const { return view_; }

 private:
  std::vector<uint8_t> bytes_;
  ArrayView view_;
};

inline PagedCache AppendTokens(const PagedCache& cache, const CacheShape& shape,
                               const std::vector<ModelToken>& tokens) {
  return cache.Append(TokenArray(shape, tokens, 0).view(), TokenArray(shape, tokens, 1).view());
}

// What differs between the two, empty if nothing does.
inline std::string Difference(const PagedCache& cache, const CacheModel& model) {
  if (cache.start() != model.start || cache.end() != model.end()) return "positions";
  if (cache.pages().size() != static_cast<int64_t>(model.lengths.size())) return "page count";
  if (cache.page_size() != model.page_size) return "page size";
  if (!cache.empty() && cache.shape() != model.shape) return "shape";
  if (cache.empty() && cache.shape() != CacheShape()) return "shape of an empty cache";
  cache.Validate();
  size_t index = 0, t = 0;
  const PageRange pages = cache.pages();
  for (const PlacedPage& placed : pages) {
    const std::string where = " of page " + std::to_string(index);
    if (placed.length != model.lengths[index]) return "length" + where;
    if (pages[index].page != placed.page) return "index and walk disagree" + where;
    for (int64_t row = 0; row < placed.length; ++row, ++t) {
      if (cache.FindPage(placed.start + row) != static_cast<int64_t>(index)) return "find" + where;
      for (int side : {0, 1}) {
        const auto& payload = std::get<DensePayload>(placed.page->payload(Side(side)));
        const ModelToken& token = model.tokens[t];
        if (payload.dtype != token.dtype[side]) return "dtype" + where;
        const int64_t size = model.RowSize(side, payload.dtype);
        for (int64_t i = 0; i < model.shape.batch * model.shape.heads; ++i) {
          const std::byte* at = payload.bytes.data + (i * placed.page->capacity() + row) * size;
          if (std::memcmp(at, token.rows[side].data() + i * size, size) != 0) {
            return "row " + std::to_string(row) + where;
          }
        }
      }
    }
    ++index;
  }
  return "";
}

}  // namespace onnx_light
