#include "quant/records.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/convert.h"
#include "quant/kernels.h"

namespace onnx_light {
namespace {

constexpr int kHalfRecord = kRecordValues / 2;
constexpr int kScaleSize = 2;

float ReadScale(const std::byte* record) { return ToFloat(DType::kFloat16, record); }

void DecodeQ8(const std::byte* record, float* values) {
  const float scale = ReadScale(record);
  for (int i = 0; i < kRecordValues; ++i) {
    values[i] = static_cast<float>(static_cast<int8_t>(record[kScaleSize + i])) * scale;
  }
}

void DecodeQ4(const std::byte* record, float* values) {
  const float scale = ReadScale(record);
  for (int i = 0; i < kHalfRecord; ++i) {
    const int codes = static_cast<int>(record[kScaleSize + i]);
    values[i] = static_cast<float>((codes & 15) - 8) * scale;
    values[i + kHalfRecord] = static_cast<float>((codes >> 4) - 8) * scale;
  }
}

}  // namespace

float MostInRecord(PageType type) {
  // One below what rounds to infinity, times the codes that the largest value takes.
  const float most_scale = std::nextafter(65520.0f, 0.0f);
  return most_scale * (type == PageType::kQ8_0 ? 127.0f : 8.0f);
}

void EncodeRecords(PageType type, const float* values, int64_t count, std::byte* records) {
  constexpr int64_t kMostAtOnce = 64;
  std::array<float, kMostAtOnce> scales;
  std::array<uint16_t, kMostAtOnce> rounded;
  const QuantKernels& kernels = SelectedQuantKernels();
  const auto encode = type == PageType::kQ8_0 ? kernels.encode_q8_0 : kernels.encode_q4_0;
  for (int64_t rest = count / kRecordValues; rest > 0;) {
    const int64_t part = std::min(rest, kMostAtOnce);
    encode(values, part, scales.data(), reinterpret_cast<uint8_t*>(records));
    ConvertElements(DType::kFloat32, scales.data(), DType::kFloat16, rounded.data(), part);
    for (int64_t i = 0; i < part; ++i, records += RecordSize(type)) {
      std::memcpy(records, &rounded[i], kScaleSize);
    }
    values += part * kRecordValues;
    rest -= part;
  }
}

void DecodeRecords(PageType type, const std::byte* records, int64_t count, float* values) {
  const auto decode = type == PageType::kQ8_0 ? DecodeQ8 : DecodeQ4;
  for (int64_t i = 0; i < count; i += kRecordValues, records += RecordSize(type)) {
    decode(records, values + i);
  }
}

}  // namespace onnx_light
