// The operators of the domain ai.rt for ONNX Runtime.
//
// Give the path of this library to SessionOptions::RegisterCustomOpsLibrary_V2, or
// register_custom_ops_library in Python; it calls the function below. Caches are INT64 scalars in
// such a session: value_handles.h.
#pragma once

#include "onnx_light/export.h"

// The arguments are ONNX Runtime's OrtSessionOptions* and const OrtApiBase*, the result is its
// OrtStatus*: null, or what is wrong, for example that ONNX Runtime is too old. Throws nothing.
extern "C" ONNX_LIGHT_EXPORT void* RegisterCustomOps(void* options, const void* api_base);
