// How another extension module reaches the message behind a Python object: `message._bridge()`
// returns a capsule of this name with a MessageBridge. It is valid as long as the Python object is
// held and, since parsing replaces a root, until the next call that changes the object. A message
// that is not set has no arena and is not to be written to: looking at it does not set it.
#pragma once

#include "onnx_light/message.h"

namespace onnx_light::python {

inline constexpr char kMessageBridge[] = "onnx_light.MessageBridge";

struct MessageBridge {
  const MessageInfo* info;
  Message* message;
  Arena* arena;  // null: read only
};

}  // namespace onnx_light::python
