// What operators share: tensors, attributes, errors as statuses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>

#include "onnx_light/array_view.h"
#include "onnx_light/attention.h"
#include "onnx_light/cache.h"
#include "onnx_light/value_handles.h"
#include "runtime/ort_abi.h"

namespace onnx_light::ort {

// Frees the status. Throws ValueError `runtime.onnxruntime` unless it is null.
void Check(const OrtApi& api, OrtStatus* status);

// A status that says what an exception does: "[<code>] <path>: <message>".
OrtStatus* StatusOf(const OrtApi& api, const std::exception_ptr& exception);

// An input. It lives as long as the call.
struct Tensor {
  static constexpr size_t kMaxRank = 8;

  std::string name;  // of the input, for errors
  ElementType type = kUndefined;
  size_t rank = 0;
  std::array<int64_t, kMaxRank> dims{};
  const std::byte* data = nullptr;

  std::span<const int64_t> shape() const { return {dims.data(), rank}; }
  int64_t count() const;  // of elements
  // The type, where it is one of plain numbers.
  std::optional<DType> dtype() const;
  // As [batch, heads, tokens, width]; `runtime.input` unless there are four dims.
  ArrayView view() const;
};

// Attributes of a node.
class KernelInfo {
 public:
  KernelInfo(const OrtApi& api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  // The default where the node has no such attribute.
  int64_t Integer(const char* name, int64_t otherwise) const;
  std::optional<float> Float(const char* name) const;
  std::string Text(const char* name) const;  // empty where there is none
  std::string node_name() const;

 private:
  const OrtApi& api_;
  const OrtKernelInfo* info_;
};

// One call of a kernel.
class KernelCall {
 public:
  KernelCall(const OrtApi& api, OrtKernelContext* context) : api_(api), context_(context) {}

  // Nothing where it is absent or empty: an empty tensor stands for an absent input, because
  // ONNX Runtime up to 1.23 does not take an absent one in the middle. REQUIRES: `index` may be
  // past the last input only of a node that leaves out trailing ones.
  std::optional<Tensor> OptionalInput(size_t index, const char* name) const;
  // It may be empty; `runtime.input` where it is absent.
  Tensor Input(size_t index, const char* name) const;
  // An INT64 scalar. `runtime.input` for any other tensor.
  int64_t Handle(size_t index, const char* name) const;

  // Memory of an output; null where nobody takes it.
  void* Output(size_t index, std::span<const int64_t> dims) const;
  void SetInteger(size_t index, int64_t value) const;

  // On the threads of the session.
  ParallelLoop parallel_for() const;

 private:
  std::optional<Tensor> Find(size_t index, const char* name) const;

  const OrtApi& api_;
  OrtKernelContext* context_;
};

struct Port {
  ElementType type = kUndefined;
  Presence presence = kRequired;
};

// An operator as ONNX Runtime takes it. A `Kernel` is made from a KernelInfo, its Compute(call) is
// called by any number of threads at once, and kCacheInput is the index of its cache.
struct Operator : OrtCustomOp {
  const char* name = nullptr;
  std::span<const Port> inputs, outputs;
};

namespace internal {

template <typename Kernel>
struct Instance {
  const OrtApi& api;
  std::string node;
  Kernel kernel;
};

// The status of the current exception, which the run of the call's cache learns of, too.
OrtStatus* Fail(const KernelCall& call, size_t cache_input, const std::string& node,
                const OrtApi& api);

const char* NameOf(const OrtCustomOp* op);
size_t InputCount(const OrtCustomOp* op);
size_t OutputCount(const OrtCustomOp* op);
ElementType InputType(const OrtCustomOp* op, size_t index);
ElementType OutputType(const OrtCustomOp* op, size_t index);
Presence InputPresence(const OrtCustomOp* op, size_t index);
Presence OutputPresence(const OrtCustomOp* op, size_t index);
const char* AnyProvider(const OrtCustomOp* op);
MemoryType InputMemory(const OrtCustomOp* op, size_t index);
int StartVersion(const OrtCustomOp* op);
int EndVersion(const OrtCustomOp* op);
int One(const OrtCustomOp* op);

template <typename Kernel>
OrtStatus* Create(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  try {
    const KernelInfo node(*api, info);
    *kernel = new Instance<Kernel>{*api, node.node_name(), Kernel(node)};
    return nullptr;
  } catch (...) {
    return StatusOf(*api, std::current_exception());
  }
}

template <typename Kernel>
OrtStatus* Compute(void* kernel, OrtKernelContext* context) {
  const auto* instance = static_cast<const Instance<Kernel>*>(kernel);
  const KernelCall call(instance->api, context);
  try {
    instance->kernel.Compute(call);
    return nullptr;
  } catch (...) {
    return Fail(call, Kernel::kCacheInput, instance->node, instance->api);
  }
}

template <typename Kernel>
void Destroy(void* kernel) {
  delete static_cast<Instance<Kernel>*>(kernel);
}

}  // namespace internal

template <typename Kernel>
Operator MakeOperator(const char* name, std::span<const Port> inputs,
                      std::span<const Port> outputs) {
  Operator op;
  op.name = name;
  op.inputs = inputs;
  op.outputs = outputs;
  op.GetName = internal::NameOf;
  op.GetExecutionProviderType = internal::AnyProvider;
  op.GetInputType = internal::InputType;
  op.GetInputTypeCount = internal::InputCount;
  op.GetOutputType = internal::OutputType;
  op.GetOutputTypeCount = internal::OutputCount;
  op.GetInputCharacteristic = internal::InputPresence;
  op.GetOutputCharacteristic = internal::OutputPresence;
  op.GetInputMemoryType = internal::InputMemory;
  op.GetVariadicInputMinArity = op.GetVariadicInputHomogeneity = internal::One;
  op.GetVariadicOutputMinArity = op.GetVariadicOutputHomogeneity = internal::One;
  op.GetStartVersion = internal::StartVersion;
  op.GetEndVersion = internal::EndVersion;
  op.CreateKernelV2 = internal::Create<Kernel>;
  op.KernelComputeV2 = internal::Compute<Kernel>;
  op.KernelDestroy = internal::Destroy<Kernel>;
  return op;
}

}  // namespace onnx_light::ort
