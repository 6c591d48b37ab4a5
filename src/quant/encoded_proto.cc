#include "quant/encoded_proto.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/math.h"
#include "onnx/external_data.h"
#include "onnx/tensor_data.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "quant/catalogue.h"
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

// Of any rank and size.
std::vector<int64_t> ReadAnyLogicalType(const EncodedValueProto& value, const std::string& path) {
  if (!value.has_logical_type()) Throw("cache.missing", path, "has no logical_type");
  const std::string where = path + ".logical_type";
  const TypeProto& type = value.logical_type();
  const int32_t element = type.tensor_type().elem_type();
  constexpr int32_t kNumbers[] = {TensorProto::FLOAT, TensorProto::FLOAT16, TensorProto::BFLOAT16,
                                  TensorProto::DOUBLE};
  if (std::find(std::begin(kNumbers), std::end(kNumbers), element) == std::end(kNumbers)) {
    Throw("cache.logical_type", where, "is no tensor of FLOAT, FLOAT16, BFLOAT16 or DOUBLE");
  }
  if (!type.tensor_type().has_shape()) Throw("cache.logical_type", where, "has no shape");
  std::vector<int64_t> result;
  for (const TensorShapeProto_Dimension* dim : type.tensor_type().shape().dim()) {
    if (!dim->has_dim_value() || dim->dim_value() < 0) {
      Throw("cache.logical_type",
            where + ".tensor_type.shape.dim[" + std::to_string(result.size()) + "]",
            "has no dim_value of 0 or more");
    }
    result.push_back(dim->dim_value());
  }
  return result;
}

// With room for 4 bytes an element, so that nothing else overflows.
int64_t ElementCount(std::span<const int64_t> dims, const std::string& path) {
  std::optional<int64_t> bytes = 4;
  for (int64_t dim : dims) {
    if (bytes) bytes = CheckedMul(*bytes, std::max<int64_t>(dim, 1));
  }
  if (!bytes) {
    Throw("cache.too_large", path, "the size in bytes of " + DimsText(dims) + " exceeds 2^63 - 1");
  }
  return std::find(dims.begin(), dims.end(), 0) == dims.end() ? *bytes / 4 : 0;
}

PayloadData ReadCodes(const EncodedValueProto& value, const References& references,
                      const std::string& path) {
  if (IsExternal(EncodedValueProto::kInfo, value)) {
    return ReadOtherFile(EncodedValueProto::kInfo, value, path, references.other_files);
  }
  if (!value.has_raw_data()) Throw("cache.missing", path, "has no raw_data");
  return {FieldBytes(value.raw_data_), value.raw_data().size()};
}

void CheckSize(const PayloadData& data, int64_t expected, const std::string& what,
               const std::string& path) {
  if (!data.size || *data.size == static_cast<uint64_t>(expected)) return;
  Throw("cache.payload_size", path,
        std::to_string(*data.size) + " bytes, " + what + " takes " + std::to_string(expected));
}

// From the number of bytes and signed_storage.
PageType InferCodeType(const AffineLayoutProto& affine, int64_t count, std::optional<uint64_t> size,
                       const std::string& path) {
  if (!size) {
    Throw("cache.storage_type", path, "absent, and so is the length of the data in another file");
  }
  std::optional<PageType> found;
  for (const auto& [type, number] : kCodeTypes) {
    if (IsSigned(type) != affine.signed_storage()) continue;
    if (static_cast<uint64_t>(PackedSize(count, CodeBits(type))) != *size) continue;
    if (found) {
      Throw("cache.storage_type", path,
            "absent, and " + std::to_string(*size) + " bytes of " + std::to_string(count) +
                " codes fit more than one type");
    }
    found = type;
  }
  if (found) return *found;
  Throw("cache.storage_type", path,
        "absent, and " + std::to_string(*size) + " bytes are no " + std::to_string(count) +
            " codes of 8, 4 or 2 bits");
}

