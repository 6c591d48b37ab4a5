#include "quant/encoded_rows.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/messages.h"
#include "onnx_light/serialization.h"
#include "quant/decode.h"
#include "quant/packing.h"
#include "quant/rows.h"

namespace onnx_light {
namespace {

using Dims = std::array<int64_t, 4>;

int64_t FirstElement(const Dims& dims, int64_t batch, int64_t head, int64_t token) {
  return ((batch * dims[1] + head) * dims[2] + token) * dims[3];
}

// f(batch, head, token) for the tokens [first, last) of every batch entry and head, while it is
// true; whether it always was.
template <typename F>
bool ForRows(const Dims& dims, int64_t first, int64_t last, F f) {
  for (int64_t batch = 0; batch < dims[0]; ++batch) {
    for (int64_t head = 0; head < dims[1]; ++head) {
      for (int64_t token = first; token < last; ++token) {
        if (!f(batch, head, token)) return false;
      }
    }
  }
  return true;
}

int64_t RecordRowSize(const EncodedPayload& payload, PageType type) {
  return payload.dims[3] / kRecordValues * RecordSize(type);
}

// One row of an affine payload after the other, as codes and parameters.
class AffineRows {
 public:
  explicit AffineRows(const EncodedPayload& payload)
      : payload_(payload),
        type_(payload.affine()->code_type),
        parameters_(*payload.affine(), payload.dims, payload.scales.data, payload.zero_points.data),
        codes_(payload.dims[3]) {}

  void MoveTo(int64_t batch, int64_t head, int64_t token) {
    run_ = parameters_.Run(batch, head, token, 1);
    UnpackCodes(payload_.codes.data, type_, FirstElement(payload_.dims, batch, head, token),
                payload_.dims[3], codes_.data());
  }
  // The parameters as bits: a scale may be NaN.
  bool operator==(const AffineRows& other) const {
    const size_t size = (run_.per_token ? 1 : codes_.size()) * sizeof(float);
    return codes_ == other.codes_ && std::memcmp(run_.scale, other.run_.scale, size) == 0 &&
           std::memcmp(run_.zero_point, other.run_.zero_point, size) == 0;
  }

