// The encoded form of a dense page that waits among the recent ones, so that forks of a cache do
// not encode it twice.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "onnx_light/page.h"

namespace onnx_light {

class EncodedForm {
 public:
  // The form in these formats of the first `length` rows: the one that is kept, or what `make`
  // gives, which is kept if it is the first. Any thread may call this.
  template <typename F>
  std::shared_ptr<const Page> Get(const std::optional<PageFormat>& key,
                                  const std::optional<PageFormat>& value, int64_t length, F make) {
    const std::lock_guard lock(mutex_);
    if (page_ != nullptr && (key_ != key || value_ != value || length_ != length)) return make();
    if (page_ == nullptr) {
      page_ = make();
      key_ = key;
      value_ = value;
      length_ = length;
    }
    return page_;
  }

 private:
  std::mutex mutex_;
  std::optional<PageFormat> key_, value_;
  int64_t length_ = 0;
  std::shared_ptr<const Page> page_;
};

}  // namespace onnx_light
