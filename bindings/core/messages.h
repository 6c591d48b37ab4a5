// Caches from and to the message objects of the other extension module.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "onnx_light/cache.h"

namespace onnx_light::python {

// Reads a Python PagedCacheProto. TypeError if it, or `model`, is something else.
PagedCache CacheFromMessage(nanobind::handle proto, nanobind::handle model, int64_t page_size);

// A new Python PagedCacheProto; its name is set unless `name` is empty.
nanobind::object CacheToMessage(const PagedCache& cache, const std::string& name);

// What pickle keeps of a cache: its page size, its start, and its pages as a serialized message.
nanobind::dict CacheState(const PagedCache& cache);
PagedCache CacheFromState(const nanobind::dict& state);

}  // namespace onnx_light::python
