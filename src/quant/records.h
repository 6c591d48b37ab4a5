// The records of llama.cpp, encoded as its reference encoders do: codes come from the scale before
// it is rounded. The bytes are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

#include "onnx_light/encoded_payload.h"

namespace onnx_light {

// The largest magnitude whose record has a finite scale. REQUIRES: kQ8_0 or kQ4_0, as below.
float MostInRecord(PageType type);

// `count` values to count / kRecordValues records, and back. Encoding says whether all magnitudes
// are at most MostInRecord(); if not, the records mean nothing. REQUIRES: `count` is a multiple of
// kRecordValues.
bool EncodeRecords(PageType type, const float* values, int64_t count, std::byte* records);
void DecodeRecords(PageType type, const std::byte* records, int64_t count, float* values);

}  // namespace onnx_light
