// How a caller ends long work early.
#pragma once

#include <functional>

namespace onnx_light {

// Called now and then while something long is done; whatever it throws ends the work as an error
// would and reaches the caller. Empty: nothing ends it.
using Interrupt = std::function<void()>;

}  // namespace onnx_light
