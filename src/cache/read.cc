// Reading and comparing a cache.
#include <algorithm>
#include <cmath>

#include "cache/payload.h"
#include "check/pages.h"
#include "onnx_light/cache.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

constexpr Side kSides[] = {Side::kKey, Side::kValue};

// The error of one number. Equal values have none, whatever they are.
double ErrorOf(float expected, float actual) {
  if (expected == actual || (std::isnan(expected) && std::isnan(actual))) return 0;
  return std::fabs(static_cast<double>(expected) - static_cast<double>(actual));
}

class ErrorSum {
 public:
  void Add(float expected, float actual) {
    const double error = ErrorOf(expected, actual);
    if (!(error <= max_)) max_ = std::isnan(max_) ? max_ : error;
    squares_ += error * error;
    ++count_;
  }
  double max() const { return max_; }
  double rms() const { return std::sqrt(squares_ / static_cast<double>(count_)); }

 private:
  double max_ = 0;
  double squares_ = 0;
  int64_t count_ = 0;
};

// One batch entry and head of the positions [start, start + count), as floats.
void ReadPositions(const PagedCache& cache, Side side, int64_t batch, int64_t head, int64_t start,
                   int64_t count, float* target) {
  const PageRange pages = cache.pages();
  for (int64_t index = cache.FindPage(start); count > 0; ++index) {
    const PlacedPage& placed = pages[index];
    const int64_t rows = std::min(count, placed.end() - start);
    ReadRows(placed, side, batch, head, start - placed.start, rows, DType::kFloat32, target);
    target += rows * cache.shape().width(side);
    start += rows;
    count -= rows;
  }
}

ErrorSum ComparePage(const PlacedPage& placed, const PagedCache& other, Side side) {
  const CacheShape& shape = other.shape();
  std::vector<float> expected(placed.length * shape.width(side)), actual(expected.size());
  ErrorSum sum;
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      ReadRows(placed, side, batch, head, 0, placed.length, DType::kFloat32, expected.data());
      ReadPositions(other, side, batch, head, placed.start, placed.length, actual.data());
      for (size_t i = 0; i < expected.size(); ++i) sum.Add(expected[i], actual[i]);
    }
  }
  return sum;
}

std::string RangeText(const PagedCache& cache) {
  return "positions [" + std::to_string(cache.start()) + ", " + std::to_string(cache.end()) +
         "), " + Describe(cache.shape());
}

}  // namespace

int64_t PagedCache::nbytes() const {
  int64_t bytes = 0;
  for (const PlacedPage& placed : pages()) {
    bytes += PayloadSize(placed.page->key()) + PayloadSize(placed.page->value());
  }
  return bytes;
}

double PagedCache::bits_per_value() const {
  if (empty()) return 0;
  double bits = 0;
  for (const PlacedPage& placed : pages()) {
    for (Side side : kSides) bits += VisibleBits(placed, side);
  }
  const double width =
      static_cast<double>(shape_.key_width) + static_cast<double>(shape_.value_width);
  return bits / (static_cast<double>(shape_.batch) * static_cast<double>(shape_.heads) *
                 static_cast<double>(length()) * width);
}

std::optional<DType> PagedCache::CommonDType(Side side) const {
  std::optional<DType> common;
  for (const PlacedPage& placed : pages()) {
    const std::optional<DType> dtype = DenseDType(placed.page->payload(side));
    if (!dtype || (common && common != dtype)) return std::nullopt;
    common = dtype;
  }
  return common;
}

void PagedCache::ToArray(Side side, DType dtype, void* target, uint64_t size) const {
  const int64_t expected = DenseSize(shape_, side, length(), dtype, "target");
  if (size != static_cast<uint64_t>(expected)) {
    throw ValueError("cache.shape", "target",
                     std::to_string(size) + " bytes, " +
                         ShapeText({shape_.batch, shape_.heads, length(), shape_.width(side)}) +
                         " " + std::string(Name(dtype)) + " takes " + std::to_string(expected));
  }
  for (const PlacedPage& placed : pages()) CheckReadable(placed, side);
  const int64_t row = shape_.width(side) * ElementSize(dtype);
  for (const PlacedPage& placed : pages()) {
    auto* rows = static_cast<std::byte*>(target) + (placed.start - start_) * row;
    for (int64_t batch = 0; batch < shape_.batch; ++batch) {
      for (int64_t head = 0; head < shape_.heads; ++head, rows += length() * row) {
        ReadRows(placed, side, batch, head, 0, placed.length, dtype, rows);
      }
    }
  }
}

bool PagedCache::operator==(const PagedCache& other) const {
  const PageRange left = pages(), right = other.pages();
  if (start_ != other.start_ || end_ != other.end_ || shape_ != other.shape_ ||
      left.size() != right.size()) {
    return false;
  }
  auto b = right.begin();
  for (const PlacedPage& a : left) {
    if (a.start != b->start || a.length != b->length) return false;
    if (a.page != b->page) {
      for (Side side : kSides) {
        if (!EqualRows(a, *b, side)) return false;
      }
    }
    ++b;
  }
  return true;
}

std::vector<PageError> PagedCache::Compare(const PagedCache& other) const {
  if (start_ != other.start_ || end_ != other.end_ || shape_ != other.shape_) {
    throw ValueError("cache.mismatch", "other",
                     RangeText(other) + ", but this cache has " + RangeText(*this));
  }
  for (const PagedCache* cache : {this, &other}) {
    for (const PlacedPage& placed : cache->pages()) {
      for (Side side : kSides) CheckReadable(placed, side);
    }
  }
  std::vector<PageError> errors;
  for (const PlacedPage& placed : pages()) {
    const ErrorSum key = ComparePage(placed, other, Side::kKey);
    const ErrorSum value = ComparePage(placed, other, Side::kValue);
    errors.push_back({placed.start, placed.end(), key.max(), key.rms(), value.max(), value.rms()});
  }
  return errors;
}

}  // namespace onnx_light
