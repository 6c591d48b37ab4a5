// Untrusted text in messages for people.
#pragma once

#include <string>
#include <string_view>

namespace onnx_light {

// The text cut after 200 bytes, with what is not printable ASCII escaped, quotes and backslashes
// too.
std::string Escaped(std::string_view text);

// The same between double quotes.
std::string Quote(std::string_view text);

}  // namespace onnx_light
