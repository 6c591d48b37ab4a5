#include "attention/kernels.h"

namespace onnx_light {

namespace attention_scalar {
extern const AttentionKernels kAttentionKernels;
}
namespace attention_avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace attention_avx512 {
extern const AttentionKernels kAttentionKernels;
}
namespace attention_avx512vnni {
extern const AttentionKernels kAttentionKernels;
}

const AttentionKernels& AttentionKernelsFor(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512Vnni:
      return attention_avx512vnni::kAttentionKernels;
    case Isa::kAvx512:
      return attention_avx512::kAttentionKernels;
    case Isa::kAvx2:
      return attention_avx2::kAttentionKernels;
#endif
    default:
      return attention_scalar::kAttentionKernels;
  }
}

const AttentionKernels& SelectedAttentionKernels() { return AttentionKernelsFor(SelectedIsa()); }

}  // namespace onnx_light
