#include "cache/payload.h"

#include <cstring>
#include <optional>

#include "base/convert.h"
#include "base/math.h"
#include "check/pages.h"
#include "onnx_light/errors.h"
#include "quant/decode.h"
#include "quant/encoded_rows.h"

namespace onnx_light {
namespace {

// Elements one by one, for arrays whose rows are not contiguous.
template <typename T>
void CopyElements(const std::byte* source, int64_t token_stride, int64_t element_stride,
                  int64_t tokens, int64_t width, std::byte* target) {
  for (int64_t token = 0; token < tokens; ++token) {
    const std::byte* element = source + token * token_stride;
    for (int64_t i = 0; i < width; ++i, element += element_stride, target += sizeof(T)) {
      std::memcpy(target, element, sizeof(T));
    }
  }
}

// The tokens of one batch entry and head.
void CopyHead(const ArrayView& source, const std::byte* data, std::byte* target) {
  const int64_t tokens = source.tokens(), width = source.width();
  const int64_t item = ElementSize(source.dtype), row = width * item;
  const int64_t token_stride = source.strides[2], element_stride = source.strides[3];
  if (width == 1 || element_stride == item) {
    if (tokens == 1 || token_stride == row) {
      std::memcpy(target, data, tokens * row);
    } else {
      for (int64_t i = 0; i < tokens; ++i) {
        std::memcpy(target + i * row, data + i * token_stride, row);
      }
    }
  } else if (item == 4) {
    CopyElements<uint32_t>(data, token_stride, element_stride, tokens, width, target);
  } else if (item == 2) {
    CopyElements<uint16_t>(data, token_stride, element_stride, tokens, width, target);
  } else {
    CopyElements<uint8_t>(data, token_stride, element_stride, tokens, width, target);
  }
}

// The first byte of a row. REQUIRES: the payload has the size that its page's dims say.
const std::byte* RowData(const PlacedPage& placed, const DensePayload& payload, Side side,
                         int64_t batch, int64_t head, int64_t row) {
  const Page& page = *placed.page;
  const int64_t rows = (batch * page.shape().heads + head) * page.capacity() + row;
  return payload.bytes.data + rows * page.shape().width(side) * ElementSize(payload.dtype);
}

}  // namespace

const char* Name(Side side) { return side == Side::kKey ? "key" : "value"; }

ArrayView ContiguousView(const void* data, DType dtype, const std::array<int64_t, 4>& shape) {
  for (int64_t dim : shape) {
    if (dim < 0) throw ValueError("cache.shape", "", "negative dim in shape " + ShapeText(shape));
  }
  const int64_t item = ElementSize(dtype);
  const auto row = CheckedProduct({item, shape[3]});
  const auto head = CheckedProduct({item, shape[3], shape[2]});
  const auto batch = CheckedProduct({item, shape[3], shape[2], shape[1]});
  if (!row || !head || !batch || !CheckedProduct({item, shape[3], shape[2], shape[1], shape[0]})) {
    throw ValueError("cache.too_large", "",
                     "the size in bytes of " + ShapeText(shape) + " exceeds 2^63 - 1");
  }
  return {static_cast<const std::byte*>(data), dtype, shape, {*batch, *head, *row, item}};
}

std::optional<PageFormat> FormatOf(const PagePayload& payload) {
  if (const auto* encoded = std::get_if<EncodedPayload>(&payload)) return FormatOf(*encoded);
  return PageFormat::Dense(std::get<DensePayload>(payload).dtype);
}

int64_t PayloadSize(const PagePayload& payload) {
  if (const auto* encoded = std::get_if<EncodedPayload>(&payload)) {
    return static_cast<int64_t>(encoded->nbytes());
  }
  return static_cast<int64_t>(std::get<DensePayload>(payload).bytes.size);
}

double VisibleBits(const PlacedPage& placed, Side side) {
  const PagePayload& payload = placed.page->payload(side);
  const auto* dense = std::get_if<DensePayload>(&payload);
  if (dense == nullptr) return 8.0 * static_cast<double>(PayloadSize(payload));
  const CacheShape& shape = placed.page->shape();
  return 8.0 * static_cast<double>(DenseSize(shape, side, placed.length, dense->dtype, Name(side)));
}

ArrayView DenseRows(const PlacedPage& placed, Side side) {
  const Page& page = *placed.page;
  const auto& payload = std::get<DensePayload>(page.payload(side));
  const CacheShape& shape = page.shape();
  const int64_t item = ElementSize(payload.dtype), width = shape.width(side);
  const int64_t head = page.capacity() * width * item;
  return {payload.bytes.data,
          payload.dtype,
          {shape.batch, shape.heads, placed.length, width},
          {shape.heads * head, head, width * item, item}};
}

VisibleRows::VisibleRows(const PlacedPage& placed, Side side) {
  const Page& page = *placed.page;
  if (std::holds_alternative<DensePayload>(page.payload(side))) {
    view_ = DenseRows(placed, side);
    return;
  }
  CheckReadable(placed, side);
  const CacheShape& shape = page.shape();
  view_ = ContiguousView(nullptr, DType::kFloat32,
                         {shape.batch, shape.heads, placed.length, shape.width(side)});
  buffer_ = BufferRef::Allocate(shape.batch * view_.strides[0]);
  view_.data = buffer_.data();
  std::byte* target = buffer_.mutable_data();
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.heads; ++head, target += view_.strides[1]) {
      ReadRows(placed, side, batch, head, 0, placed.length, DType::kFloat32, target);
    }
  }
}

