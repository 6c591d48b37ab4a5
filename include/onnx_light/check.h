// Whether a model is well-formed. Parsing does not ask.
#pragma once

#include <string>

#include "onnx_light/export.h"
#include "onnx_light/messages.h"

namespace onnx_light {

// Looks at every message of a model, those in subgraphs and functions, too: nothing is missing,
// names are unique, payloads have their size, references are resolved, caches and encoded values
// are as they must be, persistent bindings are well typed. Linear in the messages, but for
// references, which are searched for one by one; payloads are not read, only typed data are.
//
// Throws ValueError for the first thing that is wrong, with the path of the message or field:
//   `check.missing`      a field is not set, or a name is empty
//   `check.duplicate`    two things have one name or number
//   `check.attribute`    the value is not where the attribute's type says
//   `check.sparse`       the parts of a sparse tensor do not fit each other
//   `check.cycle`        a struct type contains itself
//   `check.cache_type`   a type has the name of cache values, but not their version or structure
//   `check.cache_input`  an input of a graph and its default do not go together
//   `check.binding`      a persistent binding names no input or output, or its types differ
//   `tensor.*`           ReadTensorLayout(), of any tensor
//   `cache.*`            CacheFromProto(), of caches, encoded initializers and catalogues
//   `external.*`         of references to other files
// Data in other files are not looked for; where the reference gives a length, that is checked.
ONNX_LIGHT_EXPORT void CheckModel(const ModelProto& model);

// The same, and data in other files are there and have their size. Locations are relative to
// `folder`. SystemError where a file cannot be opened.
ONNX_LIGHT_EXPORT void CheckModel(const ModelProto& model, const std::string& folder);

// Makes a model one that checkers of standard ONNX understand: without the fields of this project,
// with a small tensor for each encoded or cache initializer and for each payload that is large or
// lies in another file, and INT64 scalars for structured types. Such a model says whether the
// nodes, names and types are well-formed; it computes nothing sensible.
ONNX_LIGHT_EXPORT void KeepStandardPart(Arena& arena, ModelProto& model);

}  // namespace onnx_light
