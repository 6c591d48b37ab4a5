#include "onnx_light/page.h"

#include <utility>

#include "cache/encoded_form.h"
#include "cache/open_page.h"
#include "cache/payload.h"
#include "check/pages.h"
#include "onnx_light/errors.h"

namespace onnx_light {
Page::Page(Maker, const CacheShape& shape, int64_t capacity, int64_t committed, PagePayload key,
           PagePayload value)
    : shape_(shape),
      capacity_(capacity),
      key_(std::move(key)),
      value_(std::move(value)),
      committed_(committed) {}

std::shared_ptr<const Page> Page::Borrow(const CacheShape& shape, int64_t capacity, PagePayload key,
                                         PagePayload value, const std::string& path) {
  CheckPositive(shape, capacity, path);
  CheckPayload(shape, capacity, Side::kKey, key, path);
  CheckPayload(shape, capacity, Side::kValue, value, path);
  return std::make_shared<Page>(Maker(), shape, capacity, capacity, std::move(key),
                                std::move(value));
}

std::shared_ptr<const Page> OpenPage::Make(const CacheShape& shape, int64_t capacity,
                                           DType key_dtype, DType value_dtype, int64_t committed) {
  BufferRef key = BufferRef::Allocate(DenseSize(shape, Side::kKey, capacity, key_dtype, "key"));
  BufferRef value =
      BufferRef::Allocate(DenseSize(shape, Side::kValue, capacity, value_dtype, "value"));
  std::byte* key_rows = key.mutable_data();
  std::byte* value_rows = value.mutable_data();
  auto page = std::make_shared<Page>(Page::Maker(), shape, capacity, committed,
                                     DensePayload{key_dtype, SharedBytes(std::move(key))},
                                     DensePayload{value_dtype, SharedBytes(std::move(value))});
  page->key_rows_ = key_rows;
  page->value_rows_ = value_rows;
  page->encoded_form_ = std::make_shared<EncodedForm>();
  return page;
}

bool OpenPage::Claim(const Page& page, int64_t length, int64_t count) {
  if (count > page.capacity_ - length) return false;
  return page.committed_.compare_exchange_strong(length, length + count, std::memory_order_relaxed);
}

void OpenPage::Write(const Page& page, Side side, int64_t batch, int64_t row,
                     const ArrayView& source) {
  std::byte* rows = side == Side::kKey ? page.key_rows_ : page.value_rows_;
  const int64_t first_row = batch * page.shape_.heads * page.capacity_ + row;
  CopyTokens(source, rows + first_row * source.width() * ElementSize(source.dtype), page.capacity_);
}

}  // namespace onnx_light
