#include "wire/encoder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/chunk_pool.h"
#include "onnx_light/errors.h"

namespace onnx_light {

[[gnu::cold]] void ThrowTooDeep(const FieldInfo& field) {
  throw ValueError("message.depth", field.name,
                   "more than " + std::to_string(kMaxDepth) + " levels of messages");
}

std::vector<Encoder::Run> Encoder::Encode(const MessageInfo& info, const Message& message) {
  uint8_t* const p = info.write(*this, Resolve(message), NextPiece(0, nullptr), 0);
  FinishRun(p);
  sizes_.proto_size = Written(p) - sizes_.small_data_size - sizes_.big_data_size;
  std::reverse(runs_.begin(), runs_.end());
  return std::move(runs_);
}

[[gnu::cold]] uint8_t* Encoder::NextPiece(size_t size, uint8_t* p) {
  FinishRun(p);
  const uint64_t written = Written(p);
  const uint64_t wanted = std::max<uint64_t>(size + kSlack, std::max(kFirstPiece, written));
  uint64_t capacity = wanted;
  uint8_t* begin = nullptr;
  if (wanted < kPooledChunkSize / 2) {
    piece_ = BufferRef::Allocate(wanted);
    begin = reinterpret_cast<uint8_t*>(piece_.mutable_data());
  } else {
    void* chunk = TakeChunk();
    capacity = kPooledChunkSize;
    piece_ = BufferRef::Wrap(chunk, capacity, [chunk] { GiveChunk(chunk); });
    begin = static_cast<uint8_t*>(chunk);
  }
  limit_ = begin + kSlack;
  end_ = begin + capacity;
  origin_ = written + reinterpret_cast<uintptr_t>(end_);
  return end_;
}

void Encoder::FinishRun(uint8_t* p) {
  if (p == end_) return;
  runs_.push_back({{reinterpret_cast<const std::byte*>(p), static_cast<size_t>(end_ - p)}, piece_});
  end_ = p;
}

void Encoder::AddRun(Run run, uint8_t* p) {
  FinishRun(p);
  origin_ += run.bytes.size();
  runs_.push_back(std::move(run));
}

uint8_t* Encoder::WriteBytes(std::string_view bytes, uint8_t* p) {
  if (bytes.size() >= String::kPayloadSize) {
    AddRun({std::as_bytes(std::span(bytes)), {}}, p);
    return p;
  }
  if (p - limit_ < static_cast<ptrdiff_t>(bytes.size())) p = NextPiece(bytes.size(), p);
  p -= bytes.size();
  std::memcpy(p, bytes.data(), bytes.size());
  return p;
}

uint8_t* Encoder::WritePayload(const String& string, uint8_t* p) {
  SharedBytes shared = string.Shared();
  shared_size_ += shared.size;
  AddRun({shared.span(), std::move(shared.owner)}, p);
  return p;
}

uint8_t* Encoder::PutLongVarint(uint64_t value, uint8_t* p) {
  p -= VarintSize(value);
  onnx_light::WriteVarint(value, p);
  return p;
}

}  // namespace onnx_light
