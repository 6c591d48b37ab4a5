#include "quant/records.h"

#include <cmath>

#include "quant/kernels.h"

namespace onnx_light {
float MostInRecord(PageType type) {
  // One below what rounds to infinity, times the codes that the largest value takes.
  const float most_scale = std::nextafter(65520.0f, 0.0f);
  return most_scale * (type == PageType::kQ8_0 ? 127.0f : 8.0f);
}

bool EncodeRecords(PageType type, const float* values, int64_t count, std::byte* records) {
  const QuantKernels& kernels = SelectedQuantKernels();
  const auto encode = type == PageType::kQ8_0 ? kernels.encode_q8_0 : kernels.encode_q4_0;
  return encode(values, count / kRecordValues, MostInRecord(type),
                reinterpret_cast<uint8_t*>(records));
}

void DecodeRecords(PageType type, const std::byte* records, int64_t count, float* values) {
  const QuantKernels& kernels = SelectedQuantKernels();
  const auto decode = type == PageType::kQ8_0 ? kernels.decode_q8_0 : kernels.decode_q4_0;
  decode(reinterpret_cast<const uint8_t*>(records), count / kRecordValues, values);
}

}  // namespace onnx_light
