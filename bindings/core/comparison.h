// The errors of one cache against another, as Python sees them.
#pragma once

#include <utility>
#include <vector>

#include "onnx_light/cache.h"

namespace onnx_light::python {

struct CacheComparison {
  explicit CacheComparison(std::vector<PageError> errors);

  std::vector<PageError> pages;
  PageError all;  // over all pages
};

}  // namespace onnx_light::python
