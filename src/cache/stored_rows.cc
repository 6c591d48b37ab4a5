#include "cache/stored_rows.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/convert.h"
#include "cache/payload.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The least magnitude that becomes infinite when it is rounded.
float OverflowLimit(DType dtype) {
  if (dtype == DType::kFloat16) return 65520.0f;
  if (dtype == DType::kBFloat16) return 0x1.ffp127f;
  return kInfinity;
}

// The largest number of a type that saturates.
float SaturationLimit(DType dtype) {
  if (dtype == DType::kFloat8E4M3FN) return 448.0f;
  if (dtype == DType::kFloat8E5M2) return 57344.0f;
  return kInfinity;
}

[[noreturn]] void ThrowOverflow(Side side, float number, DType dtype) {
  throw ValueError("cache.overflow", Name(side),
                   std::to_string(number) + " is too large for " + std::string(Name(dtype)));
}

// One row after the other of a view with any strides, as floats.
class RowConverter {
 public:
  RowConverter(const ArrayView& source, DType dtype, Side side)
      : source_(source), dtype_(dtype), side_(side), floats_(source.width()) {
    elements_.resize(source.width() * ElementSize(source.dtype));
  }

  void Convert(const std::byte* row, std::byte* target) {
    const int64_t item = ElementSize(source_.dtype), stride = source_.strides[3];
    if (stride != item) {
      for (int64_t i = 0; i < source_.width(); ++i) {
        std::memcpy(elements_.data() + i * item, row + i * stride, item);
      }
      row = elements_.data();
    }
    ConvertElements(source_.dtype, row, DType::kFloat32, floats_.data(), floats_.size());
    CheckRange();
    ConvertElements(DType::kFloat32, floats_.data(), dtype_, target, floats_.size());
  }

 private:
  void CheckRange() {
    const float overflow = OverflowLimit(dtype_), most = SaturationLimit(dtype_);
    for (float& number : floats_) {
      const float magnitude = std::fabs(number);
      if (!(magnitude < kInfinity)) continue;
      if (magnitude >= overflow) ThrowOverflow(side_, number, dtype_);
      if (magnitude > most) number = std::copysign(most, number);
    }
  }

  const ArrayView& source_;
  const DType dtype_;
  const Side side_;
  std::vector<std::byte> elements_;
  std::vector<float> floats_;
};

}  // namespace

DType OpenDType(const CachePolicy& policy, Side side, DType appended) {
  const auto& format = side == Side::kKey ? policy.key : policy.value;
  if (format && format->is_dense()) return *format->dtype();
  return policy.open.value_or(appended);
}

StoredRows::StoredRows(const ArrayView& source, DType dtype, Side side) : view_(source) {
  if (source.dtype == dtype) return;
  view_ = ContiguousView(nullptr, dtype, source.shape);
  buffer_ = BufferRef::Allocate(source.batch() * view_.strides[0]);
  view_.data = buffer_.data();
  std::byte* target = buffer_.mutable_data();
  RowConverter converter(source, dtype, side);
  for (int64_t batch = 0; batch < source.batch(); ++batch) {
    for (int64_t head = 0; head < source.heads(); ++head) {
      const std::byte* row = source.data + batch * source.strides[0] + head * source.strides[1];
      for (int64_t token = 0; token < source.tokens(); ++token, row += source.strides[2]) {
        converter.Convert(row, target);
        target += view_.strides[2];
      }
    }
  }
}

}  // namespace onnx_light
