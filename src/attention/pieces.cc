#include "attention/pieces.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/convert.h"
#include "cache/payload.h"
#include "onnx_light/encoded_payload.h"
#include "quant/packing.h"

namespace onnx_light {
namespace {

constexpr int Index(RowFormat format) { return static_cast<int>(format); }

RowFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return RowFormat::kF32;
    case DType::kFloat16:
      return RowFormat::kF16;
    case DType::kBFloat16:
      return RowFormat::kBF16;
    case DType::kFloat8E4M3FN:
      return RowFormat::kF8E4M3FN;
    case DType::kFloat8E5M2:
      return RowFormat::kF8E5M2;
  }
  return RowFormat::kUnknown;
}

// The format of codes whose scales, and zero points if there are any, belong to channels.
RowFormat ByChannel(PageType type, bool has_zero_points) {
  switch (type) {
    case PageType::kInt8:
      return has_zero_points ? RowFormat::kUnknown : RowFormat::kI8;
    case PageType::kUInt8:
      return has_zero_points ? RowFormat::kU8Lane : RowFormat::kU8;
    case PageType::kInt4:
      return has_zero_points ? RowFormat::kUnknown : RowFormat::kI4;
    case PageType::kUInt4:
      return has_zero_points ? RowFormat::kU4Lane : RowFormat::kU4;
    default:
      return RowFormat::kUnknown;
  }
}

// The same where each row has its own, for groups of channels.
RowFormat ByGroup(PageType type) {
  switch (type) {
    case PageType::kInt8:
      return RowFormat::kI8Group;
    case PageType::kUInt8:
      return RowFormat::kU8Group;
    case PageType::kInt4:
      return RowFormat::kI4Group;
    case PageType::kUInt4:
      return RowFormat::kU4Group;
    default:
      return RowFormat::kUnknown;
  }
}

// Asks for the bytes [begin, end) of an array.
void Fetch(const std::byte* array, int64_t begin, int64_t end) {
  for (; begin < end; begin += 64) __builtin_prefetch(array + begin, 0, 2);
}

// One number for each cell to one for each channel.
const float* Spread(float* numbers, int64_t cells, int64_t cell_width, int64_t width) {
  if (cells == width) return numbers;
  for (int64_t i = width - 1; i >= 0; --i) numbers[i] = numbers[i / cell_width];
  return numbers;
}

}  // namespace

PieceReader::PieceReader(const PagedCache& cache, Side side, int64_t batch,
                         const AttentionKernels& kernels, const PieceScratch& scratch)
    : cache_(cache),
      side_(side),
      batch_(batch),
      width_(cache.shape().width(side)),
      kernels_(kernels),
      scratch_(scratch),
      pages_(cache.pages()) {}

void PieceReader::MoveTo(int64_t position) {
  if (placed_ != nullptr && placed_->start <= position && position < placed_->end()) return;
  if (placed_ != nullptr && position == placed_->end()) {
    ++index_;
  } else {
    index_ = cache_.FindPage(position);
  }
  placed_ = &pages_[index_];
  const auto* encoded = std::get_if<EncodedPayload>(&placed_->page->payload(side_));
  if (encoded == nullptr || encoded->affine() == nullptr) return;
  cell_ = CellDims(*encoded->affine(), encoded->dims);
  counts_ = CellCounts(*encoded->affine(), encoded->dims);
}

int64_t PieceReader::CellOf(int64_t row) const {
  return ((batch_ / cell_[0] * counts_[1] + head_ / cell_[1]) * counts_[2] + row / cell_[2]) *
         counts_[3];
}

void PieceReader::FetchParameters(const EncodedPayload& payload, int64_t row, int64_t count) const {
  const AffineLayout* layout = payload.affine();
  if (layout == nullptr) return;
  const int64_t begin = CellOf(row), end = CellOf(row + count - 1) + counts_[3];
  const int64_t item = ElementSize(layout->scale_type), bits = CodeBits(layout->code_type);
  Fetch(payload.scales.data, begin * item, end * item);
  if (payload.zero_points.size == 0) return;
  Fetch(payload.zero_points.data, begin * bits / 8, (end * bits + 7) / 8);
}

int64_t PieceReader::PageEnd(int64_t position) {
  MoveTo(position);
  return placed_->end();
}

