// The source of the kernels, included once for each instruction set by a file that defines
// ONNX_LIGHT_KERNELS as the name of the namespace. Everything here has internal linkage, and
// nothing of the standard library is used: an inline function that two files compile for two
// instruction sets would be one function for the linker.
//
// Loops over arrays of vectors have constant bounds and are unrolled, so the arrays are registers.
#include "attention/kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef ONNX_LIGHT_KERNELS
#error "kernels_body.h is included by the kernels_*.cc alone"
#endif

namespace onnx_light::ONNX_LIGHT_KERNELS {
namespace {  // NOLINT(google-build-namespaces)

#if defined(__AVX512F__)
#include "attention/vectors_avx512.h"
#elif defined(__AVX2__)
#include "attention/vectors_avx2.h"
#else
#include "attention/vectors_plain.h"
#endif

#include "attention/kernels_formats.h"
#include "attention/kernels_rows.h"
#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#include "attention/kernels_bytes.h"
#endif
#include "attention/kernels_softmax.h"

template <template <typename> class Kernel, typename Entry>
constexpr void Fill(Entry (&entries)[kRowFormats]) {
  ForEachFormat([&](auto format) {
    entries[static_cast<int>(decltype(format)::kFormat)] = Kernel<decltype(format)>::kEntry;
  });
}

constexpr AttentionKernels MakeKernels() {
  AttentionKernels kernels{};
  kernels.max_rows = kMaxRows;
  Fill<ScoresKernel>(kernels.scores);
  Fill<MixKernel>(kernels.mix);
  Fill<WidenKernel>(kernels.widen);
  Fill<PairsOf>(kernels.pairs);
  Fill<StepOf>(kernels.step);
  kernels.pair = PairOrder;
  kernels.multiply = MultiplyRows;
  kernels.soften = Soften;
  kernels.finite = AllFinite;
  kernels.blend = Blend;
  kernels.exp = ExpOf;
  return kernels;
}

}  // namespace

extern const AttentionKernels kAttentionKernels;
// NOLINTNEXTLINE(misc-definitions-in-headers)
constinit const AttentionKernels kAttentionKernels = MakeKernels();

}  // namespace onnx_light::ONNX_LIGHT_KERNELS