PageType ReadCodeType(const AffineLayoutProto& affine, int64_t count, std::optional<uint64_t> size,
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

ParameterTensors ReadParameters(const EncodedValueProto& value, const ModelProto* model,
                                const std::string& path) {
  const AffineLayoutProto& affine = value.affine();
  if (!value.parameter_ref().empty()) {
    if (affine.has_scale() || affine.has_zero_point()) {
      Throw("cache.scale", path, "has parameters and a parameter_ref, must have one of them");
    }
    const std::string where = path + ".parameter_ref";
    const SharedParameters shared = FindParameters(model, value.parameter_ref(), where);
    return {shared.scale, shared.zero_point, where, where};
  }
  if (!affine.has_scale()) Throw("cache.missing", path + ".affine", "has no scale");
  return {&affine.scale(), affine.has_zero_point() ? &affine.zero_point() : nullptr,
          path + ".affine.scale", path + ".affine.zero_point"};
}

int ReadAxis(const AffineLayoutProto& affine, int rank, const std::string& path) {
  if (!affine.has_axis()) {
    Throw("cache.axis", path + ".affine", "has no axis, which scales that are not scalar need");
  }
  const int64_t axis = affine.axis();
  if (axis >= -rank && axis < rank) return static_cast<int>(axis < 0 ? axis + rank : axis);
  Throw("cache.axis", path + ".affine.axis",
        std::to_string(axis) + " is outside [" + std::to_string(-rank) + ", " +
            std::to_string(rank - 1) + "], the axes of a payload");
}

// Sets shape, axis and block size of a payload of that rank, from the dims of the scale.
void ReadShape(const AffineLayoutProto& affine, std::span<const int64_t> scale_dims, int rank,
               const std::string& path, AffineLayout& layout) {
  if (scale_dims.empty()) return;
  layout.axis = ReadAxis(affine, rank, path);
  const bool may_be_blocks = rank == 1 && affine.block_size() != 0;
  if (scale_dims.size() == 1 && !may_be_blocks) {
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

DType ReadScaleType(const TensorProto& scale, const std::string& path) {
  const auto type = DTypeOfTensor(scale.data_type());
  if (type && *type <= DType::kBFloat16) return *type;
  Throw("cache.scale", path + ".data_type",
        std::to_string(scale.data_type()) + " is none of FLOAT, FLOAT16 and BFLOAT16");
}

SharedBytes ReadZeroPoints(const TensorProto& tensor, PageType code_type,
                           const std::vector<int64_t>& dims, const References& references,
                           const std::string& path) {
  const int32_t needed = StorageType(code_type);
  if (tensor.data_type() != needed) {
    Throw("cache.zero_point", path + ".data_type",
          std::to_string(tensor.data_type()) + ", must be " + std::to_string(needed) +
              ", that of the codes");
  }
  CheckDims(tensor.dims(), dims, "cache.zero_point", path);
  PayloadData data = ReadByteData(tensor, path, references.other_files);
  CheckSize(data, PackedSize(CellCount(dims), CodeBits(code_type)), "a zero point for each scale",
            path);
  return std::move(data.bytes);
}

// Of a payload with these dims, which are left out of the result.
EncodedPayload ReadAffine(const EncodedValueProto& value, std::span<const int64_t> dims,
                          const References& references, const std::string& path) {
  PayloadData codes = ReadCodes(value, references, path);
  const int64_t count = ElementCount(dims, path);
  const ParameterTensors tensors = ReadParameters(value, references.model, path);
  AffineLayout layout;
  layout.code_type = ReadCodeType(value.affine(), count, codes.size, path);
  CheckSize(codes, PackedSize(count, CodeBits(layout.code_type)),
            DimsText(dims) + " " + std::string(Name(layout.code_type)), path + ".raw_data");
  layout.scale_type = ReadScaleType(*tensors.scale, tensors.scale_path);
  ReadShape(value.affine(), tensors.scale->dims(), static_cast<int>(dims.size()), path, layout);
  const std::vector<int64_t> scale_dims = ScaleDims(layout, dims);
  CheckDims(tensors.scale->dims(), scale_dims, "cache.scale", tensors.scale_path);
  PayloadData scales =
      ReadTensorData(*tensors.scale, layout.scale_type, tensors.scale_path, references.other_files);
  CheckSize(scales, CellCount(scale_dims) * ElementSize(layout.scale_type),
            "a scale of " + DimsText(scale_dims), tensors.scale_path);
  SharedBytes zero_points;
  if (tensors.zero_point != nullptr) {
    zero_points = ReadZeroPoints(*tensors.zero_point, layout.code_type, scale_dims, references,
                                 tensors.zero_point_path);
  }
  return {{}, layout, std::move(codes.bytes), std::move(scales.bytes), std::move(zero_points)};
}

// As ReadAffine().
EncodedPayload ReadStruct(const EncodedValueProto& value, std::span<const int64_t> dims,
                          const References& references, const std::string& path) {
  PayloadData codes = ReadCodes(value, references, path);
  const int64_t count = ElementCount(dims, path);
  auto message = std::make_shared<Owned<EncodedValueProto>>();
  Merge(message->arena(), EncodedValueProto::kInfo, **message, value);
  ResolveTypes(message->arena(), *(*message)->mutable_struct_type(message->arena()),
               references.model, path + ".struct_type");
  const auto records = KnownRecords((*message)->struct_type());
  if (!records) return {{}, UnknownLayout{std::move(message)}, std::move(codes.bytes), {}, {}};
  const int64_t width = dims.empty() ? 1 : dims.back();
  if (width % kRecordValues != 0) {
    Throw("cache.layout", path + ".logical_type",
          "width " + std::to_string(width) + " is no multiple of " + std::to_string(kRecordValues) +
              ", as " + std::string(value.struct_type().name()) + " needs");
  }
  CheckSize(codes, count / kRecordValues * RecordSize(*records),
            DimsText(dims) + " " + std::string(Name(*records)), path + ".raw_data");
  return {{}, RecordLayout{*records}, std::move(codes.bytes), {}, {}};
}

EncodedPayload ReadLayout(const EncodedValueProto& value, std::span<const int64_t> dims,
                          const References& references, const std::string& path) {
  if (value.has_affine()) return ReadAffine(value, dims, references, path);
  if (value.has_struct_type()) return ReadStruct(value, dims, references, path);
  Throw("cache.missing", path, "has no layout: neither affine nor struct_type");
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

std::vector<int64_t> ScaleDims(const AffineLayout& layout, std::span<const int64_t> dims) {
  if (layout.shape == Shape::kScalar) return {};
  if (layout.shape == Shape::kAxis) return {dims[layout.axis]};
  std::vector<int64_t> counts(dims.begin(), dims.end());
  int64_t& blocked = counts[layout.axis];
  blocked = static_cast<int64_t>(
      CeilDiv(static_cast<uint64_t>(blocked), static_cast<uint64_t>(layout.block_size)));
  return counts;
}

EncodedPayload ReadEncodedValue(const EncodedValueProto& value, const References& references,
                                const std::string& path) {
  const Dims dims = ReadLogicalType(value, path);
  EncodedPayload payload = ReadLayout(value, dims, references, path);
  payload.dims = dims;
  return payload;
}

void CheckEncodedValue(const EncodedValueProto& value, const References& references,
                       const std::string& path) {
  ReadLayout(value, ReadAnyLogicalType(value, path), references, path);
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
