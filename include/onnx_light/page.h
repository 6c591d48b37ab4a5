// A page: the keys and values of up to `capacity` consecutive tokens of one attention layer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "onnx_light/bytes.h"
#include "onnx_light/dtype.h"
#include "onnx_light/encoded_payload.h"
#include "onnx_light/export.h"

namespace onnx_light {

enum class Side : uint8_t { kKey, kValue };

// "key" or "value".
ONNX_LIGHT_EXPORT const char* Name(Side side);

// What all pages of a cache have in common. All zero: not known yet.
struct CacheShape {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t key_width = 0;
  int64_t value_width = 0;

  int64_t width(Side side) const { return side == Side::kKey ? key_width : value_width; }
  bool operator==(const CacheShape&) const = default;
};

// Plain numbers, [batch, heads, capacity, width] in C order. Borrowed bytes may have any alignment.
struct DensePayload {
  DType dtype = DType::kFloat32;
  SharedBytes bytes;
};

// The keys or the values of a page, each in the form it chose for itself.
using PagePayload = std::variant<DensePayload, EncodedPayload>;

// The dtype of a dense payload; nothing where it is encoded.
inline std::optional<DType> DenseDType(const PagePayload& payload) {
  const auto* dense = std::get_if<DensePayload>(&payload);
  return dense != nullptr ? std::optional(dense->dtype) : std::nullopt;
}

// Where a payload has the form of a PageFormat, that; nothing for encodings that no policy makes.
ONNX_LIGHT_EXPORT std::optional<PageFormat> FormatOf(const PagePayload& payload);

// The bytes of the whole payload, every row of its capacity, scales and the like included.
ONNX_LIGHT_EXPORT int64_t PayloadSize(const PagePayload& payload);

// A 64-bit checksum that is computed at most a few times and then kept. It covers a page as a
// message, where start and length are part of the bytes, so it is kept for one pair of them: the
// first that asks. Any thread may call anything.
class ChecksumSlot {
 public:
  std::optional<uint64_t> Get(int64_t start, int64_t length) const {
    if (state_.load(std::memory_order_acquire) != kFull) return std::nullopt;
    if (start != start_ || length != length_) return std::nullopt;
    return checksum_;
  }
  // Does nothing where a checksum is kept already.
  void Set(int64_t start, int64_t length, uint64_t checksum) {
    int expected = kEmpty;
    if (!state_.compare_exchange_strong(expected, kWriting, std::memory_order_relaxed)) return;
    start_ = start;
    length_ = length;
    checksum_ = checksum;
    state_.store(kFull, std::memory_order_release);
  }

 private:
  enum : int { kEmpty, kWriting, kFull };
  std::atomic<int> state_{kEmpty};
  int64_t start_ = 0;
  int64_t length_ = 0;
  uint64_t checksum_ = 0;
};

// The storage of a page. It does not know its place: where its rows stand, and how many of them
// count, is said by the PlacedPage that refers to it, so pages are shared whatever happens to the
// cache around them. Rows that some PlacedPage covers never change.
class EncodedForm;  // src/cache/encoded_form.h

class ONNX_LIGHT_EXPORT Page {
  // What Borrow() and OpenPage hand to the constructor, and nobody else can.
  class Maker {
    friend class Page;
    friend class OpenPage;
    Maker() = default;
  };

 public:
  // A page of finished payloads that lie anywhere: a message, a mapped file. It never grows.
  // ValueError where a dim or the capacity is not positive, or an encoded payload has other dims
  // (`cache.shape`), or a dense one does not have the size that follows (`cache.payload_size`);
  // `path` says where, "blocks[3]". REQUIRES: the parts of an encoded payload fit each other.
  static std::shared_ptr<const Page> Borrow(const CacheShape& shape, int64_t capacity,
                                            PagePayload key, PagePayload value,
                                            const std::string& path);

  Page(Maker, const CacheShape& shape, int64_t capacity, int64_t committed, PagePayload key,
       PagePayload value);
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  const CacheShape& shape() const { return shape_; }
  int64_t capacity() const { return capacity_; }
  const PagePayload& key() const { return key_; }
  const PagePayload& value() const { return value_; }
  const PagePayload& payload(Side side) const { return side == Side::kKey ? key_ : value_; }

  // For finished pages; see ChecksumSlot. Not part of the page's value.
  ChecksumSlot& checksum() const { return checksum_; }

  // Where the encoded form of a page that waits to be encoded is kept; null for pages that were not
  // made by an append. Not part of the page's value.
  EncodedForm* encoded_form() const { return encoded_form_.get(); }

 private:
  friend class OpenPage;  // src/cache/open_page.h: makes pages that grow, and grows them

  const CacheShape shape_;
  const int64_t capacity_;
  const PagePayload key_, value_;
  // Where a page that grows is written; null otherwise.
  std::byte* key_rows_ = nullptr;
  std::byte* value_rows_ = nullptr;
  // Rows that somebody has written or is about to write; never decreases. The whole capacity where
  // the page does not grow.
  mutable std::atomic<int64_t> committed_;
  mutable ChecksumSlot checksum_;
  std::shared_ptr<EncodedForm> encoded_form_;
};

// The first `length` rows of a page as the positions [start, start + length) of a cache. Rows from
// `length` on must not be touched: they are not initialised, and another thread may be writing
// them.
struct PlacedPage {
  int64_t start = 0;
  int64_t length = 0;
  std::shared_ptr<const Page> page;

  int64_t end() const { return start + length; }
};

}  // namespace onnx_light
