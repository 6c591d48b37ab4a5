#include "quant/decode.h"

#include <algorithm>
#include <vector>

#include "base/convert.h"
#include "base/quote.h"
#include "onnx_light/errors.h"
#include "onnx_light/messages.h"
#include "quant/packing.h"
#include "quant/records.h"
#include "quant/rows.h"

namespace onnx_light {
namespace {

// Rows are computed in blocks that stay in the nearest cache.
constexpr int64_t kBlockTokens = 16;

// Where rows go that are computed as floats, some at a time.
class RowTarget {
 public:
  // `padded` floats are computed for each row.
  RowTarget(DType dtype, int64_t width, int64_t padded, void* target)
      : dtype_(dtype), width_(width), padded_(padded), target_(static_cast<std::byte*>(target)) {
    const bool is_aligned = reinterpret_cast<uintptr_t>(target) % alignof(float) == 0;
    if (dtype != DType::kFloat32 || padded != width || !is_aligned) {
      rows_.resize(kBlockTokens * padded);
    }
  }

  // Where to compute at most kBlockTokens rows; the target itself where that will do.
  float* Rows() { return rows_.empty() ? reinterpret_cast<float*>(target_) : rows_.data(); }
  void Finish(int64_t tokens) {
    const int64_t size = width_ * ElementSize(dtype_);
    for (int64_t i = 0; i < tokens && !rows_.empty(); ++i) {
      ConvertElements(DType::kFloat32, rows_.data() + i * padded_, dtype_, target_ + i * size,
                      width_);
    }
    target_ += tokens * size;
  }

 private:
  const DType dtype_;
  const int64_t width_, padded_;
  std::byte* target_;
  std::vector<float> rows_;
};

void DecodeAffine(const EncodedPayload& payload, const AffineLayout& layout, int64_t batch,
                  int64_t head, int64_t first, int64_t count, DType dtype, void* target) {
  const auto& dims = payload.dims;
  const int64_t width = dims[3], padded = PaddedWidth(width);
  RowTarget rows(dtype, width, padded, target);
  ParameterRows parameters(layout, dims, payload.scales.data, payload.zero_points.data);
  const bool direct = CodeBits(layout.code_type) == 8 && padded == width;
  std::vector<uint8_t> unpacked(direct ? 0 : kBlockTokens * padded);
  const QuantKernels& kernels = SelectedQuantKernels();
  int64_t place = ((batch * dims[1] + head) * dims[2] + first) * width;
  for (int64_t token = first; token < first + count;) {
    const ParameterRun run =
        parameters.Run(batch, head, token, std::min(kBlockTokens, first + count - token));
    const auto* codes = reinterpret_cast<const uint8_t*>(payload.codes.data) + place;
    for (int64_t i = 0; i < run.tokens && !direct; ++i) {
      UnpackCodes(payload.codes.data, layout.code_type, place + i * width, width,
                  unpacked.data() + i * padded);
    }
    kernels.decode_rows(direct ? codes : unpacked.data(), IsSigned(layout.code_type), run.tokens,
                        padded, run.scale, run.zero_point, run.per_token, rows.Rows());
    rows.Finish(run.tokens);
    token += run.tokens;
    place += run.tokens * width;
  }
}

void DecodeRecordRows(const EncodedPayload& payload, PageType type, int64_t batch, int64_t head,
                      int64_t first, int64_t count, DType dtype, void* target) {
  const auto& dims = payload.dims;
  const int64_t row_size = dims[3] / kRecordValues * RecordSize(type);
  const std::byte* records =
      payload.codes.data + ((batch * dims[1] + head) * dims[2] + first) * row_size;
  RowTarget rows(dtype, dims[3], dims[3], target);
  for (int64_t i = 0; i < count; i += kBlockTokens, records += kBlockTokens * row_size) {
    const int64_t tokens = std::min(kBlockTokens, count - i);
    DecodeRecords(type, records, tokens * dims[3], rows.Rows());
    rows.Finish(tokens);
  }
}

}  // namespace

void CheckDecodable(const EncodedPayload& payload, const std::string& path) {
  const auto* unknown = std::get_if<UnknownLayout>(&payload.layout);
  if (unknown == nullptr) return;
  throw ValueError("quant.unknown_layout", path,
                   "the values of layout '" + Escaped((**unknown->message).struct_type().name()) +
                       "' cannot be computed: only ggml.q8_0 and ggml.q4_0 with their own " +
                       "structure are known");
}

void DecodeRows(const EncodedPayload& payload, int64_t batch, int64_t head, int64_t first,
                int64_t count, DType dtype, void* target) {
  if (const AffineLayout* affine = payload.affine()) {
    DecodeAffine(payload, *affine, batch, head, first, count, dtype, target);
  } else {
    DecodeRecordRows(payload, std::get<RecordLayout>(payload.layout).type, batch, head, first,
                     count, dtype, target);
  }
}

}  // namespace onnx_light
