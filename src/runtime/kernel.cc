#include "runtime/kernel.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "onnx_light/errors.h"

namespace onnx_light::ort {
namespace {

// A tensor's type and shape, which are copies that somebody has to free.
class TypeAndShape {
 public:
  TypeAndShape(const OrtApi& api, const OrtValue* value) : api_(api) {
    Check(api, api.GetTensorTypeAndShape(value, &info_));
  }
  ~TypeAndShape() { api_.ReleaseTensorTypeAndShapeInfo(info_); }
  TypeAndShape(const TypeAndShape&) = delete;
  TypeAndShape& operator=(const TypeAndShape&) = delete;

  void Describe(Tensor* tensor) const {
    Check(api_, api_.GetTensorElementType(info_, &tensor->type));
    Check(api_, api_.GetDimensionsCount(info_, &tensor->rank));
    if (tensor->rank > Tensor::kMaxRank) {
      throw ValueError("runtime.input", tensor->name,
                       std::to_string(tensor->rank) + " dims, can have " +
                           std::to_string(Tensor::kMaxRank) + " at most");
    }
    Check(api_, api_.GetDimensions(info_, tensor->dims.data(), tensor->rank));
  }

 private:
  const OrtApi& api_;
  OrtTensorTypeAndShapeInfo* info_ = nullptr;
};

// What the functions return that write a text into memory of a size that they tell first.
template <typename F>
std::string ReadText(F read) {
  size_t size = 0;
  if (!read(nullptr, &size) || size == 0) return "";
  std::string text(size, '\0');
  if (!read(text.data(), &size)) return "";
  text.resize(size - 1);
  return text;
}

std::string Message(const std::string& code, const std::string& text) {
  return "[" + code + "] " + text;
}

// Work that a session's threads share.
struct SharedLoop {
  const std::function<void(uint64_t)>& f;
  std::mutex mutex;
  std::exception_ptr exception;

  static void Run(void* data, size_t index) {
    auto* self = static_cast<SharedLoop*>(data);
    try {
      self->f(index);
    } catch (...) {
      const std::lock_guard lock(self->mutex);
      if (!self->exception) self->exception = std::current_exception();
    }
  }
};

}  // namespace

void Check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw ValueError("runtime.onnxruntime", "", message);
}

OrtStatus* StatusOf(const OrtApi& api, const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const ValueError& error) {
    return api.CreateStatus(kInvalidArgument, Message(error.code(), error.what()).c_str());
  } catch (const Error& error) {
    return api.CreateStatus(kFail, Message(error.code(), error.what()).c_str());
  } catch (const std::exception& error) {
    return api.CreateStatus(kFail, error.what());
  }
}

int64_t Tensor::count() const {
  int64_t count = 1;  // of elements that exist, so this cannot overflow
  for (const int64_t dim : shape()) count *= dim;
  return count;
}

std::optional<DType> Tensor::dtype() const { return DTypeOfTensor(type); }

ArrayView Tensor::view() const {
  const auto type = dtype();
  if (rank != 4 || !type) {
    throw ValueError("runtime.input", name,
                     std::to_string(rank) + " dims of type " + std::to_string(this->type) +
                         "; plain numbers [batch, heads, tokens, width] are needed");
  }
  return ContiguousView(data, *type, {dims[0], dims[1], dims[2], dims[3]});
}

// ONNX Runtime has one error for an attribute that is absent and one of another type. That is told
// apart before it gets the model (lowering).
int64_t KernelInfo::Integer(const char* name, int64_t otherwise) const {
  int64_t value = 0;
  OrtStatus* status = api_.KernelInfoGetAttribute_int64(info_, name, &value);
  if (status == nullptr) return value;
  api_.ReleaseStatus(status);
  return otherwise;
}

std::optional<float> KernelInfo::Float(const char* name) const {
  float value = 0;
  OrtStatus* status = api_.KernelInfoGetAttribute_float(info_, name, &value);
  if (status == nullptr) return value;
  api_.ReleaseStatus(status);
  return std::nullopt;
}

std::string KernelInfo::Text(const char* name) const {
  return ReadText([&](char* text, size_t* size) {
    OrtStatus* status = api_.KernelInfoGetAttribute_string(info_, name, text, size);
    if (status != nullptr) api_.ReleaseStatus(status);
    return status == nullptr;
  });
}

std::string KernelInfo::node_name() const {
  return ReadText([&](char* text, size_t* size) {
    Check(api_, api_.KernelInfo_GetNodeName(info_, text, size));
    return true;
  });
}

