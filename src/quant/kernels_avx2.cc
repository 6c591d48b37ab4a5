#define ONNX_LIGHT_KERNELS quant_avx2
#include "quant/kernels_body.h"
