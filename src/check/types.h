// Types without references, and whether a value may have two of them.
#pragma once

#include <memory>
#include <string>

#include "onnx_light/messages.h"

namespace onnx_light {

// A copy whose references into the model's struct_types are replaced by what they mean. Errors as
// ResolveTypes().
std::shared_ptr<const Owned<TypeProto>> Resolved(const TypeProto& type, const ModelProto& model,
                                                 const std::string& path);

// What differs, as "element types FLOAT and INT64"; empty if a value may have both types: dims that
// are not given, or are symbols, go with all. REQUIRES: both are Resolved().
std::string Difference(const TypeProto& a, const TypeProto& b);

}  // namespace onnx_light
