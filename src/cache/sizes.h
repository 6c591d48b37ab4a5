// Small helpers that several operations of the cache share.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "onnx_light/page.h"

namespace onnx_light {

// Rows to allocate for an open page that holds `rows`: it grows geometrically from 16, so that
// appending stays O(1) on average and short forks stay small, up to the page size.
// REQUIRES: 0 < rows <= page_size.
int64_t GrownCapacity(int64_t rows, int64_t page_size);

// "[1, 2, 3, 4]".
std::string ShapeText(const std::array<int64_t, 4>& shape);

// "batch 1, heads 2, key width 64, value width 64".
std::string Describe(const CacheShape& shape);

// "blocks[3].length", after "<path>." if there is a path.
std::string PagePath(const std::string& path, int64_t index, const char* field = nullptr);

}  // namespace onnx_light
