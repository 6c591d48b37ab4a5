#include "base/quote.h"

namespace onnx_light {
namespace {

constexpr size_t kLongest = 200;

}  // namespace

std::string Escaped(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string escaped;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') escaped += '\\';
    if (byte >= 0x20 && byte < 0x7f) {
      escaped += c;
    } else {
      escaped += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text.size() > kLongest ? escaped + "..." : escaped;
}

std::string Quote(std::string_view text) { return "\"" + Escaped(text) + "\""; }

}  // namespace onnx_light
