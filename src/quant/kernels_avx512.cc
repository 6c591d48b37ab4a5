#define ONNX_LIGHT_KERNELS quant_avx512
#include "quant/kernels_body.h"
