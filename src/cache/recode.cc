#include "cache/recode.h"

#include <cstring>
#include <initializer_list>
#include <utility>

#include "cache/payload.h"
#include "cache/stored_rows.h"
#include "check/pages.h"
#include "quant/encode.h"
#include "quant/given_parameters.h"

namespace onnx_light {
namespace {

bool Stays(const PagePayload& payload, const std::optional<PageFormat>& format) {
  if (!format) return true;
  const auto* encoded = std::get_if<EncodedPayload>(&payload);
  return encoded != nullptr ? HasFormat(*encoded, *format) : FormatOf(payload) == format;
}

// Rows in as many as a page has: the last one is repeated, which changes no range of values.
class PaddedRows {
 public:
  PaddedRows(const ArrayView& rows, int64_t capacity) : view_(rows) {
    if (rows.tokens() == capacity) return;
    auto shape = rows.shape;
    shape[2] = capacity;
    view_ = ContiguousView(nullptr, rows.dtype, shape);
    buffer_ = BufferRef::Allocate(shape[0] * view_.strides[0]);
    view_.data = buffer_.data();
    CopyTokens(rows, buffer_.mutable_data(), capacity);
    const int64_t row = view_.strides[2];
    for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
      std::byte* head = buffer_.mutable_data() + i * view_.strides[1];
      for (int64_t token = rows.tokens(); token < capacity; ++token) {
        std::memcpy(head + token * row, head + (rows.tokens() - 1) * row, row);
      }
    }
  }
  const ArrayView& view() const { return view_; }
  // What the rows fill; null where there were as many already.
  const BufferRef& buffer() const { return buffer_; }

 private:
  BufferRef buffer_;
  ArrayView view_;
};

// The bytes of rows: the buffer that they fill, if one of these is it, else a copy.
SharedBytes DenseBytesOf(const ArrayView& rows, int64_t size,
                         std::initializer_list<BufferRef> buffers) {
  for (const BufferRef& buffer : buffers) {
    if (buffer && buffer.data() == rows.data) return SharedBytes(buffer);
  }
  BufferRef copy = BufferRef::Allocate(size);
  CopyTokens(rows, copy.mutable_data(), rows.tokens());
  return SharedBytes(std::move(copy));
}

PagePayload RecodeSide(const PlacedPage& placed, Side side, const std::optional<PageFormat>& format,
                       int64_t capacity) {
  const PagePayload& payload = placed.page->payload(side);
  if (Stays(payload, format)) {
    const auto* dense = std::get_if<DensePayload>(&payload);
    if (dense == nullptr) return payload;
    return DensePayload{dense->dtype, DenseBytes(placed, side, capacity)};
  }
  const VisibleRows visible(placed, side);
  const PaddedRows rows(visible.view(), capacity);
  if (const auto dtype = format->dtype()) {
    const StoredRows stored(rows.view(), *dtype, side);
    const int64_t size = DenseSize(placed.page->shape(), side, capacity, *dtype, Name(side));
    return DensePayload{*dtype, DenseBytesOf(stored.view(), size,
                                             {stored.buffer(), rows.buffer(), visible.buffer()})};
  }
  return Encode(rows.view(), *format, Name(side));
}

PagePayload RecodeSideWith(const PlacedPage& placed, Side side,
                           const QuantizationParameters& parameters) {
  const PageFormat plain = PageFormat::Dense(DType::kFloat32);
  if (!parameters.code_type) return RecodeSide(placed, side, plain, placed.length);
  const VisibleRows rows(placed, side);
  return EncodeWithGiven(rows.view(), parameters, Name(side));
}

}  // namespace

PlacedPage RecodeWith(const PlacedPage& placed, const QuantizationParameters& key,
                      const QuantizationParameters& value) {
  PagePayload keys = RecodeSideWith(placed, Side::kKey, key);
  PagePayload values = RecodeSideWith(placed, Side::kValue, value);
  return {
      placed.start, placed.length,
      Page::Borrow(placed.page->shape(), placed.length, std::move(keys), std::move(values), "")};
}

PlacedPage Recode(const PlacedPage& placed, const std::optional<PageFormat>& key,
                  const std::optional<PageFormat>& value) {
  const Page& page = *placed.page;
  const bool key_stays = Stays(page.key(), key), value_stays = Stays(page.value(), value);
  if (key_stays && value_stays) return placed;
  // Encoded rows cannot be left out, so the other side has as many.
  const bool keeps_rows =
      (key_stays && !DenseDType(page.key())) || (value_stays && !DenseDType(page.value()));
  const int64_t capacity = keeps_rows ? page.capacity() : placed.length;
  PagePayload keys = RecodeSide(placed, Side::kKey, key, capacity);
  PagePayload values = RecodeSide(placed, Side::kValue, value, capacity);
  return {placed.start, placed.length,
          Page::Borrow(page.shape(), capacity, std::move(keys), std::move(values), "")};
}

}  // namespace onnx_light
