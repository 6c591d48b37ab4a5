// What Python's Page, Pages and PagePayload stand for.
#pragma once

#include <string>

#include "onnx_light/cache.h"

namespace onnx_light::python {

// The pages of a value, which it keeps alive.
struct Pages {
  PagedCache cache;
};

// The keys or the values of a page.
struct PayloadOfPage {
  PlacedPage placed;
  Side side;

  const PagePayload& payload() const { return placed.page->payload(side); }
};

// "float32", or the layout in words.
std::string FormatText(const PlacedPage& placed, Side side);

}  // namespace onnx_light::python