 private:
  const EncodedPayload& payload_;
  const PageType type_;
  ParameterRows parameters_;
  ParameterRun run_{};
  std::vector<uint8_t> codes_;
};

bool EqualAffineRows(const EncodedPayload& a, const EncodedPayload& b, int64_t length) {
  if ((a.zero_points.size == 0) != (b.zero_points.size == 0)) return false;
  AffineRows left(a), right(b);
  return ForRows(a.dims, 0, length, [&](int64_t batch, int64_t head, int64_t token) {
    left.MoveTo(batch, head, token);
    right.MoveTo(batch, head, token);
    return left == right;
  });
}

// Of rows with `size` bytes each.
bool EqualBytes(const EncodedPayload& a, const EncodedPayload& b, int64_t size, int64_t length) {
  for (int64_t i = 0; i < a.dims[0] * a.dims[1]; ++i) {
    if (std::memcmp(a.codes.data + i * a.dims[2] * size, b.codes.data + i * b.dims[2] * size,
                    length * size) != 0) {
      return false;
    }
  }
  return true;
}

BufferRef CopyOf(const SharedBytes& bytes) {
  BufferRef copy = BufferRef::Allocate(bytes.size);
  std::copy_n(bytes.data, bytes.size, copy.mutable_data());
  return copy;
}

// ---------------------------------------------------------------------------------------------
// Rows turned into zeros

// Sets the codes [first, first + count) of an array.
void ReplaceCodes(const uint8_t* codes, int64_t count, PageType type, int64_t first,
                  std::byte* array) {
  const int bits = CodeBits(type);
  const int mask = (1 << bits) - 1;
  for (int64_t i = first; bits != 8 && i < first + count; ++i) {
    array[i / (8 / bits)] &= static_cast<std::byte>(~(mask << (i % (8 / bits) * bits)));
  }
  PackCodes(codes, count, bits, first, array);
}

// Cells that no row before `length` touches get the scale 0 and the zero point 0.
void ClearCells(const EncodedPayload& payload, int64_t length, BufferRef& scales,
                BufferRef& zero_points) {
  const AffineLayout& layout = *payload.affine();
  const Dims cell = CellDims(layout, payload.dims), counts = CellCounts(layout, payload.dims);
  const int64_t kept = (length - 1) / cell[2] + 1, item = ElementSize(layout.scale_type);
  const int64_t count = (counts[2] - kept) * counts[3];
  const std::vector<uint8_t> zeros(count);
  for (int64_t i = 0; i < counts[0] * counts[1]; ++i) {
    const int64_t first = (i * counts[2] + kept) * counts[3];
    std::fill_n(scales.mutable_data() + first * item, count * item, std::byte{0});
    if (!zero_points) continue;
    ReplaceCodes(zeros.data(), count, layout.code_type, first, zero_points.mutable_data());
  }
}

EncodedPayload WithoutAffineRows(const EncodedPayload& payload, int64_t length) {
  const AffineLayout& layout = *payload.affine();
  BufferRef codes = CopyOf(payload.codes), scales = CopyOf(payload.scales), zero_points;
  if (payload.zero_points.size != 0) zero_points = CopyOf(payload.zero_points);
  ClearCells(payload, length, scales, zero_points);
  const int64_t width = payload.dims[3];
  ParameterRows parameters(layout, payload.dims, scales.data(), zero_points.data());
  std::vector<uint8_t> row(width);
  ForRows(payload.dims, length, payload.dims[2], [&](int64_t batch, int64_t head, int64_t token) {
    const ParameterRun run = parameters.Run(batch, head, token, 1);
    for (int64_t i = 0; i < width; ++i) {
      row[i] = static_cast<uint8_t>(static_cast<int>(run.zero_point[run.per_token ? 0 : i]));
    }
    ReplaceCodes(row.data(), width, layout.code_type,
                 FirstElement(payload.dims, batch, head, token), codes.mutable_data());
    return true;
  });
  return {payload.dims, layout, SharedBytes(std::move(codes)), SharedBytes(std::move(scales)),
          SharedBytes(std::move(zero_points))};
}

EncodedPayload WithoutRecordRows(const EncodedPayload& payload, PageType type, int64_t length) {
  const int64_t records = payload.dims[3] / kRecordValues, size = RecordSize(type);
  BufferRef bytes = CopyOf(payload.codes);
  ForRows(payload.dims, length, payload.dims[2], [&](int64_t batch, int64_t head, int64_t token) {
    const int64_t row = FirstElement(payload.dims, batch, head, token) / payload.dims[3];
    std::byte* record = bytes.mutable_data() + row * records * size;
    for (int64_t i = 0; i < records; ++i, record += size) {
      std::fill_n(record, 2, std::byte{0});
      std::fill_n(record + 2, size - 2,
                  std::byte{type == PageType::kQ8_0 ? uint8_t{0} : uint8_t{0x88}});
    }
    return true;
  });
  return {payload.dims, payload.layout, SharedBytes(std::move(bytes)), {}, {}};
}

// ---------------------------------------------------------------------------------------------
// Batch entries

// The given ones of equal parts of an array of codes of some number of bits.
SharedBytes GatherParts(const SharedBytes& array, PageType type, int64_t part,
                        std::span<const int64_t> indices) {
  const auto count = static_cast<int64_t>(indices.size());
  BufferRef result = BufferRef::Allocate(PackedSize(count * part, CodeBits(type)));
  std::fill_n(result.mutable_data(), result.size(), std::byte{0});
  std::vector<uint8_t> codes(part);
  for (int64_t i = 0; i < count; ++i) {
    UnpackCodes(array.data, type, indices[i] * part, part, codes.data());
    PackCodes(codes.data(), part, CodeBits(type), i * part, result.mutable_data());
  }
  return SharedBytes(std::move(result));
}

EncodedPayload GatherAffine(const EncodedPayload& payload, std::span<const int64_t> indices) {
  EncodedPayload result = payload;
  AffineLayout layout = *payload.affine();
  const Dims& dims = payload.dims;
  result.dims[0] = static_cast<int64_t>(indices.size());
  result.codes = GatherParts(payload.codes, layout.code_type, dims[1] * dims[2] * dims[3], indices);
  const Dims cell = CellDims(layout, dims), counts = CellCounts(layout, dims);
  const bool is_blocked = layout.shape == AffineLayout::Shape::kBlocked;
  // Whether all batch entries have the same parameters.
  const bool is_common =
      !is_blocked && (layout.shape == AffineLayout::Shape::kScalar || layout.axis != 0);
  if (is_common) return result;
  std::vector<int64_t> cells;
  for (int64_t index : indices) cells.push_back(index / cell[0]);
  if (is_blocked && layout.axis == 0) layout.block_size = 1;
  result.layout = layout;
  const int64_t part = counts[1] * counts[2] * counts[3];
  result.scales =
      GatherParts(payload.scales, PageType::kUInt8, part * ElementSize(layout.scale_type), cells);
  if (payload.zero_points.size != 0) {
    result.zero_points = GatherParts(payload.zero_points, layout.code_type, part, cells);
  }
  return result;
}

EncodedPayload GatherRecords(const EncodedPayload& payload, PageType type,
                             std::span<const int64_t> indices) {
  EncodedPayload result = payload;
  result.dims[0] = static_cast<int64_t>(indices.size());
  const int64_t part = payload.dims[1] * payload.dims[2] * RecordRowSize(payload, type);
  result.codes = GatherParts(payload.codes, PageType::kUInt8, part, indices);
  return result;
}

// ---------------------------------------------------------------------------------------------
// Unknown layouts

// Rows are whole records, so they have one size; nothing where the bytes are no such rows.
std::optional<int64_t> UnknownRowSize(const EncodedPayload& payload) {
  const Dims& dims = payload.dims;
  const int64_t rows = dims[0] * dims[1] * dims[2];
  const auto size = static_cast<int64_t>(payload.codes.size);
  return size % rows == 0 ? std::optional(size / rows) : std::nullopt;
}

// All of the message but the data. NaN is equal to itself here, as in the data.
std::string DescriptionOf(const UnknownLayout& layout) {
  Owned<EncodedValueProto> description;
  Merge(description.arena(), EncodedValueProto::kInfo, *description, **layout.message);
  description->clear_raw_data(description.arena());
  const Serializer serializer(EncodedValueProto::kInfo, *description);
  std::string bytes(serializer.size(), '\0');
  serializer.WriteTo(reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

bool EqualUnknownRows(const EncodedPayload& a, const EncodedPayload& b, int64_t length) {
  const auto &left = std::get<UnknownLayout>(a.layout), &right = std::get<UnknownLayout>(b.layout);
  if (a.codes.size != b.codes.size) return false;
  if (left.message != right.message && DescriptionOf(left) != DescriptionOf(right)) return false;
  if (const auto size = UnknownRowSize(a)) return EqualBytes(a, b, *size, length);
  return std::memcmp(a.codes.data, b.codes.data, a.codes.size) == 0;
}

EncodedPayload WithoutUnknownRows(const EncodedPayload& payload, int64_t length) {
  const Dims& dims = payload.dims;
  const auto row_size = UnknownRowSize(payload);
  if (!row_size) {
    throw ValueError("quant.unknown_layout", "",
                     std::to_string(payload.codes.size) + " bytes of an unknown layout are no " +
                         std::to_string(dims[0] * dims[1] * dims[2]) +
                         " rows of one size, so that none can be cut off");
  }
  const int64_t size = *row_size;
  BufferRef bytes = CopyOf(payload.codes);
  for (int64_t i = 0; i < dims[0] * dims[1]; ++i) {
    std::fill_n(bytes.mutable_data() + (i * dims[2] + length) * size, (dims[2] - length) * size,
                std::byte{0});
  }
  auto message = std::make_shared<Owned<EncodedValueProto>>();
  Merge(message->arena(), EncodedValueProto::kInfo, **message,
        **std::get<UnknownLayout>(payload.layout).message);
  SharedBytes codes(std::move(bytes));
  (*message)->set_raw_data(message->arena(), codes);
  return {dims, UnknownLayout{std::move(message)}, std::move(codes), {}, {}};
}

}  // namespace

bool EqualEncodedRows(const EncodedPayload& a, const EncodedPayload& b, int64_t length) {
  if (a.layout.index() != b.layout.index()) return false;
  if (std::holds_alternative<UnknownLayout>(a.layout)) return EqualUnknownRows(a, b, length);
  if (const auto* records = std::get_if<RecordLayout>(&a.layout)) {
    return *records == std::get<RecordLayout>(b.layout) &&
           EqualBytes(a, b, RecordRowSize(a, records->type), length);
  }
  return *a.affine() == *b.affine() && EqualAffineRows(a, b, length);
}

EncodedPayload WithoutRowsFrom(const EncodedPayload& payload, int64_t length) {
  if (length == payload.dims[2]) return payload;
  if (payload.affine() != nullptr) return WithoutAffineRows(payload, length);
  if (const auto* records = std::get_if<RecordLayout>(&payload.layout)) {
    return WithoutRecordRows(payload, records->type, length);
  }
  return WithoutUnknownRows(payload, length);
}

EncodedPayload GatherBatch(const EncodedPayload& payload, std::span<const int64_t> indices) {
  CheckDecodable(payload, "");
  if (payload.affine() != nullptr) return GatherAffine(payload, indices);
  return GatherRecords(payload, std::get<RecordLayout>(payload.layout).type, indices);
}

}  // namespace onnx_light
