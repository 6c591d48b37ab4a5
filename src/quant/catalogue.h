// The quantization catalogue of a model: parameters that several encoded values share.
#pragma once

#include <string>
#include <string_view>

#include "onnx_light/messages.h"

namespace onnx_light {

// What an annotation's tensor_name begins with; the name that a parameter_ref gives follows.
inline constexpr std::string_view kCataloguePrefix = "onnx_light.quantization.parameters:";

struct SharedParameters {
  const TensorProto* scale = nullptr;
  const TensorProto* zero_point = nullptr;  // may be null
};

// The initializers of `graph` that an annotation maps the keys "scale" and "zero_point" to. Throws
// ValueError `cache.reference` at `path` for an initializer that is not there, or no scale.
SharedParameters ReadCatalogueEntry(const TensorAnnotation& annotation, const GraphProto& graph,
                                    const std::string& path);

// The parameters of that name in the root graph of `model`, which may be null. `cache.reference`
// at `path`.
SharedParameters FindParameters(const ModelProto* model, std::string_view name,
                                const std::string& path);

}  // namespace onnx_light
