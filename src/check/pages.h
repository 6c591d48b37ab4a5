// The rules of pages, whether they come from a message or from memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "onnx_light/page.h"

namespace onnx_light {

// "[1, 2, 3, 4]".
std::string ShapeText(const std::array<int64_t, 4>& shape);

// "batch 1, heads 2, key width 64, value width 64".
std::string Describe(const CacheShape& shape);

// "blocks[3].length", after "<path>." if there is a path.
std::string PagePath(const std::string& path, int64_t index, const char* field = nullptr);

// Bytes of [batch, heads, capacity, width] elements. ValueError `cache.too_large` at `path` where
// they do not fit 63 bits. REQUIRES: nothing is negative.
int64_t DenseSize(const CacheShape& shape, Side side, int64_t capacity, DType dtype,
                  const std::string& path);

// That everything is positive. ValueError `cache.shape` at `path`.
void CheckPositive(const CacheShape& shape, int64_t capacity, const std::string& path);

// That a dense payload has the bytes that follow from the shape. ValueError `cache.payload_size` at
// "<path>.key" or "<path>.value", `cache.too_large`. REQUIRES: nothing is negative.
void CheckDenseSize(const CacheShape& shape, int64_t capacity, Side side, DType dtype,
                    uint64_t size, const std::string& path);

// The same for a payload of any form: the dims of an encoded one are `cache.shape`.
void CheckPayload(const CacheShape& shape, int64_t capacity, Side side, const PagePayload& payload,
                  const std::string& path);

// A page as its neighbours see it.
struct PageExtent {
  int64_t start = 0;
  int64_t length = 0;
  int64_t capacity = 0;
  CacheShape shape;
};

// That start and length are possible, and that the page continues the one before, if there is one.
// `path` is that of the cache, `index` the number of the page. ValueError `cache.start`,
// `cache.length`, `cache.too_large`, `cache.shape`.
void CheckPage(const PageExtent& page, const PageExtent* before, const std::string& path,
               int64_t index);

}  // namespace onnx_light