SharedBytes DenseBytes(const PlacedPage& placed, Side side, int64_t capacity) {
  const Page& page = *placed.page;
  const auto& payload = std::get<DensePayload>(page.payload(side));
  if (placed.length == page.capacity() && capacity == placed.length) return payload.bytes;
  BufferRef buffer =
      BufferRef::Allocate(DenseSize(page.shape(), side, capacity, payload.dtype, Name(side)));
  if (capacity != placed.length) {
    std::memset(buffer.mutable_data(), 0, static_cast<size_t>(buffer.size()));
  }
  CopyTokens(DenseRows(placed, side), buffer.mutable_data(), capacity);
  return SharedBytes(std::move(buffer));
}

int64_t WrittenCapacity(const PlacedPage& placed) {
  const Page& page = *placed.page;
  const bool is_dense = DenseDType(page.key()) && DenseDType(page.value());
  return is_dense ? placed.length : page.capacity();
}

void CopyTokens(const ArrayView& source, std::byte* target, int64_t capacity) {
  if (source.tokens() == 0) return;
  const int64_t head_size = capacity * source.width() * ElementSize(source.dtype);
  for (int64_t batch = 0; batch < source.batch(); ++batch) {
    for (int64_t head = 0; head < source.heads(); ++head) {
      const std::byte* data = source.data + batch * source.strides[0] + head * source.strides[1];
      CopyHead(source, data, target);
      target += head_size;
    }
  }
}

void ReadRows(const PlacedPage& placed, Side side, int64_t batch, int64_t head, int64_t first,
              int64_t count, DType dtype, void* target) {
  if (const auto* encoded = std::get_if<EncodedPayload>(&placed.page->payload(side))) {
    DecodeRows(*encoded, batch, head, first, count, dtype, target);
    return;
  }
  const auto& payload = std::get<DensePayload>(placed.page->payload(side));
  const std::byte* rows = RowData(placed, payload, side, batch, head, first);
  ConvertElements(payload.dtype, rows, dtype, target, count * placed.page->shape().width(side));
}

void CheckReadable(const PlacedPage& placed, Side side) {
  const auto* encoded = std::get_if<EncodedPayload>(&placed.page->payload(side));
  if (encoded != nullptr) CheckDecodable(*encoded, Name(side));
}

bool EqualRows(const PlacedPage& a, const PlacedPage& b, Side side) {
  const PagePayload &first = a.page->payload(side), &second = b.page->payload(side);
  if (first.index() != second.index()) return false;
  if (const auto* encoded = std::get_if<EncodedPayload>(&first)) {
    return EqualEncodedRows(*encoded, std::get<EncodedPayload>(second), a.length);
  }
  const auto& left = std::get<DensePayload>(a.page->payload(side));
  const auto& right = std::get<DensePayload>(b.page->payload(side));
  if (left.dtype != right.dtype) return false;
  const CacheShape& shape = a.page->shape();
  const size_t size = a.length * shape.width(side) * ElementSize(left.dtype);
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      if (std::memcmp(RowData(a, left, side, batch, head, 0),
                      RowData(b, right, side, batch, head, 0), size) != 0) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace onnx_light
