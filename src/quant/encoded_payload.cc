#include "onnx_light/encoded_payload.h"

#include "base/math.h"

namespace onnx_light {
namespace {

std::optional<PageFormat> AffineFormat(const AffineLayout& layout, bool has_zero_points,
                                       const std::array<int64_t, 4>& dims) {
  if (has_zero_points == IsSigned(layout.code_type)) return std::nullopt;
  const auto make = [&](ScaleKind kind, int64_t group) {
    return PageFormat::Affine(layout.code_type, kind, group, layout.scale_type);
  };
  if (layout.shape == AffineLayout::Shape::kScalar) return make(ScaleKind::kTensor, 0);
  if (layout.shape != AffineLayout::Shape::kBlocked || layout.axis < 2) return std::nullopt;
  const int64_t group = layout.block_size < dims[layout.axis] ? layout.block_size : 0;
  return make(layout.axis == 2 ? ScaleKind::kChannel : ScaleKind::kToken, group);
}

}  // namespace

std::array<int64_t, 4> CellDims(const AffineLayout& layout, const std::array<int64_t, 4>& dims) {
  if (layout.shape == AffineLayout::Shape::kBlocked) {
    std::array<int64_t, 4> cell{1, 1, 1, 1};
    cell[layout.axis] = layout.block_size;
    return cell;
  }
  std::array<int64_t, 4> cell = dims;
  if (layout.shape == AffineLayout::Shape::kAxis) cell[layout.axis] = 1;
  return cell;
}

std::array<int64_t, 4> CellCounts(const AffineLayout& layout, const std::array<int64_t, 4>& dims) {
  const std::array<int64_t, 4> cell = CellDims(layout, dims);
  std::array<int64_t, 4> counts{};
  for (int i = 0; i < 4; ++i) {
    counts[i] = static_cast<int64_t>(
        CeilDiv(static_cast<uint64_t>(dims[i]), static_cast<uint64_t>(cell[i])));
  }
  return counts;
}

std::optional<PageFormat> FormatOf(const EncodedPayload& payload) {
  if (const auto* records = std::get_if<RecordLayout>(&payload.layout)) {
    return PageFormat::Records(records->type);
  }
  const AffineLayout* affine = payload.affine();
  if (affine == nullptr) return std::nullopt;
  return AffineFormat(*affine, payload.zero_points.size != 0, payload.dims);
}

}  // namespace onnx_light
