// Caches as numbers, for onnx_light.runtime.
#include "onnx_light/value_handles.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>

#include "core/bind.h"
#include "onnx_light/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnx_light::python {
namespace {

using NoGil = nb::call_guard<nb::gil_scoped_release>;
using Failure = std::tuple<std::string, std::string, std::string, std::string>;

// A scope that can end before its object does, which an exception's traceback may keep.
class Run {
 public:
  int64_t Add(const PagedCache& cache) { return Scope().Add(cache); }

  std::optional<Failure> failure() const {
    const auto failure = Scope().failure();
    if (!failure) return std::nullopt;
    return Failure(failure->node, failure->code, failure->path, failure->message);
  }

  void End() { scope_.reset(); }

 private:
  ValueScope& Scope() const {
    if (scope_ == nullptr) throw ValueError("runtime.handle", "", "the run has ended");
    return *scope_;
  }
  std::unique_ptr<ValueScope> scope_ = std::make_unique<ValueScope>();
};

}  // namespace

void BindValueHandles(nb::module_& m) {
  nb::class_<Run>(m, "ValueScope", "Owns the caches of a run, which have handles until it ends.")
      .def(nb::init<>())
      .def("add", &Run::Add, "cache"_a, "A new handle of a cache.")
      .def_prop_ro("failure", &Run::failure,
                   "The first failure of an operator on one of the caches: the name of the node, "
                   "the\n"
                   "code, path and message of the error; None if there is none.")
      .def("end", &Run::End, NoGil(), "Drops all values. The handles are not valid any more.");
  m.def(
      "cache_of", [](int64_t handle) { return *CacheOf(handle); }, "handle"_a,
      "The cache of a handle.\n\n"
      "Raises:\n"
      "    CodedError: `runtime.handle` if there is none, or no longer.");
  m.def(
      "new_handle", [](const PagedCache& cache) { return NewHandle(cache); }, "cache"_a,
      "A handle of a cache, in a scope of its own that release_handle() ends.");
  m.def("release_handle", &ReleaseHandle, "handle"_a, NoGil(),
        "Drops a value; with a handle of new_handle() all that operators made from it, too.\n\n"
        "Raises:\n"
        "    CodedError: `runtime.handle` if there is none, or no longer.");
  m.def("held_values", &HeldValues, "The number of caches that handles stand for.");
}

}  // namespace onnx_light::python
