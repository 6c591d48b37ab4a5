#define ONNX_LIGHT_KERNELS attention_avx2
#include "attention/kernels_body.h"
