#include "quant/encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "onnx_light/errors.h"
#include "quant/affine_parameters.h"
#include "quant/packing.h"
#include "quant/records.h"
#include "quant/rows.h"

namespace onnx_light {
namespace {

template <typename F>
void ForHeads(const ArrayView& rows, F f) {
  for (int64_t batch = 0; batch < rows.batch(); ++batch) {
    for (int64_t head = 0; head < rows.heads(); ++head) f(batch, head);
  }
}

int64_t ElementCount(const ArrayView& rows) {
  return rows.batch() * rows.heads() * rows.tokens() * rows.width();
}

// Names the first number of a row, batch, head and token of which are given, that is not at most
// `most`.
[[noreturn]] void ThrowNotEncodable(const float* row, const std::array<int64_t, 3>& place,
                                    const PageFormat& format, float most, const std::string& path) {
  int64_t index = 0;
  while (std::fabs(row[index]) <= most) ++index;
  const std::string what = std::to_string(row[index]) + " at batch " + std::to_string(place[0]) +
                           ", head " + std::to_string(place[1]) + ", token " +
                           std::to_string(place[2]) + ", index " + std::to_string(index);
  if (std::isfinite(row[index])) {
    throw ValueError("quant.overflow", path,
                     what + " exceeds " + std::to_string(most) + ", the most that " +
                         format.Text() + " can hold");
  }
  throw ValueError("quant.not_finite", path, what + " cannot be encoded as " + format.Text());
}

void CheckWidth(int64_t width, const PageFormat& format, const std::string& path) {
  if (format.is_affine() || width % kRecordValues == 0) return;
  throw ValueError("quant.width", path,
                   "width " + std::to_string(width) + " is no multiple of " +
                       std::to_string(kRecordValues) + ", which " + format.Text() + " needs");
}

// What scales and zero points mean for codes.
class CodeBounds {
 public:
  // For runs of at most `tokens` tokens.
  CodeBounds(const AffineLayout& layout, int64_t tokens, int64_t width)
      : levels_(static_cast<float>((1 << CodeBits(layout.code_type)) - 1)),
        smallest_(IsSigned(layout.code_type) ? -std::ceil(levels_ / 2) : 0),
        width_(PaddedWidth(width)) {
    for (auto* values : {&divisor_, &least_, &most_}) values->resize(std::max(tokens, width_));
  }

  // A scale of 0 gives the zero point as the code, whatever the number.
  CodeParameters Of(const ParameterRun& run) {
    const int64_t count = run.per_token ? run.tokens : width_;
    for (int64_t i = 0; i < count; ++i) {
      divisor_[i] = run.scale[i] != 0 ? run.scale[i] : std::numeric_limits<float>::infinity();
      least_[i] = smallest_ - run.zero_point[i];
      most_[i] = smallest_ + levels_ - run.zero_point[i];
    }
    return {divisor_.data(), least_.data(), most_.data(), run.zero_point, run.per_token};
  }

 private:
  const float levels_, smallest_;
  const int64_t width_;
  std::vector<float> divisor_, least_, most_;
};

EncodedPayload EncodeAsRecords(const ArrayView& rows, PageType type) {
  const int64_t row_size = rows.width() / kRecordValues * RecordSize(type);
  BufferRef records = BufferRef::Allocate(ElementCount(rows) / kRecordValues * RecordSize(type));
  std::byte* target = records.mutable_data();
  FloatRows source(rows);
  ForHeads(rows, [&](int64_t batch, int64_t head) {
    for (int64_t token = 0; token < rows.tokens(); ++token, target += row_size) {
      EncodeRecords(type, source.Row(batch, head, token), rows.width(), target);
    }
  });
  return {rows.shape, RecordLayout{type}, SharedBytes(std::move(records)), {}, {}};
}

}  // namespace

void CheckEncodable(const ArrayView& rows, const PageFormat& format, const std::string& path) {
  CheckWidth(rows.width(), format, path);
  const float most =
      format.is_affine() ? std::numeric_limits<float>::max() : MostInRecord(format.type());
  const QuantKernels& kernels = SelectedQuantKernels();
  FloatRows source(rows);
  ForHeads(rows, [&](int64_t batch, int64_t head) {
    if (kernels.are_within(source.Rows(batch, head, 0, rows.tokens()), most)) return;
    for (int64_t token = 0; token < rows.tokens(); ++token) {
      const FloatBlock row = source.Rows(batch, head, token, 1);
      if (kernels.are_within(row, most)) continue;
      ThrowNotEncodable(row.values, {batch, head, token}, format, most, path);
    }
  });
}

EncodedPayload Encode(const ArrayView& rows, const PageFormat& format) {
  if (!format.is_affine()) return EncodeAsRecords(rows, format.type());
  AffineParameters parameters = ChooseParameters(rows, format);
  return EncodeWith(rows, parameters.layout, std::move(parameters.scales),
                    std::move(parameters.zero_points));
}

EncodedPayload EncodeWith(const ArrayView& rows, const AffineLayout& layout, SharedBytes scales,
                          SharedBytes zero_points) {
  const int64_t width = rows.width(), padded = PaddedWidth(width), tokens = rows.tokens();
  const int bits = CodeBits(layout.code_type);
  BufferRef packed = BufferRef::Allocate(PackedSize(ElementCount(rows), bits));
  const bool direct = bits == 8 && padded == width;
  if (bits != 8) std::fill_n(packed.mutable_data(), packed.size(), std::byte{0});
  FloatRows source(rows);
  ParameterRows parameters(layout, rows.shape, scales.data, zero_points.data);
  CodeBounds bounds(layout, tokens, width);
  std::vector<uint8_t> codes(direct ? 0 : tokens * padded);
  const QuantKernels& kernels = SelectedQuantKernels();
  int64_t first = 0;
  ForHeads(rows, [&](int64_t batch, int64_t head) {
    for (int64_t token = 0; token < tokens;) {
      const ParameterRun run = parameters.Run(batch, head, token, tokens - token);
      uint8_t* target =
          direct ? reinterpret_cast<uint8_t*>(packed.mutable_data()) + first : codes.data();
      kernels.encode_rows(source.Rows(batch, head, token, run.tokens), bounds.Of(run), target);
      for (int64_t i = 0; i < run.tokens && !direct; ++i) {
        PackCodes(codes.data() + i * padded, width, bits, first + i * width, packed.mutable_data());
      }
      token += run.tokens;
      first += run.tokens * width;
    }
  });
  return {rows.shape, layout, SharedBytes(std::move(packed)), std::move(scales),
          std::move(zero_points)};
}

}  // namespace onnx_light
