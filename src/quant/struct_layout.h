// Struct layouts of encoded values: what a record consists of.
#pragma once

#include <optional>
#include <string>

#include "onnx_light/messages.h"
#include "onnx_light/page_format.h"

namespace onnx_light {

// The type of the model, which may be null, with that type_id. ValueError `cache.reference` at
// `path`.
const StructTypeProto& FindStructType(const ModelProto* model, uint64_t id,
                                      const std::string& path);

// Replaces every reference to a type of the model, at any depth, by that type. ValueError
// `cache.reference` at `path` for a reference that the model, which may be null, does not resolve;
// `cache.layout` where types lie too deep in each other, as where one contains itself.
void ResolveTypes(Arena& arena, StructTypeProto& type, const ModelProto* model,
                  const std::string& path);
void ResolveTypes(Arena& arena, TypeProto& type, const ModelProto* model, const std::string& path);

// The records that a type without references describes, by name and structure.
std::optional<PageType> KnownRecords(const StructTypeProto& type);

// Makes the empty message `type` describe records. REQUIRES: records is kQ8_0 or kQ4_0.
void WriteRecordType(PageType records, Arena& arena, StructTypeProto& type);

}  // namespace onnx_light
