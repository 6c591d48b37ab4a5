#include "quant/encoded_proto.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/math.h"
#include "base/quote.h"
#include "onnx/tensor_data.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "quant/packing.h"
#include "quant/struct_layout.h"

namespace onnx_light {
namespace {

using Dims = std::array<int64_t, 4>;
using Shape = AffineLayout::Shape;

// Numbers in onnx.TensorProto.DataType.
constexpr std::pair<PageType, int32_t> kCodeTypes[] = {
    {PageType::kInt8, 3},   {PageType::kUInt8, 2}, {PageType::kInt4, 22},
    {PageType::kUInt4, 21}, {PageType::kInt2, 26}, {PageType::kUInt2, 25}};

std::optional<PageType> CodeTypeOf(int64_t data_type) {
  for (const auto& [type, number] : kCodeTypes) {
    if (number == data_type) return type;
  }
  return std::nullopt;
}

[[noreturn]] void Throw(const char* code, const std::string& path, const std::string& message) {
  throw ValueError(code, path, message);
}

std::string DimsText(std::span<const int64_t> dims) {
  std::string text = "[";
  for (int64_t dim : dims) text += (text.size() == 1 ? "" : ", ") + std::to_string(dim);
  return text + "]";
}

// ---------------------------------------------------------------------------------------------
// Reading

Dims ReadLogicalType(const EncodedValueProto& value, const std::string& path) {
  if (!value.has_logical_type()) Throw("cache.missing", path, "has no logical_type");
  const std::string where = path + ".logical_type";
  const TypeProto& type = value.logical_type();
  if (!type.has_tensor_type() || type.tensor_type().elem_type() != TensorProto::FLOAT) {
    Throw("cache.logical_type", where, "is no tensor of FLOAT");
  }
  const auto dims = type.tensor_type().shape().dim();
  if (dims.size() != 4) {
    Throw("cache.logical_type", where,
          std::to_string(dims.size()) + " dims, must be the 4 of [batch, heads, capacity, width]");
  }
  Dims result{};
  for (size_t i = 0; i < 4; ++i) {
    if (dims[i]->has_dim_value() && dims[i]->dim_value() > 0) {
      result[i] = dims[i]->dim_value();
      continue;
    }
    Throw("cache.logical_type", where + ".tensor_type.shape.dim[" + std::to_string(i) + "]",
          "has no positive dim_value");
  }
  return result;
}

// With room for 4 bytes an element, so that nothing else overflows.
int64_t ElementCount(const Dims& dims, const std::string& path) {
  std::optional<int64_t> bytes = 4;
  for (int64_t dim : dims) {
    if (bytes) bytes = CheckedMul(*bytes, dim);
  }
  if (bytes) return *bytes / 4;
  Throw("cache.too_large", path, "the size in bytes of " + DimsText(dims) + " exceeds 2^63 - 1");
}

SharedBytes ReadCodes(const EncodedValueProto& value, const std::string& path) {
  if (value.data_location() == TensorProto::EXTERNAL) {
    Throw("cache.external", path,
          "the data lie in another file and must be loaded into the message first");
  }
  if (!value.has_raw_data()) Throw("cache.missing", path, "has no raw_data");
  return FieldBytes(value.raw_data_);
}

void CheckSize(uint64_t size, int64_t expected, const std::string& what, const std::string& path) {
  if (size == static_cast<uint64_t>(expected)) return;
  Throw("cache.payload_size", path,
        std::to_string(size) + " bytes, " + what + " takes " + std::to_string(expected));
}

// From the number of bytes and signed_storage.
PageType InferCodeType(const AffineLayoutProto& affine, int64_t count, uint64_t size,
                       const std::string& path) {
  std::optional<PageType> found;
  for (const auto& [type, number] : kCodeTypes) {
    if (IsSigned(type) != affine.signed_storage()) continue;
    if (static_cast<uint64_t>(PackedSize(count, CodeBits(type))) != size) continue;
    if (found) {
      Throw("cache.storage_type", path,
            "absent, and " + std::to_string(size) + " bytes of " + std::to_string(count) +
                " codes fit more than one type");
    }
    found = type;
  }
  if (found) return *found;
  Throw("cache.storage_type", path,
        "absent, and " + std::to_string(size) + " bytes are no " + std::to_string(count) +
            " codes of 8, 4 or 2 bits");
}

PageType ReadCodeType(const AffineLayoutProto& affine, int64_t count, uint64_t size,
                      const std::string& path) {
  const std::string where = path + ".affine.storage_type";
  if (!affine.has_storage_type()) return InferCodeType(affine, count, size, where);
  if (const auto type = CodeTypeOf(affine.storage_type())) return *type;
  Throw("cache.storage_type", where,
        std::to_string(affine.storage_type()) +
            " is none of INT8, UINT8, INT4, UINT4, INT2 and UINT2");
}

// Where scale and zero point stand.
struct ParameterTensors {
  const TensorProto* scale = nullptr;
  const TensorProto* zero_point = nullptr;
  std::string scale_path, zero_point_path;
};

const TensorProto& FindInitializer(const GraphProto& graph, std::string_view name,
                                   const std::string& path) {
  for (const TensorProto* tensor : graph.initializer()) {
    if (tensor->name() == name) return *tensor;
  }
  Throw("cache.reference", path, "the model's graph has no initializer '" + Escaped(name) + "'");
}

ParameterTensors FindShared(const EncodedValueProto& value, const ModelProto* model,
                            const std::string& path) {
  const std::string where = path + ".parameter_ref";
  const std::string name =
      "onnx_light.quantization.parameters:" + std::string(value.parameter_ref());
  if (model == nullptr) {
    Throw("cache.reference", where,
          "needs the model whose graph has the annotation '" + Escaped(name) + "'");
  }
  ParameterTensors found;
  found.scale_path = found.zero_point_path = where;
  for (const TensorAnnotation* annotation : model->graph().quantization_annotation()) {
    if (annotation->tensor_name() != name) continue;
    for (const StringStringEntryProto* entry : annotation->quant_parameter_tensor_names()) {
      if (entry->key() == "scale") {
        found.scale = &FindInitializer(model->graph(), entry->value(), where);
      } else if (entry->key() == "zero_point") {
        found.zero_point = &FindInitializer(model->graph(), entry->value(), where);
      }
    }
    if (found.scale != nullptr) return found;
    Throw("cache.reference", where, "the annotation '" + Escaped(name) + "' names no scale");
  }
  Throw("cache.reference", where, "the model's graph has no annotation '" + Escaped(name) + "'");
}

ParameterTensors FindParameters(const EncodedValueProto& value, const ModelProto* model,
                                const std::string& path) {
  const AffineLayoutProto& affine = value.affine();
  if (!value.parameter_ref().empty()) {
    if (!affine.has_scale() && !affine.has_zero_point()) return FindShared(value, model, path);
    Throw("cache.scale", path, "has parameters and a parameter_ref, must have one of them");
  }
  if (!affine.has_scale()) Throw("cache.missing", path + ".affine", "has no scale");
  return {&affine.scale(), affine.has_zero_point() ? &affine.zero_point() : nullptr,
          path + ".affine.scale", path + ".affine.zero_point"};
}

int ReadAxis(const AffineLayoutProto& affine, const std::string& path) {
  if (!affine.has_axis()) {
    Throw("cache.axis", path + ".affine", "has no axis, which scales that are not scalar need");
  }
  const int64_t axis = affine.axis();
  if (axis >= -4 && axis < 4) return static_cast<int>(axis < 0 ? axis + 4 : axis);
  Throw("cache.axis", path + ".affine.axis",
        std::to_string(axis) + " is outside [-4, 3], the axes of a payload");
}

// Sets shape, axis and block size, from the dims of the scale.
void ReadShape(const AffineLayoutProto& affine, std::span<const int64_t> scale_dims,
               const std::string& path, AffineLayout& layout) {
  if (scale_dims.empty()) return;
  layout.axis = ReadAxis(affine, path);
  if (scale_dims.size() == 1) {
    layout.shape = Shape::kAxis;
    if (affine.block_size() == 0) return;
    Throw("cache.block_size", path + ".affine.block_size", "a scale of one dim has no blocks");
  }
  layout.shape = Shape::kBlocked;
  if (affine.block_size() == 0) {
    Throw("cache.block_size", path + ".affine.block_size",
          "must be positive, the scale's dims are " + DimsText(scale_dims));
  }
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  layout.block_size = static_cast<int64_t>(std::min(affine.block_size(), kMost));
}

void CheckDims(std::span<const int64_t> dims, const std::vector<int64_t>& expected,
               const char* code, const std::string& path) {
  if (std::equal(dims.begin(), dims.end(), expected.begin(), expected.end())) return;
  Throw(code, path, "dims " + DimsText(dims) + ", must be " + DimsText(expected));
}

int64_t CellCount(const std::vector<int64_t>& scale_dims) {
  int64_t count = 1;  // at most the payload's elements
  for (int64_t dim : scale_dims) count *= dim;
  return count;
}

EncodedPayload ReadAffine(const EncodedValueProto& value, const Dims& dims, SharedBytes codes,
                          const ModelProto* model, const std::string& path) {
  const int64_t count = ElementCount(dims, path);
  const ParameterTensors tensors = FindParameters(value, model, path);
  AffineLayout layout;
  layout.code_type = ReadCodeType(value.affine(), count, codes.size, path);
  const int bits = CodeBits(layout.code_type);
  CheckSize(codes.size, PackedSize(count, bits),
            DimsText(dims) + " " + std::string(Name(layout.code_type)), path + ".raw_data");
  const auto scale_type = DTypeOfTensor(tensors.scale->data_type());
  if (!scale_type || *scale_type > DType::kBFloat16) {
    Throw("cache.scale", tensors.scale_path + ".data_type",
          std::to_string(tensors.scale->data_type()) + " is none of FLOAT, FLOAT16 and BFLOAT16");
  }
  layout.scale_type = *scale_type;
  ReadShape(value.affine(), tensors.scale->dims(), path, layout);
  const std::vector<int64_t> scale_dims = ScaleDims(layout, dims);
  const int64_t cells = CellCount(scale_dims);
  CheckDims(tensors.scale->dims(), scale_dims, "cache.scale", tensors.scale_path);
  SharedBytes scales = ReadTensorData(*tensors.scale, *scale_type, tensors.scale_path);
  CheckSize(scales.size, cells * ElementSize(*scale_type), "a scale of " + DimsText(scale_dims),
            tensors.scale_path);
  SharedBytes zero_points;
  if (tensors.zero_point != nullptr) {
    const std::string& where = tensors.zero_point_path;
    if (tensors.zero_point->data_type() != StorageType(layout.code_type)) {
      Throw("cache.zero_point", where + ".data_type",
            std::to_string(tensors.zero_point->data_type()) + ", must be " +
                std::to_string(StorageType(layout.code_type)) + ", that of the codes");
    }
    CheckDims(tensors.zero_point->dims(), scale_dims, "cache.zero_point", where);
    zero_points = ReadByteData(*tensors.zero_point, where);
    CheckSize(zero_points.size, PackedSize(cells, bits), "a zero point for each scale", where);
  }
  return {dims, layout, std::move(codes), std::move(scales), std::move(zero_points)};
}

EncodedPayload ReadStruct(const EncodedValueProto& value, const Dims& dims, SharedBytes codes,
                          const ModelProto* model, const std::string& path) {
  const int64_t count = ElementCount(dims, path);
  auto message = std::make_shared<Owned<EncodedValueProto>>();
  Merge(message->arena(), EncodedValueProto::kInfo, **message, value);
  ResolveTypes(message->arena(), *(*message)->mutable_struct_type(message->arena()), model,
               path + ".struct_type");
  const auto records = KnownRecords((*message)->struct_type());
  if (!records) return {dims, UnknownLayout{std::move(message)}, std::move(codes), {}, {}};
  if (dims[3] % kRecordValues != 0) {
    Throw("cache.layout", path + ".logical_type",
          "width " + std::to_string(dims[3]) + " is no multiple of " +
              std::to_string(kRecordValues) + ", as " + std::string(value.struct_type().name()) +
              " needs");
  }
  CheckSize(codes.size, count / kRecordValues * RecordSize(*records),
            DimsText(dims) + " " + std::string(Name(*records)), path + ".raw_data");
  return {dims, RecordLayout{*records}, std::move(codes), {}, {}};
}

// ---------------------------------------------------------------------------------------------
// Writing

template <typename M>
void SetRawData(Arena& arena, const SharedBytes& bytes, M& message) {
  if (bytes.size < String::kPayloadSize) {
    message.set_raw_data(arena, bytes.view());
  } else {
    message.set_raw_data(arena, bytes);
  }
}

void WriteParameters(Arena& arena, const std::vector<int64_t>& dims, int32_t data_type,
                     const SharedBytes& bytes, TensorProto& tensor) {
  for (int64_t dim : dims) tensor.add_dims(arena, dim);
  tensor.set_data_type(arena, data_type);
  SetRawData(arena, bytes, tensor);
}

void WriteAffine(const EncodedPayload& payload, const AffineLayout& layout, Arena& arena,
                 AffineLayoutProto& affine) {
  const std::vector<int64_t> dims = ScaleDims(layout, payload.dims);
  affine.set_storage_type(arena, StorageType(layout.code_type));
  WriteParameters(arena, dims, TensorDataType(layout.scale_type), payload.scales,
                  *affine.mutable_scale(arena));
  if (payload.zero_points.size != 0) {
    WriteParameters(arena, dims, StorageType(layout.code_type), payload.zero_points,
                    *affine.mutable_zero_point(arena));
  }
  if (layout.shape == Shape::kScalar) return;
  affine.set_axis(arena, layout.axis);
  if (layout.shape == Shape::kBlocked) {
    affine.set_block_size(arena, static_cast<uint64_t>(layout.block_size));
  }
}

void WriteLogicalType(const Dims& dims, Arena& arena, TypeProto& type) {
  TypeProto_Tensor* tensor = type.mutable_tensor_type(arena);
  tensor->set_elem_type(arena, TensorProto::FLOAT);
  TensorShapeProto* shape = tensor->mutable_shape(arena);
  for (int64_t dim : dims) shape->add_dim(arena)->set_dim_value(arena, dim);
}

}  // namespace

int32_t StorageType(PageType code_type) {
  for (const auto& [type, number] : kCodeTypes) {
    if (type == code_type) return number;
  }
  return 0;
}

std::vector<int64_t> ScaleDims(const AffineLayout& layout, const std::array<int64_t, 4>& dims) {
  if (layout.shape == Shape::kScalar) return {};
  const Dims counts = CellCounts(layout, dims);
  if (layout.shape == Shape::kAxis) return {counts[layout.axis]};
  return {counts.begin(), counts.end()};
}

EncodedPayload ReadEncodedValue(const EncodedValueProto& value, const ModelProto* model,
                                const std::string& path) {
  const Dims dims = ReadLogicalType(value, path);
  if (value.has_affine()) return ReadAffine(value, dims, ReadCodes(value, path), model, path);
  if (value.has_struct_type()) return ReadStruct(value, dims, ReadCodes(value, path), model, path);
  Throw("cache.missing", path, "has no layout: neither affine nor struct_type");
}

void WriteEncodedValue(const EncodedPayload& payload, Arena& arena, EncodedValueProto& value) {
  if (const auto* unknown = std::get_if<UnknownLayout>(&payload.layout)) {
    Merge(arena, EncodedValueProto::kInfo, value, **unknown->message);
    return;
  }
  if (const AffineLayout* affine = payload.affine()) {
    WriteAffine(payload, *affine, arena, *value.mutable_affine(arena));
  } else {
    WriteRecordType(std::get<RecordLayout>(payload.layout).type, arena,
                    *value.mutable_struct_type(arena));
  }
  WriteLogicalType(payload.dims, arena, *value.mutable_logical_type(arena));
  SetRawData(arena, payload.codes, value);
}

}  // namespace onnx_light