std::optional<Tensor> KernelCall::Find(size_t index, const char* name) const {
  size_t inputs = 0;
  Check(api_, api_.KernelContext_GetInputCount(context_, &inputs));
  if (index >= inputs) return std::nullopt;
  const OrtValue* value = nullptr;
  Check(api_, api_.KernelContext_GetInput(context_, index, &value));
  if (value == nullptr) return std::nullopt;
  Tensor tensor;
  tensor.name = name;
  TypeAndShape(api_, value).Describe(&tensor);
  void* data = nullptr;
  Check(api_, api_.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  tensor.data = static_cast<const std::byte*>(data);
  return tensor;
}

std::optional<Tensor> KernelCall::OptionalInput(size_t index, const char* name) const {
  auto tensor = Find(index, name);
  return tensor && tensor->count() != 0 ? std::move(tensor) : std::nullopt;
}

Tensor KernelCall::Input(size_t index, const char* name) const {
  auto tensor = Find(index, name);
  if (!tensor) throw ValueError("runtime.input", name, "is absent");
  return *std::move(tensor);
}

int64_t KernelCall::Handle(size_t index, const char* name) const {
  const Tensor tensor = Input(index, name);
  if (tensor.type != kInt64 || tensor.rank != 0) {
    throw ValueError("runtime.input", name,
                     "a cache is needed, which is an INT64 scalar here; got " +
                         std::to_string(tensor.rank) + " dims of type " +
                         std::to_string(tensor.type));
  }
  int64_t handle = 0;
  std::memcpy(&handle, tensor.data, sizeof(handle));
  return handle;
}

void* KernelCall::Output(size_t index, std::span<const int64_t> dims) const {
  size_t outputs = 0;
  Check(api_, api_.KernelContext_GetOutputCount(context_, &outputs));
  if (index >= outputs) return nullptr;
  OrtValue* value = nullptr;
  Check(api_, api_.KernelContext_GetOutput(context_, index, dims.data(), dims.size(), &value));
  if (value == nullptr) return nullptr;
  void* data = nullptr;
  Check(api_, api_.GetTensorMutableData(value, &data));
  return data;
}

void KernelCall::SetInteger(size_t index, int64_t value) const {
  void* target = Output(index, {});
  if (target != nullptr) std::memcpy(target, &value, sizeof(value));
}

ParallelLoop KernelCall::parallel_for() const {
  return [this](uint64_t count, const std::function<void(uint64_t)>& f) {
    if (count == 1) return f(0);
    SharedLoop loop{f, {}, nullptr};
    Check(api_, api_.KernelContext_ParallelFor(context_, SharedLoop::Run, count, 0, &loop));
    if (loop.exception) std::rethrow_exception(loop.exception);
  };
}

namespace internal {
namespace {

const Operator& Cast(const OrtCustomOp* op) { return *static_cast<const Operator*>(op); }

}  // namespace

OrtStatus* Fail(const KernelCall& call, size_t cache_input, const std::string& node,
                const OrtApi& api) {
  const std::exception_ptr exception = std::current_exception();
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    try {
      TellFailure(call.Handle(cache_input, ""),
                  {node, error.code(), error.path(), error.message()});
    } catch (const std::exception&) {
      // There is no cache, so there is no run to tell; the status says what is wrong.
    }
  } catch (...) {
    // Not an error of this library: the status is all there is to say.
  }
  return StatusOf(api, exception);
}

const char* NameOf(const OrtCustomOp* op) { return Cast(op).name; }
size_t InputCount(const OrtCustomOp* op) { return Cast(op).inputs.size(); }
size_t OutputCount(const OrtCustomOp* op) { return Cast(op).outputs.size(); }
ElementType InputType(const OrtCustomOp* op, size_t index) { return Cast(op).inputs[index].type; }
ElementType OutputType(const OrtCustomOp* op, size_t index) { return Cast(op).outputs[index].type; }
Presence InputPresence(const OrtCustomOp* op, size_t index) {
  return Cast(op).inputs[index].presence;
}
Presence OutputPresence(const OrtCustomOp* op, size_t index) {
  return Cast(op).outputs[index].presence;
}
const char* AnyProvider(const OrtCustomOp*) { return nullptr; }
MemoryType InputMemory(const OrtCustomOp*, size_t) { return kDefaultMemory; }
int StartVersion(const OrtCustomOp*) { return 1; }
int EndVersion(const OrtCustomOp*) { return 1 << 30; }
int One(const OrtCustomOp*) { return 1; }

}  // namespace internal
}  // namespace onnx_light::ort
