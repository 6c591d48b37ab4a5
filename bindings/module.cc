// The extension module of the message classes.
#include <nanobind/nanobind.h>

#include "files.h"
#include "handles.h"
#include "lists.h"
#include "messages.h"
#include "options.h"
#include "payload_view.h"

namespace nb = nanobind;

NB_MODULE(_onnxpyprotoop, m) {
  using namespace onnx_light::python;
  m.doc() = "The messages of ONNX and of paged caches, with the Python interface of protobuf.";
  // The message classes live until the process ends, and hold the enums.
  nb::set_leak_warnings(false);
  try {
    AddPayloadType();
    AddListTypes(m.ptr());
    AddMessageTypes(m.ptr());
    AddOptionTypes(m.ptr());
    AddFileTypes(m.ptr());
  } catch (const ErrorAlreadySet&) {
    throw nb::python_error();
  }
  const nb::object errors = nb::module_::import_("onnx_light.errors");
  m.attr("ParseError") = errors.attr("ParseError");
  m.attr("DecodeError") = errors.attr("ParseError");
  m.def(
      "_live_objects",
      [] {
        const Counters& live = LiveObjects();
        nb::dict counts;
        counts["arenas"] = live.arenas;
        counts["messages"] = live.messages;
        counts["lists"] = live.lists;
        counts["stubs"] = live.stubs;
        return counts;
      },
      "Live arenas and handles, for tests of leaks.");
}
