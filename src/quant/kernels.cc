#include "quant/kernels.h"

namespace onnx_light {

namespace quant_scalar {
extern const QuantKernels kQuantKernels;
}
namespace quant_avx2 {
extern const QuantKernels kQuantKernels;
}
namespace quant_avx512 {
extern const QuantKernels kQuantKernels;
}

const QuantKernels& QuantKernelsFor(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512Vnni:
    case Isa::kAvx512:
      return quant_avx512::kQuantKernels;
    case Isa::kAvx2:
      return quant_avx2::kQuantKernels;
#endif
    default:
      return quant_scalar::kQuantKernels;
  }
}

const QuantKernels& SelectedQuantKernels() { return QuantKernelsFor(SelectedIsa()); }

}  // namespace onnx_light
