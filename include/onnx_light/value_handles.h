// Caches as INT64 numbers, which is how they travel through ONNX Runtime.
//
//   ValueScope run;
//   int64_t past = run.Add(cache);       // goes into a graph as an INT64 scalar
//   ...                                  // an operator puts what it makes beside its input
//   PagedCache present = CacheOf(handle_that_came_out);
//
// A handle belongs to a scope, whose number is part of it: an operator that gets one knows where to
// put its result, in whatever subgraph it is. The values live until their scope ends; numbers are
// not used again, so a handle that is out of date is an error and never another value. A handle
// from another process is one, too. Any thread may call anything.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "onnx_light/cache.h"
#include "onnx_light/errors.h"
#include "onnx_light/export.h"

namespace onnx_light {

// What went wrong in an operator.
struct OperatorFailure {
  std::string node;  // its name in the graph
  std::string code, path, message;
};

class ONNX_LIGHT_EXPORT ValueScope {
 public:
  ValueScope();
  ~ValueScope();  // drops all values; who still has one keeps it
  ValueScope(const ValueScope&) = delete;
  ValueScope& operator=(const ValueScope&) = delete;

  // `runtime.handle` where the scope has given out 2^26 handles.
  int64_t Add(PagedCache cache);
  // The first failure of an operator on a value of this scope.
  std::optional<OperatorFailure> failure() const;

 private:
  int64_t number_;
};

// The value. ValueError `runtime.handle` where there is none, or no longer.
ONNX_LIGHT_EXPORT std::shared_ptr<const PagedCache> CacheOf(int64_t handle);

// A handle in the scope of another one. Errors as CacheOf() and Add().
ONNX_LIGHT_EXPORT int64_t AddBeside(int64_t handle, PagedCache cache);

// Tells the scope of a handle; does nothing where there is none, or a failure is known already.
ONNX_LIGHT_EXPORT void TellFailure(int64_t handle, OperatorFailure failure);

// A handle in a scope of its own, which ends when ReleaseHandle() gets this handle.
ONNX_LIGHT_EXPORT int64_t NewHandle(PagedCache cache);

// Drops one value; with a handle that NewHandle() made, all values that operators put beside it.
// Errors as CacheOf().
ONNX_LIGHT_EXPORT void ReleaseHandle(int64_t handle);

// Values that all scopes hold.
ONNX_LIGHT_EXPORT int64_t HeldValues();

}  // namespace onnx_light
