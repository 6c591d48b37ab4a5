// Messages that Python hands to this module.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "message_bridge.h"

namespace onnx_light::python {

// The message behind a Python object, while this lives.
template <typename M>
class MessageArgument {
 public:
  // TypeError unless `object` is a message of class M.
  MessageArgument(nanobind::handle object, const char* name) {
    if (nanobind::hasattr(object, "_bridge")) {
      capsule_ = object.attr("_bridge")();
      bridge_ =
          static_cast<const MessageBridge*>(PyCapsule_GetPointer(capsule_.ptr(), kMessageBridge));
      if (bridge_ == nullptr) throw nanobind::python_error();
      if (bridge_->info == &M::kInfo) return;
    }
    throw nanobind::type_error((std::string(name) + ": a " + M::kInfo.full_name +
                                " is needed, not " + Py_TYPE(object.ptr())->tp_name)
                                   .c_str());
  }

  M& message() const { return *static_cast<M*>(bridge_->message); }
  Arena& arena() const { return *bridge_->arena; }

 private:
  nanobind::object capsule_;
  const MessageBridge* bridge_ = nullptr;
};

}  // namespace onnx_light::python
