#include "quant/catalogue.h"

#include "base/quote.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

[[noreturn]] void Throw(const std::string& path, const std::string& message) {
  throw ValueError("cache.reference", path, message);
}

const TensorProto& FindInitializer(const GraphProto& graph, std::string_view name,
                                   const std::string& path) {
  for (const TensorProto* tensor : graph.initializer()) {
    if (tensor->name() == name) return *tensor;
  }
  Throw(path, "the model's graph has no initializer '" + Escaped(name) + "'");
}

}  // namespace

SharedParameters ReadCatalogueEntry(const TensorAnnotation& annotation, const GraphProto& graph,
                                    const std::string& path) {
  SharedParameters found;
  for (const StringStringEntryProto* entry : annotation.quant_parameter_tensor_names()) {
    if (entry->key() == "scale") {
      found.scale = &FindInitializer(graph, entry->value(), path);
    } else if (entry->key() == "zero_point") {
      found.zero_point = &FindInitializer(graph, entry->value(), path);
    }
  }
  if (found.scale != nullptr) return found;
  Throw(path, "the annotation '" + Escaped(annotation.tensor_name()) + "' names no scale");
}

SharedParameters FindParameters(const ModelProto* model, std::string_view name,
                                const std::string& path) {
  const std::string annotated = std::string(kCataloguePrefix).append(name);
  if (model == nullptr) {
    Throw(path, "needs the model whose graph has the annotation '" + Escaped(annotated) + "'");
  }
  for (const TensorAnnotation* annotation : model->graph().quantization_annotation()) {
    if (annotation->tensor_name() == annotated) {
      return ReadCatalogueEntry(*annotation, model->graph(), path);
    }
  }
  Throw(path, "the model's graph has no annotation '" + Escaped(annotated) + "'");
}

}  // namespace onnx_light