Piece PieceReader::Next(int64_t head, int64_t position, int64_t end, int64_t offset) {
  MoveTo(position);
  head_ = head;
  const int64_t row = position - placed_->start;
  const int64_t count = std::min(end, placed_->end()) - position;
  const PagePayload& payload = placed_->page->payload(side_);
  Piece piece;
  if (const auto* dense = std::get_if<DensePayload>(&payload)) {
    piece = Dense(*dense, row, count);
  } else {
    piece = Codes(std::get<EncodedPayload>(payload), row, count);
  }
  if (piece.tile.format == RowFormat::kUnknown) Widened(piece, row, offset);
  return piece;
}

BytesAhead PieceReader::Peek(int64_t head, int64_t position, int64_t end) {
  if (position >= end) return {};
  MoveTo(position);
  head_ = head;
  const Page& page = *placed_->page;
  const PagePayload& payload = page.payload(side_);
  const int64_t first = position - placed_->start, count = std::min(end, placed_->end()) - position;
  const auto* encoded = std::get_if<EncodedPayload>(&payload);
  if (encoded != nullptr) FetchParameters(*encoded, first, count);
  const SharedBytes& bytes =
      encoded != nullptr ? encoded->codes : std::get<DensePayload>(payload).bytes;
  const int64_t rows = page.shape().batch * page.shape().heads * page.capacity();
  const int64_t row_size = static_cast<int64_t>(bytes.size) / rows;
  const int64_t row = (batch_ * page.shape().heads + head_) * page.capacity() + first;
  return {bytes.data + row * row_size, count * row_size};
}

bool PieceReader::Reads(RowFormat format, int64_t width) const {
  return format != RowFormat::kUnknown && kernels_.scores[Index(format)] != nullptr &&
         width % kernels_.step[Index(format)] == 0 && width % kWidthPadding == 0;
}

// Rows that no kernel reads, as floats in the scratch.
void PieceReader::Widened(Piece& piece, int64_t row, int64_t offset) const {
  const int64_t stride = PaddedFloats(width_);
  float* target = scratch_.rows + offset * stride;
  ReadRows(*placed_, side_, batch_, head_, row, piece.tokens, DType::kFloat32, target);
  if (stride != width_) {  // from the last row on, for rows move to higher places
    for (int64_t i = piece.tokens - 1; i >= 0; --i) {
      std::copy_backward(target + i * width_, target + (i + 1) * width_,
                         target + i * stride + width_);
      std::fill(target + i * stride + width_, target + (i + 1) * stride, 0.0f);
    }
  }
  piece.tile = RowTile();
  piece.tile.data = reinterpret_cast<const std::byte*>(target);
  piece.tile.row_size = stride * static_cast<int64_t>(sizeof(float));
  piece.tile.width = stride;
}

Piece PieceReader::Dense(const DensePayload& payload, int64_t row, int64_t count) const {
  const Page& page = *placed_->page;
  Piece piece;
  piece.tokens = count;
  RowTile& tile = piece.tile;
  tile.format = FormatOf(payload.dtype);
  if (!Reads(tile.format, width_)) tile.format = RowFormat::kUnknown;
  tile.width = width_;
  tile.row_size = width_ * ElementSize(payload.dtype);
  const int64_t first = (batch_ * page.shape().heads + head_) * page.capacity() + row;
  tile.data = payload.bytes.data + first * tile.row_size;
  return piece;
}

Piece PieceReader::Records(const EncodedPayload& payload, PageType type, int64_t row,
                           int64_t count) const {
  Piece piece;
  piece.tokens = count;
  RowTile& tile = piece.tile;
  tile.format = type == PageType::kQ8_0 ? RowFormat::kQ8_0 : RowFormat::kQ4_0;
  if (!Reads(tile.format, width_)) tile.format = RowFormat::kUnknown;
  tile.width = width_;
  tile.row_size = width_ / kRecordValues * RecordSize(type);
  const auto& dims = payload.dims;
  tile.data = payload.codes.data + ((batch_ * dims[1] + head_) * dims[2] + row) * tile.row_size;
  return piece;
}

Piece PieceReader::Codes(const EncodedPayload& payload, int64_t row, int64_t count) const {
  if (const auto* records = std::get_if<RecordLayout>(&payload.layout)) {
    return Records(payload, records->type, row, count);
  }
  return cell_[2] == 1 ? CodesByRow(payload, row, count) : CodesByChannel(payload, row, count);
}

// The codes without their meaning.
Piece PieceReader::CodeRows(const EncodedPayload& payload, int64_t row, int64_t count) const {
  const auto& dims = payload.dims;
  Piece piece;
  piece.tokens = count;
  piece.tile.width = width_;
  piece.tile.row_size = width_ * CodeBits(payload.affine()->code_type) / 8;
  piece.tile.data =
      payload.codes.data + ((batch_ * dims[1] + head_) * dims[2] + row) * piece.tile.row_size;
  return piece;
}

