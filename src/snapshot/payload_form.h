// How the keys or the values of a run's pages are stored: all that a reader must know to find the
// parts of a payload without looking at it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "onnx_light/dtype.h"
#include "onnx_light/encoded_payload.h"
#include "onnx_light/page.h"

namespace onnx_light::snapshot {

struct AffineForm {
  AffineLayout layout;
  bool has_zero_points = false;
  bool operator==(const AffineForm&) const = default;
};

// Plain numbers, codes with scales, records.
using PayloadForm = std::variant<DType, AffineForm, onnx_light::RecordLayout>;

// Nothing for struct layouts that are not known here: nobody could say where their parts lie.
std::optional<PayloadForm> FormOf(const PagePayload& payload);

// The form as the index has it, and back; nothing for any other text.
//
//   float16                             plain numbers
//   q8_0                                records of llama.cpp
//   <type>/<cells>[/<scales>][/<zero>]  codes of a type such as uint4, where
//     <cells> says what shares a scale: tensor; channel:G or token:G, blocks of G along axis 2 or
//     3;
//             axis:A:G, blocks of G along another one; axis:A, a scale for each index of an axis
//     <scales> is their type, unless it is float16
//     <zero> is zero_points or no_zero_points, where that is not what the type has by itself:
//             unsigned ones have zero points
std::string FormText(const PayloadForm& form);
std::optional<PayloadForm> ParseForm(std::string_view text);

// Bytes of the parts of a payload.
struct PartSizes {
  uint64_t scales = 0;
  uint64_t zero_points = 0;
  uint64_t data = 0;
};

// Nothing where a dim is not positive, a part is too large for a file, or the form does not go with
// the dims.
std::optional<PartSizes> SizesOf(const PayloadForm& form, const std::array<int64_t, 4>& dims);

}  // namespace onnx_light::snapshot
