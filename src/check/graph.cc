// Rules for graphs: names, encoded and cache initializers.
#include <string>
#include <string_view>
#include <unordered_map>

#include "check/cache.h"
#include "check/cache_type.h"
#include "check/context.h"
#include "check/types.h"
#include "onnx_light/errors.h"

namespace onnx_light::check {
namespace {

std::string Element(const char* field, size_t index) {
  return std::string(field) + '[' + std::to_string(index) + ']';
}

void CheckInitializerNames(const GraphProto& graph, const Context& context) {
  Names names(context);
  for (size_t i = 0; i < graph.initializer().size(); ++i) {
    names.Add(graph.initializer()[i]->name(), "initializer", i);
  }
  for (size_t i = 0; i < graph.sparse_initializer().size(); ++i) {
    names.Add(graph.sparse_initializer()[i]->values().name(), "sparse_initializer", i);
  }
  for (size_t i = 0; i < graph.encoded_initializer().size(); ++i) {
    names.Add(graph.encoded_initializer()[i]->name(), "encoded_initializer", i);
  }
  for (size_t i = 0; i < graph.paged_cache_initializer().size(); ++i) {
    names.Add(graph.paged_cache_initializer()[i]->name(), "paged_cache_initializer", i);
  }
}

// The initializers that an input of the graph may have as its default.
class Defaults {
 public:
  Defaults(const GraphProto& graph, const Context& context) : graph_(graph), context_(context) {
    for (size_t i = 0; i < graph.paged_cache_initializer().size(); ++i) {
      caches_.emplace(graph.paged_cache_initializer()[i]->name(), CheckedType(i));
    }
    for (const TensorProto* tensor : graph.initializer()) {
      others_.emplace(tensor->name(), "initializer");
    }
    for (const SparseTensorProto* tensor : graph.sparse_initializer()) {
      others_.emplace(tensor->values().name(), "sparse_initializer");
    }
    for (const EncodedValueProto* value : graph.encoded_initializer()) {
      others_.emplace(value->name(), "encoded_initializer");
    }
  }

  // That the input's type and its default, if it has one, are both of caches or both not.
  void Check(size_t index) const {
    const ValueInfoProto& input = *graph_.input()[index];
    const auto cache = caches_.find(input.name());
    if (!input.has_type() || (cache == caches_.end() && !input.type().has_struct_type())) return;
    const std::string place = Element("input", index) + ".type";
    const std::string path = context_.Place(place);
    const auto type = Resolved(input.type(), context_.model(), path);
    const StructTypeProto& structure = (*type)->struct_type();
    const bool is_cache = (*type)->has_struct_type() && IsCacheType(structure);
    if (cache == caches_.end()) {
      const auto other = others_.find(input.name());
      if (!is_cache || other == others_.end()) return;
      context_.Fail("check.cache_input", place,
                    "is of a cache, but its default is an " + std::string(other->second));
    }
    if (!is_cache) {
      context_.Fail("check.cache_input", place,
                    "must be that of a cache, as a paged_cache_initializer has the input's name");
    }
    const CacheType declared = ReadCacheType(structure, path + ".struct_type");
    const std::string difference = Difference(declared, cache->second);
    if (difference.empty()) return;
    context_.Fail(
        "check.cache_input", place,
        "does not go with the paged_cache_initializer of the input's name: " + difference);
  }

 private:
  CacheType CheckedType(size_t index) const {
    const PagedCacheProto& cache = *graph_.paged_cache_initializer()[index];
    const std::string path = context_.Place(Element("paged_cache_initializer", index));
    return TypeOf(CheckCache(cache, context_.references(), path));
  }

  const GraphProto& graph_;
  const Context& context_;
  std::unordered_map<std::string_view, CacheType> caches_;
  std::unordered_map<std::string_view, const char*> others_;
};

}  // namespace

void CheckGraph(const GraphProto& graph, const Context& context) {
  // The graphs of a TrainingInfoProto have no names.
  if (!context.IsIn("initialization") && !context.IsIn("algorithm")) {
    context.RequireText(graph.has_name(), graph.name(), "name");
  }
  CheckInitializerNames(graph, context);
  for (size_t i = 0; i < graph.encoded_initializer().size(); ++i) {
    CheckEncodedValue(*graph.encoded_initializer()[i], context.references(),
                      context.Place(Element("encoded_initializer", i)));
  }
  const Defaults defaults(graph, context);
  Names inputs(context);
  for (size_t i = 0; i < graph.input().size(); ++i) {
    inputs.Add(graph.input()[i]->name(), "input", i);
    defaults.Check(i);
  }
  CheckBindings(graph, context);
}

}  // namespace onnx_light::check
