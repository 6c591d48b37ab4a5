#define ONNX_LIGHT_KERNELS quant_scalar
#include "quant/kernels_body.h"
