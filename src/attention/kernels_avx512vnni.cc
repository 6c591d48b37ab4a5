#define ONNX_LIGHT_KERNELS attention_avx512vnni
#include "attention/kernels_body.h"
