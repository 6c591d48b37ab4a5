// The classes of the extension module _core, each in a file of its own.
#pragma once

#include <nanobind/nanobind.h>

namespace onnx_light::python {

void BindPolicy(nanobind::module_& m);
void BindPages(nanobind::module_& m);
void BindComparison(nanobind::module_& m);
void BindPagedCache(nanobind::module_& m);
void BindQuantizePagedCache(nanobind::module_& m);
void BindCheck(nanobind::module_& m);
void BindValueHandles(nanobind::module_& m);
void BindSnapshot(nanobind::module_& m);

}  // namespace onnx_light::python
