// What a file is that is no snapshot, for the error that says so.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace onnx_light::snapshot {

// Whether the file was a snapshot that stock tools parsed and wrote again: a walk of well-formed
// fields does not begin with the head, but meets it.
bool IsRewritten(std::span<const std::byte> file);

// "a GGUF file", "text", "something unknown". A guess by the first bytes, or by a walk of the
// top-level fields.
std::string SeemsToBe(std::span<const std::byte> file);

}  // namespace onnx_light::snapshot
