#include "quant/decode.h"

#include <cstring>
#include <vector>

#include "base/convert.h"
#include "onnx_light/errors.h"
#include "onnx_light/messages.h"
#include "quant/packing.h"
#include "quant/records.h"
#include "quant/rows.h"

namespace onnx_light {
namespace {

// Where floats go that are computed a row at a time.
class RowTarget {
 public:
  RowTarget(DType dtype, int64_t width, void* target)
      : dtype_(dtype), width_(width), target_(static_cast<std::byte*>(target)) {}

  void Write(const float* row) {
    ConvertElements(DType::kFloat32, row, dtype_, target_, width_);
    target_ += width_ * ElementSize(dtype_);
  }

 private:
  const DType dtype_;
  const int64_t width_;
  std::byte* target_;
};

void DecodeAffine(const EncodedPayload& payload, const AffineLayout& layout, int64_t batch,
                  int64_t head, int64_t first, int64_t count, RowTarget& target) {
  const auto& dims = payload.dims;
  const int64_t width = dims[3];
  ParameterRows parameters(layout, dims, payload.scales.data, payload.zero_points.data);
  std::vector<uint8_t> codes(PaddedWidth(width));
  std::vector<float> row(PaddedWidth(width));
  const QuantKernels& kernels = SelectedQuantKernels();
  int64_t place = ((batch * dims[1] + head) * dims[2] + first) * width;
  for (int64_t i = 0; i < count; ++i, place += width) {
    parameters.MoveTo(batch, head, first + i);
    UnpackCodes(payload.codes.data, layout.code_type, place, width, codes.data());
    kernels.decode_row(codes.data(), IsSigned(layout.code_type), PaddedWidth(width),
                       parameters.scale(), parameters.zero_point(), row.data());
    target.Write(row.data());
  }
}

void DecodeRecordRows(const EncodedPayload& payload, PageType type, int64_t batch, int64_t head,
                      int64_t first, int64_t count, RowTarget& target) {
  const auto& dims = payload.dims;
  const int64_t row_size = dims[3] / kRecordValues * RecordSize(type);
  const std::byte* records =
      payload.codes.data + ((batch * dims[1] + head) * dims[2] + first) * row_size;
  std::vector<float> row(dims[3]);
  for (int64_t i = 0; i < count; ++i, records += row_size) {
    DecodeRecords(type, records, dims[3], row.data());
    target.Write(row.data());
  }
}

}  // namespace

void CheckDecodable(const EncodedPayload& payload, const std::string& path) {
  const auto* unknown = std::get_if<UnknownLayout>(&payload.layout);
  if (unknown == nullptr) return;
  throw ValueError("quant.unknown_layout", path,
                   "the values of layout '" +
                       std::string((**unknown->message).struct_type().name()) +
                       "' cannot be computed: only ggml.q8_0 and ggml.q4_0 with their own " +
                       "structure are known");
}

void DecodeRows(const EncodedPayload& payload, int64_t batch, int64_t head, int64_t first,
                int64_t count, DType dtype, void* target) {
  RowTarget rows(dtype, payload.dims[3], target);
  if (const AffineLayout* affine = payload.affine()) {
    DecodeAffine(payload, *affine, batch, head, first, count, rows);
  } else {
    DecodeRecordRows(payload, std::get<RecordLayout>(payload.layout).type, batch, head, first,
                     count, rows);
  }
}

}  // namespace onnx_light
