// Numbers in the texts of formats and policies.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace onnx_light {

// Decimal digits and nothing else, up to 2^63 - 1.
inline std::optional<int64_t> ParseCount(std::string_view text) {
  int64_t value = 0;
  if (text.empty() || text[0] == '-') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace onnx_light
