#include "snapshot/tokens.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "snapshot/failure.h"
#include "snapshot/fields.h"

namespace onnx_light::snapshot {
namespace {

constexpr uint32_t kDims = 1;

// The dims of the tensor in the extent, as far as they can be read: the caller compares.
std::vector<int64_t> DimsOf(std::span<const std::byte> extent) {
  std::vector<int64_t> dims;
  Field tensor, field;
  if (!FieldReader(extent).Next(&tensor)) return dims;
  FieldReader fields(tensor.bytes);
  while (dims.size() < 3 && fields.Next(&field) && field.number == kDims) {
    dims.push_back(static_cast<int64_t>(std::min<uint64_t>(field.value, kMaxPadded)));
  }
  return dims;
}

int64_t Rows(const TokenIds& tokens) { return std::max<int64_t>(tokens.batch, 1); }

}  // namespace

TokenIds ReadRecordTokens(const SharedBytes& source, const Record& record) {
  const Extent& extent = *record.index.Find(kTokensExtent);
  CheckExtent(record, extent);
  const auto bytes = record.Part(extent);
  const std::vector<int64_t> dims = DimsOf(bytes);
  const int64_t length = record.tokens_after() - record.tokens_before();
  const int64_t batch = dims.size() == 2 ? dims[0] : 0;
  const auto header = TokensHeader(extent.offset, batch, length);
  if (!header || (dims.size() == 2 && batch == 0) || bytes.size() < header->size() ||
      std::memcmp(bytes.data(), header->data(), header->size()) != 0 ||
      bytes.size() - header->size() !=
          static_cast<uint64_t>(std::max<int64_t>(batch, 1) * length * 8)) {
    FailCorrupt(record.place() + ".tokens", record.frame.offset + extent.offset,
                "no int64 ids of the record's " + std::to_string(length) + " tokens");
  }
  const uint64_t offset = record.frame.offset + extent.offset + header->size();
  return {batch, length, source.Slice(offset, bytes.size() - header->size())};
}

TokenIds ReadTokens(const SharedBytes& source, const std::vector<Record>& records,
                    const std::vector<TokenSpan>& spans) {
  std::vector<TokenIds> parts;
  int64_t length = 0;
  for (const TokenSpan& span : spans) {
    const Record& record = records[span.record];
    TokenIds part = ReadRecordTokens(source, record);
    if (!parts.empty() && part.batch != parts.front().batch) {
      FailCorrupt(record.place() + ".tokens",
                  record.frame.offset + record.index.Find(kTokensExtent)->offset,
                  "ids of another batch than in the records before");
    }
    parts.push_back(SliceTokens(part, 0, span.last - span.first));
    length += span.last - span.first;
  }
  if (parts.size() == 1) return parts.front();
  TokenIds all{parts.front().batch, length, {}};
  BufferRef buffer = BufferRef::Allocate(Rows(all) * length * 8);
  std::byte* target = buffer.mutable_data();
  for (int64_t row = 0; row < Rows(all); ++row) {
    for (const TokenIds& part : parts) {
      if (part.length == 0) continue;
      std::memcpy(target, part.ids.data + row * part.length * 8, part.length * 8);
      target += part.length * 8;
    }
  }
  all.ids = SharedBytes(std::move(buffer));
  return all;
}

TokenIds SliceTokens(const TokenIds& tokens, int64_t first, int64_t last) {
  const int64_t count = last - first;
  if (count == tokens.length) return tokens;
  if (tokens.batch <= 1) return {tokens.batch, count, tokens.ids.Slice(first * 8, count * 8)};
  TokenIds slice{tokens.batch, count, {}};
  BufferRef buffer = BufferRef::Allocate(tokens.batch * count * 8);
  for (int64_t row = 0; row < tokens.batch && count != 0; ++row) {
    std::memcpy(buffer.mutable_data() + row * count * 8,
                tokens.ids.data + (row * tokens.length + first) * 8, count * 8);
  }
  slice.ids = SharedBytes(std::move(buffer));
  return slice;
}

}  // namespace onnx_light::snapshot
