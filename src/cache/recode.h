// Pages in other formats.
#pragma once

#include <optional>

#include "onnx_light/page.h"

namespace onnx_light {

// The visible rows with keys and values in these formats; a side without one keeps its own, and so
// does a side that has its format already. The page itself where both sides stay.
//
// ValueError at the side's name: what CheckEncodable() finds, `cache.overflow` where a finite
// number would become infinite, `quant.unknown_layout` where values are not known.
PlacedPage Recode(const PlacedPage& placed, const std::optional<PageFormat>& key,
                  const std::optional<PageFormat>& value);

}  // namespace onnx_light
