// How another extension module reaches the message behind a Python object: `message._bridge()`
// returns a capsule of this name with a MessageBridge. It is valid as long as the Python object is
// held and, since parsing replaces a root, until the next call that changes the object.
#pragma once

#include "onnx_light/message.h"

namespace onnx_light::python {

inline constexpr char kMessageBridge[] = "onnx_light.MessageBridge";

struct MessageBridge {
  const MessageInfo* info;
  Message* message;
  Arena* arena;
};

}  // namespace onnx_light::python
