// Pages in other formats.
#pragma once

#include <optional>

#include "onnx_light/page.h"
#include "onnx_light/quantization_parameters.h"

namespace onnx_light {

// The visible rows with keys and values in these formats; a side without one keeps its own, and so
// does a side that has its format already. The page itself where both sides stay.
//
// ValueError at the side's name: what CheckEncodable() finds, `cache.overflow` where a finite
// number would become infinite, `quant.unknown_layout` where values are not known.
PlacedPage Recode(const PlacedPage& placed, const std::optional<PageFormat>& key,
                  const std::optional<PageFormat>& value);

// The visible rows with these parameters. ValueErrors as those of EncodeWithGiven(), and
// `quant.unknown_layout`, at the side's name.
PlacedPage RecodeWith(const PlacedPage& placed, const QuantizationParameters& key,
                      const QuantizationParameters& value);

}  // namespace onnx_light
