// Attention on a cache, from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "onnx_light/cache.h"

namespace onnx_light::python {

// What PagedCache.attend() takes besides the query. Objects that may be None are handles.
struct AttendArguments {
  std::optional<double> scale;
  bool is_causal;
  int64_t left_window_size;
  double softcap;
  nanobind::handle attn_mask;
  nanobind::handle sinks;
  int num_threads;
};

// A new numpy array. Lets other threads run.
nanobind::object AttendArray(const PagedCache& cache, nanobind::handle query,
                             const AttendArguments& arguments);

// What the function paged_attention() takes besides that.
struct PagedAttentionArguments {
  int64_t block_size;
  int64_t max_tokens;
  nanobind::handle policy;
};

// The pair of a new numpy array and the new cache.
nanobind::object PagedAttentionResult(const PagedCache& past, nanobind::handle query,
                                      nanobind::handle key, nanobind::handle value,
                                      const AttendArguments& arguments,
                                      const PagedAttentionArguments& more);

}  // namespace onnx_light::python
