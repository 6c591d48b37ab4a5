// The extension module of the cache value and its files.
#include <nanobind/nanobind.h>

#include "core/bind.h"
#include "onnx_light/errors.h"
#include "python.h"

namespace nb = nanobind;

namespace {

void Translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const onnx_light::Error&) {
    onnx_light::python::SetErrorFromCurrentException();
  }
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() =
      "The compiled part of onnx_light: the cache value and snapshots. Use it through onnx_light.";
  // Caches that somebody still holds when the process ends are no mistake.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(Translate);
  onnx_light::python::BindPolicy(m);
  onnx_light::python::BindPages(m);
  onnx_light::python::BindComparison(m);
  onnx_light::python::BindPagedCache(m);
  onnx_light::python::BindQuantizePagedCache(m);
  onnx_light::python::BindCheck(m);
  onnx_light::python::BindValueHandles(m);
  onnx_light::python::BindSnapshot(m);
}
