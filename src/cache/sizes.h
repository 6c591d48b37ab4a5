// How open pages grow.
#pragma once

#include <cstdint>

namespace onnx_light {

// Rows to allocate for an open page that holds `rows`: it grows geometrically from 16, so that
// appending stays O(1) on average and short forks stay small, up to the page size.
// REQUIRES: 0 < rows <= page_size.
int64_t GrownCapacity(int64_t rows, int64_t page_size);

}  // namespace onnx_light
