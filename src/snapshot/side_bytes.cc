#include "snapshot/side_bytes.h"

#include <utility>

#include "cache/payload.h"
#include "quant/encoded_rows.h"

namespace onnx_light::snapshot {
namespace {

enum : size_t { kScales, kZeroPoints, kData };

}  // namespace

SideBytes::SideBytes(const Piece& piece, Side side) {
  const PagePayload& payload = piece.page().payload(side);
  if (const auto* dense = std::get_if<DensePayload>(&payload)) {
    AddDense(piece, side, *dense);
  } else {
    AddEncoded(piece, std::get<EncodedPayload>(payload));
  }
}

void SideBytes::AddCopy(size_t slot, SharedBytes bytes) {
  slots_[slot].push_back(bytes.span());
  copies_.push_back(std::move(bytes));
}

void SideBytes::AddDense(const Piece& piece, Side side, const DensePayload& payload) {
  const std::span<const std::byte> bytes = payload.bytes.span();
  const int64_t capacity = piece.page().capacity();
  if (piece.whole()) {
    slots_[kData].push_back(bytes);
    return;
  }
  if (IsEncoded(piece.page())) {  // the other side keeps the capacity
    const PlacedPage visible{piece.start(), piece.length, piece.placed->page};
    AddCopy(kData, DenseBytes(visible, side, capacity));
    return;
  }
  const CacheShape& shape = piece.page().shape();
  const int64_t row = shape.width(side) * ElementSize(payload.dtype);
  for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
    slots_[kData].push_back(
        bytes.subspan((head * capacity + piece.first_row) * row, piece.length * row));
  }
}

void SideBytes::AddEncoded(const Piece& piece, const EncodedPayload& payload) {
  if (piece.whole()) {
    slots_[kScales].push_back(payload.scales.span());
    slots_[kZeroPoints].push_back(payload.zero_points.span());
    slots_[kData].push_back(payload.codes.span());
    return;
  }
  EncodedPayload visible = WithoutRowsFrom(payload, piece.length);
  AddCopy(kScales, std::move(visible.scales));
  AddCopy(kZeroPoints, std::move(visible.zero_points));
  AddCopy(kData, std::move(visible.codes));
}

}  // namespace onnx_light::snapshot
