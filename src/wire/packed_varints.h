// Decoding of long runs of varints, which packed fields are.
#pragma once

#include <cstdint>

namespace onnx_light {

// How many varints end in [p, end).
uint64_t CountVarints(const uint8_t* p, const uint8_t* end);

// Decodes varints of [p, end) into [to, limit), cut to the width of T; a bool becomes "not zero".
// Returns where it stopped: the end, a varint that is bad or does not end, or what lies behind the
// one that filled the last place (the bytes of a mapped file may change after they were counted).
// T: uint64_t, uint32_t or bool.
template <typename T>
const uint8_t* DecodeVarints(const uint8_t* p, const uint8_t* end, T* to, const T* limit);

}  // namespace onnx_light
