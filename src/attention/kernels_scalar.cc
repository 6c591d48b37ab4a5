#define ONNX_LIGHT_KERNELS attention_scalar
#include "attention/kernels_body.h"