Piece PieceReader::CodesByChannel(const EncodedPayload& payload, int64_t row, int64_t count) const {
  const AffineLayout& layout = *payload.affine();
  const bool has_zero_points = payload.zero_points.size != 0;
  // Only as far as the scales reach.
  count = std::min(count, (row / cell_[2] + 1) * cell_[2] - row);
  Piece piece = CodeRows(payload, row, count);
  RowTile& tile = piece.tile;
  tile.format = ByChannel(layout.code_type, has_zero_points);
  if (!Reads(tile.format, width_)) {
    tile.format = RowFormat::kUnknown;
    return piece;
  }
  const int64_t first = CellOf(row);
  Floats(layout.scale_type, payload.scales.data, first, counts_[3], scratch_.channel_scale);
  tile.channel_scale = Spread(scratch_.channel_scale, counts_[3], cell_[3], width_);
  if (has_zero_points) {
    float* zero = scratch_.channel_zero;
    CodeFloats(layout.code_type, payload.zero_points.data, first, counts_[3], zero);
    Spread(zero, counts_[3], cell_[3], width_);
    if (kernels_.pairs[Index(tile.format)]) kernels_.pair(zero, width_, zero);
    tile.zero = zero;
  }
  return piece;
}

Piece PieceReader::CodesByRow(const EncodedPayload& payload, int64_t row, int64_t count) const {
  const AffineLayout& layout = *payload.affine();
  const bool has_zero_points = payload.zero_points.size != 0;
  const int64_t first = CellOf(row);
  Piece piece = CodeRows(payload, row, count);
  RowTile& tile = piece.tile;
  if (counts_[3] == 1 && !has_zero_points) {
    tile.format = ByChannel(layout.code_type, false);
    if (!Reads(tile.format, width_)) {
      tile.format = RowFormat::kUnknown;
      return piece;
    }
    Floats(layout.scale_type, payload.scales.data, first, count, scratch_.row_scale);
    tile.row_scale = scratch_.row_scale;
    return piece;
  }
  tile.format = ByGroup(layout.code_type);
  const int64_t group_width = counts_[3] == 1 ? width_ : cell_[3];
  if (width_ % group_width != 0 || !Reads(tile.format, group_width) ||
      !Reads(tile.format, width_)) {
    tile.format = RowFormat::kUnknown;
    return piece;
  }
  tile.groups = counts_[3];
  const int64_t cells = count * counts_[3];
  Floats(layout.scale_type, payload.scales.data, first, cells, scratch_.group_scale);
  tile.group_scale = scratch_.group_scale;
  if (has_zero_points) {
    CodeFloats(layout.code_type, payload.zero_points.data, first, cells, scratch_.group_zero);
    tile.zero = scratch_.group_zero;
  }
  return piece;
}

void PieceReader::Floats(DType dtype, const std::byte* array, int64_t first, int64_t count,
                         float* target) const {
  const RowFormat format = FormatOf(dtype);
  RowTile tile;
  tile.format = format;
  tile.data = array + first * ElementSize(dtype);
  if (kernels_.widen[Index(format)] != nullptr) {
    tile.width = count - count % kernels_.step[Index(format)];
    kernels_.widen[Index(format)](tile, 1, target, tile.width);
  }
  ConvertElements(dtype, tile.data + tile.width * ElementSize(dtype), DType::kFloat32,
                  target + tile.width, count - tile.width);
}

void PieceReader::CodeFloats(PageType type, const std::byte* array, int64_t first, int64_t count,
                             float* target) const {
  const RowFormat format = ByChannel(type, false);
  const int bits = CodeBits(type);
  int64_t done = 0;
  if (format != RowFormat::kUnknown && kernels_.widen[Index(format)] != nullptr &&
      first * bits % 8 == 0) {
    RowTile tile;
    tile.format = format;
    tile.data = array + first * bits / 8;
    tile.width = done = count - count % kernels_.step[Index(format)];
    kernels_.widen[Index(format)](tile, 1, target, tile.width);
  }
  std::array<uint8_t, 64> codes;
  while (done < count) {
    const int64_t some = std::min<int64_t>(count - done, codes.size());
    UnpackCodes(array, type, first + done, some, codes.data());
    for (int64_t i = 0; i < some; ++i) {
      target[done + i] = IsSigned(type) ? static_cast<float>(static_cast<int8_t>(codes[i]))
                                        : static_cast<float>(codes[i]);
    }
    done += some;
  }
}

}  // namespace onnx_light
