// Symbol visibility of the public API: the library is built with hidden visibility.
#pragma once

#define ONNX_LIGHT_EXPORT __attribute__((visibility("default")))
