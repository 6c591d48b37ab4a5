#include "quant/given_parameters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/convert.h"
#include "base/math.h"
#include "onnx_light/errors.h"
#include "quant/encode.h"
#include "quant/packing.h"

namespace onnx_light {
namespace {

using Dims = std::array<int64_t, 4>;

int64_t Product(const Dims& dims) { return dims[0] * dims[1] * dims[2] * dims[3]; }

std::string Text(std::span<const int64_t> dims) {
  std::string text = "[";
  for (const int64_t dim : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

// How many indices of each dim share a parameter.
Dims BlocksOf(std::span<const int64_t> shape, const Dims& rows, const std::string& path) {
  Dims blocks = rows;
  if (shape.empty()) return blocks;
  bool fits = shape.size() == 4;
  for (size_t i = 0; fits && i < 4; ++i) {
    fits = shape[i] >= 1 && shape[i] <= rows[i];
    if (!fits) break;
    blocks[i] = static_cast<int64_t>(CeilDiv(rows[i], shape[i]));
    fits = static_cast<int64_t>(CeilDiv(rows[i], blocks[i])) == shape[i];
  }
  if (fits) return blocks;
  throw ValueError("quant.scale", path,
                   "scales " + Text(shape) + " for a page " + Text(rows) +
                       "; a scalar is needed, or each dim 1 or the page's divided by a block and "
                       "rounded up");
}

// The parameters as a layout has them: the layout, and how many of them there are in each dim.
struct Form {
  AffineLayout layout;
  Dims counts;
};

Form FormOf(const Dims& counts, const Dims& blocks, const Dims& rows) {
  Form form{{}, counts};
  const auto many = [&](int i) { return counts[i] > 1; };
  const int axes = static_cast<int>(many(0)) + many(1) + many(2) + many(3);
  if (axes == 0) return form;
  if (axes == 1) {
    const int axis = many(0) ? 0 : many(1) ? 1 : many(2) ? 2 : 3;
    if (counts[axis] == rows[axis]) {
      form.layout.shape = AffineLayout::Shape::kAxis;
      form.layout.axis = axis;
      return form;
    }
  }
  // Parameters are repeated along all other axes, so the longest blocks stay.
  int axis = 3;
  for (int i = 2; i >= 0; --i) axis = blocks[i] > blocks[axis] ? i : axis;
  form.layout.shape = AffineLayout::Shape::kBlocked;
  form.layout.axis = axis;
  form.layout.block_size = blocks[axis];
  for (int i = 0; i < 4; ++i) form.counts[i] = i == axis ? counts[i] : rows[i];
  return form;
}

// Repeats elements of `size` bytes from an array of `counts` to one of `form.counts`.
BufferRef Spread(const std::byte* source, int64_t size, const Dims& counts, const Dims& blocks,
                 const Form& form) {
  BufferRef buffer = BufferRef::Allocate(Product(form.counts) * size);
  std::byte* target = buffer.mutable_data();
  Dims factor{};  // from an index of the target to one of the source
  for (int i = 0; i < 4; ++i) factor[i] = form.counts[i] == counts[i] ? 1 : blocks[i];
  for (int64_t b = 0; b < form.counts[0]; ++b) {
    for (int64_t h = 0; h < form.counts[1]; ++h) {
      for (int64_t t = 0; t < form.counts[2]; ++t) {
        const int64_t row =
            ((b / factor[0] * counts[1] + h / factor[1]) * counts[2] + t / factor[2]) * counts[3];
        for (int64_t w = 0; w < form.counts[3]; ++w, target += size) {
          std::memcpy(target, source + (row + w / factor[3]) * size, size);
        }
      }
    }
  }
  return buffer;
}

void CheckScales(const QuantizationParameters& parameters, int64_t count, const std::string& path) {
  std::vector<float> scales(count);
  ConvertElements(parameters.scale_type, parameters.scales, DType::kFloat32, scales.data(), count);
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(scales[i]) && scales[i] >= 0) continue;
    throw ValueError("quant.scale", path,
                     "scale " + std::to_string(i) + " is " + std::to_string(scales[i]) +
                         ", must be finite and not negative");
  }
}

// In the form of the payload; nothing where signed codes have none but 0.
SharedBytes ZeroPoints(const QuantizationParameters& parameters, const Dims& counts,
                       const Dims& blocks, const Form& form) {
  const PageType type = *parameters.code_type;
  std::vector<uint8_t> codes(Product(counts));
  UnpackCodes(parameters.zero_points, type, 0, static_cast<int64_t>(codes.size()), codes.data());
  const bool all_zero = std::ranges::all_of(codes, [](uint8_t code) { return code == 0; });
  if (IsSigned(type) && all_zero) return SharedBytes();
  const BufferRef spread =
      Spread(reinterpret_cast<const std::byte*>(codes.data()), 1, counts, blocks, form);
  const int64_t size = PackedSize(static_cast<int64_t>(spread.size()), CodeBits(type));
  BufferRef packed = BufferRef::Allocate(size);
  std::fill_n(packed.mutable_data(), size, std::byte{0});
  PackCodes(reinterpret_cast<const uint8_t*>(spread.data()), static_cast<int64_t>(spread.size()),
            CodeBits(type), 0, packed.mutable_data());
  return SharedBytes(std::move(packed));
}

}  // namespace

EncodedPayload EncodeWithGiven(const ArrayView& rows, const QuantizationParameters& parameters,
                               const std::string& path) {
  const Dims blocks = BlocksOf(parameters.shape, rows.shape, path);
  Dims counts{1, 1, 1, 1};
  if (!parameters.shape.empty()) std::ranges::copy(parameters.shape, counts.begin());
  CheckScales(parameters, Product(counts), path);
  CheckEncodable(rows, PageFormat::Affine(*parameters.code_type, ScaleKind::kTensor), path);
  Form form = FormOf(counts, blocks, rows.shape);
  form.layout.code_type = *parameters.code_type;
  form.layout.scale_type = parameters.scale_type;
  SharedBytes scales(
      Spread(parameters.scales, ElementSize(parameters.scale_type), counts, blocks, form));
  return EncodeWith(rows, form.layout, std::move(scales),
                    ZeroPoints(parameters, counts, blocks, form));
}

}  // namespace onnx_light
