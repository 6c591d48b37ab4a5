#define ONNX_LIGHT_KERNELS attention_avx512
#include "attention/kernels_body.h"
