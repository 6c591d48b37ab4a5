#include "quant/records.h"

#include <algorithm>
#include <cmath>

#include "base/convert.h"

namespace onnx_light {
namespace {

constexpr int kHalfRecord = kRecordValues / 2;
constexpr int kScaleSize = 2;

float ReadScale(const std::byte* record) { return ToFloat(DType::kFloat16, record); }

// 0 where the scale is so small that it has no reciprocal; its FLOAT16 is 0, too.
float Inverse(float scale) {
  const float inverse = 1.0f / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void WriteScale(float scale, std::byte* record) {
  ConvertElements(DType::kFloat32, &scale, DType::kFloat16, record, 1);
}

// To the nearest whole number, halves away from zero. REQUIRES: the magnitude is below 2^31.
inline int RoundAway(float value) {
  const int whole = static_cast<int>(value);
  const float rest = value - static_cast<float>(whole);
  return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
}

void EncodeQ8(const float* values, std::byte* record) {
  float most = 0;
  for (int i = 0; i < kRecordValues; ++i) most = std::max(most, std::fabs(values[i]));
  const float scale = most / 127.0f;
  const float inverse = Inverse(scale);
  WriteScale(scale, record);
  for (int i = 0; i < kRecordValues; ++i) {
    record[kScaleSize + i] = static_cast<std::byte>(RoundAway(values[i] * inverse));
  }
}

int CodeOfQ4(float value, float inverse) {
  const float shifted = value * inverse + 8.5f;
  return std::min(15, static_cast<int>(shifted));
}

void EncodeQ4(const float* values, std::byte* record) {
  float largest = 0;  // the first with the largest magnitude
  for (int i = 0; i < kRecordValues; ++i) {
    if (std::fabs(values[i]) > std::fabs(largest)) largest = values[i];
  }
  const float scale = largest / -8.0f;
  const float inverse = Inverse(scale);
  WriteScale(scale, record);
  for (int i = 0; i < kHalfRecord; ++i) {
    const int low = CodeOfQ4(values[i], inverse);
    const int high = CodeOfQ4(values[i + kHalfRecord], inverse);
    record[kScaleSize + i] = static_cast<std::byte>(low | high << 4);
  }
}

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
  const auto encode = type == PageType::kQ8_0 ? EncodeQ8 : EncodeQ4;
  for (int64_t i = 0; i < count; i += kRecordValues, records += RecordSize(type)) {
    encode(values + i, records);
  }
}

void DecodeRecords(PageType type, const std::byte* records, int64_t count, float* values) {
  const auto decode = type == PageType::kQ8_0 ? DecodeQ8 : DecodeQ4;
  for (int64_t i = 0; i < count; i += kRecordValues, records += RecordSize(type)) {
    decode(records, values + i);
  }
}

}  // namespace onnx_light
