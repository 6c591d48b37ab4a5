#include "onnx/tensor_data.h"

#include <cstring>
#include <span>
#include <utility>

#include "onnx/external_data.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

[[noreturn]] void ThrowMissing(const std::string& path, const std::string& what) {
  throw ValueError("cache.missing", path, "has no " + what);
}

// Bit patterns, one in each number.
template <typename T>
SharedBytes NarrowPatterns(std::span<const int32_t> numbers, const std::string& path) {
  BufferRef buffer = BufferRef::Allocate(numbers.size() * sizeof(T));
  T* target = reinterpret_cast<T*>(buffer.mutable_data());
  for (size_t i = 0; i < numbers.size(); ++i) {
    target[i] = static_cast<T>(numbers[i]);
    if (static_cast<int32_t>(target[i]) == numbers[i]) continue;
    throw ValueError("cache.data", path + ".int32_data[" + std::to_string(i) + "]",
                     std::to_string(numbers[i]) + " is no bit pattern of " +
                         std::to_string(8 * sizeof(T)) + " bits");
  }
  return SharedBytes(std::move(buffer));
}

SharedBytes ReadTypedData(const TensorProto& tensor, DType dtype, const std::string& path) {
  if (dtype == DType::kFloat32) {
    const std::span<const float> numbers = tensor.float_data();
    if (numbers.empty()) ThrowMissing(path, "data: neither raw_data nor float_data");
    return CopyBytes(numbers.data(), numbers.size_bytes());
  }
  const std::span<const int32_t> numbers = tensor.int32_data();
  if (numbers.empty()) ThrowMissing(path, "data: neither raw_data nor int32_data");
  return ElementSize(dtype) == 2 ? NarrowPatterns<uint16_t>(numbers, path)
                                 : NarrowPatterns<uint8_t>(numbers, path);
}

// Whether the data are raw.
bool HasRawData(const TensorProto& tensor, const std::string& path) {
  if (!tensor.has_raw_data()) return false;
  if (tensor.has_float_data() || tensor.has_int32_data()) {
    throw ValueError("cache.data", path, "raw_data and typed data together, must be one of them");
  }
  return true;
}

PayloadData InMessage(SharedBytes bytes) {
  const uint64_t size = bytes.size;
  return {std::move(bytes), size};
}

}  // namespace

SharedBytes FieldBytes(const String& field) {
  const std::string_view bytes = field.view();
  return bytes.size() >= String::kPayloadSize ? field.Shared()
                                              : CopyBytes(bytes.data(), bytes.size());
}

PayloadData ReadOtherFile(const MessageInfo& info, const Message& message, const std::string& path,
                          OtherFiles other_files) {
  if (other_files == OtherFiles::kRefuse) {
    throw ValueError("cache.external", path,
                     "the data lie in another file and must be loaded into the message first");
  }
  try {
    return {{}, ReadReference(info, message).length};
  } catch (const ValueError& error) {
    throw ValueError(error.code(), path, error.message());
  }
}

PayloadData ReadTensorData(const TensorProto& tensor, DType dtype, const std::string& path,
                           OtherFiles other_files) {
  if (IsExternal(TensorProto::kInfo, tensor)) {
    return ReadOtherFile(TensorProto::kInfo, tensor, path, other_files);
  }
  if (HasRawData(tensor, path)) return InMessage(FieldBytes(tensor.raw_data_));
  return InMessage(ReadTypedData(tensor, dtype, path));
}

PayloadData ReadByteData(const TensorProto& tensor, const std::string& path,
                         OtherFiles other_files) {
  if (IsExternal(TensorProto::kInfo, tensor)) {
    return ReadOtherFile(TensorProto::kInfo, tensor, path, other_files);
  }
  if (HasRawData(tensor, path)) return InMessage(FieldBytes(tensor.raw_data_));
  const std::span<const int32_t> numbers = tensor.int32_data();
  if (numbers.empty()) ThrowMissing(path, "data: neither raw_data nor int32_data");
  BufferRef buffer = BufferRef::Allocate(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int32_t least = tensor.data_type() == TensorProto::INT8 ? -128 : 0;
    if (numbers[i] < least || numbers[i] > least + 255) {
      throw ValueError("cache.data", path + ".int32_data[" + std::to_string(i) + "]",
                       std::to_string(numbers[i]) + " is no byte of the type");
    }
    buffer.mutable_data()[i] = static_cast<std::byte>(numbers[i]);
  }
  return InMessage(SharedBytes(std::move(buffer)));
}

}  // namespace onnx_light
