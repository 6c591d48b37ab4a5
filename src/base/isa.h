// Which instruction set the kernels use.
#pragma once

#include <cstdint>
#include <string_view>

namespace onnx_light {

// From the plainest to the widest; one that a machine has, all before it has it, too.
// kAvx512 is F, BW, VL and DQ; kAvx512Vnni VNNI and VBMI, too.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Vnni };
inline constexpr Isa kIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni};

// "scalar", "avx2", "avx512", "avx512vnni".
std::string_view Name(Isa isa);

// The widest one that this machine has.
Isa WidestIsa();

// The one that the environment variable ONNX_LIGHT_ISA names, which is read once, or the widest.
// ValueError `isa.unknown` for a name that is none, `isa.unsupported` where the machine lacks it.
Isa SelectedIsa();

}  // namespace onnx_light
