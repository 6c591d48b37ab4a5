// The source of the kernels, included once for each instruction set by a file that defines
// ONNX_LIGHT_KERNELS as the name of the namespace. Everything here has internal linkage, and
// nothing of the standard library is used: an inline function that two files compile for two
// instruction sets would be one function for the linker.
//
// The compiler must not contract products and sums (-ffp-contract=off): the bits of a scale must
// not depend on the instruction set. Sums run over the elements of a lane in order, never across
// lanes.
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "quant/kernels.h"

#ifndef ONNX_LIGHT_KERNELS
#error "kernels_body.h is included by the kernels_*.cc alone"
#endif

namespace onnx_light::ONNX_LIGHT_KERNELS {
namespace {  // NOLINT(google-build-namespaces)

#include "quant/kernels_vectors.h"
// All others need it.
#include "quant/kernels_codes.h"
#include "quant/kernels_packing.h"
#include "quant/kernels_ranges.h"
#include "quant/kernels_records.h"
#include "quant/kernels_search.h"

}  // namespace

extern const QuantKernels kQuantKernels;
// NOLINTNEXTLINE(misc-definitions-in-headers)
const QuantKernels kQuantKernels{.widen_ranges = WidenRanges,
                                 .find_column_sizes = FindColumnSizes,
                                 .find_ranges = FindGroups<false>,
                                 .find_sizes = FindGroups<true>,
                                 .are_within = AreWithin,
                                 .signed_scales = SignedScales,
                                 .unsigned_scales = UnsignedScales,
                                 .zero_points = ZeroPoints,
                                 .round_scales = RoundScales,
                                 .encode_rows = EncodeRows,
                                 .decode_rows = DecodeRows,
                                 .search_scales = SearchScales,
                                 .unpack_bytes = UnpackBytes,
                                 .pack_bytes = PackBytes,
                                 .encode_q8_0 = EncodeQ8,
                                 .encode_q4_0 = EncodeQ4,
                                 .decode_q8_0 = DecodeQ8,
                                 .decode_q4_0 = DecodeQ4};

}  // namespace onnx_light::ONNX_LIGHT_KERNELS
