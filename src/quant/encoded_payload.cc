#include "onnx_light/encoded_payload.h"

#include "base/math.h"
#include "base/quote.h"
#include "onnx_light/messages.h"

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

std::string Describe(const EncodedPayload& payload) {
  if (const auto format = FormatOf(payload)) return format->Text();
  if (const auto* unknown = std::get_if<UnknownLayout>(&payload.layout)) {
    const std::string_view name = (**unknown->message).struct_type().name();
    return name.empty() ? "a layout without a name" : Escaped(name);
  }
  const AffineLayout& layout = *payload.affine();
  std::string text = std::string(Name(layout.code_type)) + "/";
  if (layout.shape == AffineLayout::Shape::kScalar) text += "tensor";
  if (layout.shape == AffineLayout::Shape::kBlocked) {
    text += "blocks of " + std::to_string(layout.block_size) + " along ";
  }
  if (layout.shape != AffineLayout::Shape::kScalar) text += "axis " + std::to_string(layout.axis);
  text += "/" + std::string(Name(layout.scale_type));
  return text + (payload.zero_points.size != 0 ? " with zero points" : " without zero points");
}

bool HasFormat(const EncodedPayload& payload, const PageFormat& format) {
  const std::optional<PageFormat> own = FormatOf(payload);
  if (!own || !own->is_affine() || !format.is_affine()) return own == format;
  const int64_t most = format.scale() == ScaleKind::kChannel ? payload.dims[2] : payload.dims[3];
  const int64_t group = format.group() < most ? format.group() : 0;
  return own->type() == format.type() && own->scale() == format.scale() && own->group() == group &&
         (own->scale_type() == format.scale_type() || own->scale_type() == DType::kFloat32);
}

}  // namespace onnx_light
