#include "core/messages.h"

#include <nanobind/stl/string.h>

#include "core/message_argument.h"
#include "onnx_light/cache_proto.h"
#include "onnx_light/serialization.h"

namespace nb = nanobind;

namespace onnx_light::python {
PagedCache CacheFromMessage(nb::handle proto, nb::handle model, int64_t page_size) {
  const MessageArgument<PagedCacheProto> source(proto, "proto");
  if (model.is_none()) return CacheFromProto(source.message(), page_size);
  const MessageArgument<ModelProto> container(model, "model");
  return CacheFromProto(source.message(), page_size, "", CachePolicy(), &container.message());
}

nb::object CacheToMessage(const PagedCache& cache, const std::string& name) {
  nb::object proto =
      nb::module_::import_("onnx_light.onnx_py._onnxpyprotoop").attr("PagedCacheProto")();
  const MessageArgument<PagedCacheProto> target(proto, "proto");
  if (!name.empty()) target.message().set_name(target.arena(), name);
  // Nobody else has seen the message yet.
  const nb::gil_scoped_release others;
  CacheToProto(cache, target.arena(), target.message());
  return proto;
}

nb::dict CacheState(const PagedCache& cache) {
  Owned<PagedCacheProto> proto;
  CacheToProto(cache, proto.arena(), *proto);
  const Serializer serializer(PagedCacheProto::kInfo, *proto);
  nb::object blocks =
      nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(serializer.size())));
  if (!blocks.is_valid()) throw nb::python_error();
  auto* target = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(blocks.ptr()));
  {
    const nb::gil_scoped_release others;
    serializer.WriteTo(target);
  }
  nb::dict state;
  state["page_size"] = cache.page_size();
  state["start"] = cache.start();
  state["policy"] = cache.policy().Text();
  state["blocks"] = blocks;
  return state;
}

PagedCache CacheFromState(const nb::dict& state) {
  const auto page_size = nb::cast<int64_t>(state["page_size"]);
  const auto start = nb::cast<int64_t>(state["start"]);
  const CachePolicy policy = CachePolicy::Parse(nb::cast<std::string>(state["policy"]));
  const auto blocks = nb::cast<nb::bytes>(state["blocks"]);
  const nb::gil_scoped_release others;
  Owned<PagedCacheProto> proto;
  Parse(proto.arena(), PagedCacheProto::kInfo, *proto,
        {{static_cast<const std::byte*>(blocks.data()), blocks.size()}, BufferRef()});
  if (!proto->has_blocks()) {
    // An empty cache has a position, which no block tells.
    const ArrayView nothing = ContiguousView(nullptr, DType::kFloat32, {1, 1, 0, 1});
    return PagedCache::FromArrays(nothing, nothing, page_size, start, policy);
  }
  return CacheFromProto(*proto, page_size, "", policy);
}

}  // namespace onnx_light::python
