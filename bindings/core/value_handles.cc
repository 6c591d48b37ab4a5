// Caches as numbers, for onnx_light.runtime.
#include "onnx_light/value_handles.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
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
using Caches = nb::typed<nb::list, PagedCache>;
template <typename T, int dims>
using Array = nb::ndarray<T, nb::ndim<dims>, nb::c_contig, nb::device::cpu>;

const PagedCache& CacheAt(const Caches& caches, size_t index) {
  return nb::cast<const PagedCache&>(caches[index]);
}

// A scope that can end before its object does, which an exception's traceback may keep.
class Run {
 public:
  void AddAll(const Caches& caches, const Array<int64_t, 1>& handles) {
    if (caches.size() != handles.size()) throw nb::value_error("as many handles are needed");
    for (size_t i = 0; i < caches.size(); ++i) handles(i) = Scope().Add(CacheAt(caches, i));
  }

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

Caches CachesOf(const Array<const int64_t, 1>& handles) {
  nb::list caches;
  for (size_t i = 0; i < handles.size(); ++i) caches.append(nb::cast(*CacheOf(handles(i))));
  return nb::borrow<Caches>(caches);
}

std::optional<int64_t> CommonEnd(const Caches& caches) {
  std::optional<int64_t> end;
  for (size_t i = 0; i < caches.size(); ++i) {
    const int64_t other = CacheAt(caches, i).end();
    if (end.value_or(other) != other) return std::nullopt;
    end = other;
  }
  return end;
}

// An empty cache fits everywhere, and a size of 0 takes any.
std::optional<size_t> FirstMisfit(const Caches& caches, const Array<const int64_t, 2>& sizes) {
  if (sizes.shape(0) != caches.size() || sizes.shape(1) != 4) {
    throw nb::value_error("four sizes for each cache are needed");
  }
  for (size_t i = 0; i < caches.size(); ++i) {
    const PagedCache& cache = CacheAt(caches, i);
    if (cache.empty()) continue;
    const CacheShape& shape = cache.shape();
    const int64_t found[] = {shape.batch, shape.heads, shape.key_width, shape.value_width};
    for (size_t axis = 0; axis < 4; ++axis) {
      if (sizes(i, axis) != 0 && sizes(i, axis) != found[axis]) return i;
    }
  }
  return std::nullopt;
}

}  // namespace

void BindValueHandles(nb::module_& m) {
  nb::class_<Run>(m, "ValueScope", "Owns the caches of a run, which have handles until it ends.")
      .def(nb::init<>())
      .def("add_all", &Run::AddAll, "caches"_a, "handles"_a.noconvert(),
           "Writes new handles of caches into int64 [caches].")
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
  m.def("caches_of", &CachesOf, "handles"_a,
        "The caches of handles, int64 [caches].\n\n"
        "Raises:\n"
        "    CodedError: `runtime.handle` if one has none, or no longer.");
  m.def("common_end", &CommonEnd, "caches"_a,
        "The end position of all caches; None where they differ, or there are none.");
  m.def("first_misfit", &FirstMisfit, "caches"_a, "sizes"_a,
        "The index of the first cache that has not its row of int64 [caches, 4]: batch, heads,\n"
        "key width and value width, 0 for any. Empty caches have them all. None if there is none.");
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
