#include "attention/problem.h"

#include <cmath>
#include <string>

#include "cache/payload.h"
#include "check/pages.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

std::string DimsText(const PagedCache& cache) {
  return "[" + std::to_string(cache.batch()) + ", a multiple of " + std::to_string(cache.heads()) +
         ", tokens, " + std::to_string(cache.shape().key_width) + "]";
}

void CheckQuery(const PagedCache& cache, const ArrayView& query) {
  if (cache.empty()) {
    throw ValueError(
        "attention.shape", "query",
        "shape " + ShapeText(query.shape) + ": the cache is empty, there is nothing to attend on");
  }
  if (query.batch() != cache.batch() || query.heads() <= 0 || query.tokens() < 0 ||
      query.heads() % cache.heads() != 0 || query.width() != cache.shape().key_width) {
    throw ValueError("attention.shape", "query",
                     "shape " + ShapeText(query.shape) + " does not fit the cache, which takes " +
                         DimsText(cache));
  }
}

void CheckQueryDType(DType dtype) {
  if (ElementSize(dtype) >= 2) return;
  throw ValueError("attention.dtype", "query",
                   std::string(Name(dtype)) + ", must be float32, float16 or bfloat16");
}

void CheckMask(const MaskView& mask, const std::array<int64_t, 4>& dims) {
  for (int i = 0; i < 4; ++i) {
    if (mask.shape[i] == dims[i] || mask.shape[i] == 1) continue;
    throw ValueError("attention.shape", "attn_mask",
                     "shape " + ShapeText(mask.shape) + " cannot be broadcast to " +
                         ShapeText(dims) + ": batch, query heads, query tokens, cached tokens");
  }
}

void CheckNumbers(const AttentionOptions& options) {
  const auto refuse = [](const char* name, const std::string& value, const char* wanted) {
    throw ValueError("attention.option", name, value + ", must be " + wanted);
  };
  if (options.scale && !std::isfinite(*options.scale)) {
    refuse("scale", std::to_string(*options.scale), "finite");
  }
  if (!(options.softcap >= 0) || !std::isfinite(options.softcap)) {
    refuse("softcap", std::to_string(options.softcap), "finite and not negative");
  }
  if (options.left_window_size < -1) {
    refuse("left_window_size", std::to_string(options.left_window_size), "-1 or more");
  }
}

// A softcap divides and multiplies: its reciprocal must be a number, too.
void CheckSoftcap(float softcap) {
  if (softcap == 0 || std::isfinite(1 / softcap)) return;
  throw ValueError("attention.option", "softcap",
                   std::to_string(softcap) + " is too small: its reciprocal is infinite");
}

}  // namespace

std::array<int64_t, 4> AttendShape(const PagedCache& cache, const ArrayView& query) {
  CheckQuery(cache, query);
  return {query.batch(), query.heads(), query.tokens(), cache.shape().value_width};
}

AttentionProblem::AttentionProblem(const PagedCache& cache_, const ArrayView& query_,
                                   const AttentionOptions& options_)
    : cache(cache_), query(query_), options(options_) {
  CheckQuery(cache, query);
  CheckQueryDType(query.dtype);
  CheckNumbers(options);
  CheckSoftcap(options.softcap);
  if (options.mask) {
    CheckMask(*options.mask, {query.batch(), query.heads(), query.tokens(), cache.length()});
  }
  if (!options.sinks.empty() && static_cast<int64_t>(options.sinks.size()) != query.heads()) {
    throw ValueError("attention.shape", "sinks",
                     "[" + std::to_string(options.sinks.size()) + "], must be [" +
                         std::to_string(query.heads()) + "] as query " + ShapeText(query.shape));
  }
  for (const PlacedPage& placed : cache.pages()) {
    CheckReadable(placed, Side::kKey);
    CheckReadable(placed, Side::kValue);
  }
  const auto width = static_cast<float>(query.width());
  scale = options.scale.value_or(1.0f / std::sqrt(width));
  group = query.heads() / cache.heads();
  key_stride = PaddedFloats(query.width());
  value_stride = PaddedFloats(cache.shape().value_width);
}

}  // namespace onnx_light
