// Bytes from many places as few system calls: small ones are gathered, large ones go out from where
// they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace onnx_light::snapshot {

class PartWriter {
 public:
  using Parts = std::span<const std::span<const std::byte>>;

  // `sink` takes the bytes in order, some parts at a time.
  explicit PartWriter(std::function<void(Parts)> sink) : sink_(std::move(sink)) {}
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  // REQUIRES: the bytes stay until the next Flush.
  void Write(std::span<const std::byte> bytes) {
    if (bytes.size() < kSmall) return Copy(bytes);
    parts_.push_back(bytes);
    pending_ += bytes.size();
    FlushIfFull();
  }

  // The bytes may change afterwards. Meant for few: more than are gathered go out at once.
  void Copy(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    if (bytes.size() > kStagingSize - staged_) Flush();
    if (bytes.size() > kStagingSize) return sink_({&bytes, 1});
    std::byte* target = staging_.get() + staged_;
    std::memcpy(target, bytes.data(), bytes.size());
    staged_ += bytes.size();
    pending_ += bytes.size();
    if (!parts_.empty() && parts_.back().data() + parts_.back().size() == target) {
      parts_.back() = {parts_.back().data(), parts_.back().size() + bytes.size()};
    } else {
      parts_.emplace_back(target, bytes.size());
    }
    FlushIfFull();
  }

  void Flush() {
    if (!parts_.empty()) sink_(parts_);
    parts_.clear();
    staged_ = pending_ = 0;
  }

 private:
  static constexpr size_t kSmall = 1024;
  static constexpr size_t kStagingSize = 256 * 1024;
  static constexpr size_t kMaxParts = 1000;  // IOV_MAX is 1024
  // Little enough that a payload is still in the cache when the system copies it.
  static constexpr size_t kMaxPending = 1024 * 1024;

  void FlushIfFull() {
    if (parts_.size() >= kMaxParts || pending_ >= kMaxPending) Flush();
  }

  const std::function<void(Parts)> sink_;
  const std::unique_ptr<std::byte[]> staging_{new std::byte[kStagingSize]};
  std::vector<std::span<const std::byte>> parts_;
  size_t staged_ = 0;
  size_t pending_ = 0;
};

inline std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace onnx_light::snapshot
