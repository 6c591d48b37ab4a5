// The keys or the values of a page as codes with scales, or as records of a struct layout.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "onnx_light/bytes.h"
#include "onnx_light/dtype.h"
#include "onnx_light/export.h"
#include "onnx_light/page_format.h"

namespace onnx_light {

struct EncodedValueProto;
template <typename M>
class Owned;

// How many bits a code has, and whether it has a sign. REQUIRES: kInt8 to kUInt2.
constexpr int CodeBits(PageType type) {
  if (type <= PageType::kUInt8) return 8;
  return type <= PageType::kUInt4 ? 4 : 2;
}
constexpr bool IsSigned(PageType type) {
  return type == PageType::kInt8 || type == PageType::kInt4 || type == PageType::kInt2;
}

// Codes: value = (code - zero point) * scale, in float. A cell of the payload is what shares one
// scale and one zero point.
struct AffineLayout {
  enum class Shape : uint8_t {
    kScalar,   // one cell
    kAxis,     // one cell for each index of the axis
    kBlocked,  // block_size consecutive indices of the axis, one of each other
  };

  PageType code_type = PageType::kInt8;  // kInt8 to kUInt2
  DType scale_type = DType::kFloat32;    // kFloat32, kFloat16 or kBFloat16
  Shape shape = Shape::kScalar;
  int axis = 0;            // 0 to 3; 0 if kScalar
  int64_t block_size = 0;  // 0 unless kBlocked, where it is positive and may exceed the axis
  bool operator==(const AffineLayout&) const = default;
};

// Records of llama.cpp, each of 32 consecutive values of the width: a FLOAT16 scale, then 32 INT8
// codes (kQ8_0); or 16 bytes with two codes each, value j in the low half of byte j and value j +
// 16 in the high half, less 8 (kQ4_0).
struct RecordLayout {
  PageType type = PageType::kQ8_0;
  bool operator==(const RecordLayout&) const = default;
};
inline constexpr int64_t kRecordValues = 32;
constexpr int64_t RecordSize(PageType type) { return type == PageType::kQ8_0 ? 34 : 18; }

// A struct layout that nobody here knows: the whole message, kept to be written back. Its data are
// `codes` of the payload, too.
struct UnknownLayout {
  std::shared_ptr<const Owned<EncodedValueProto>> message;
};

// An immutable value; copies share the bytes. The bytes may have any alignment.
struct EncodedPayload {
  std::array<int64_t, 4> dims{};  // batch, heads, capacity, width
  std::variant<AffineLayout, RecordLayout, UnknownLayout> layout;
  // All codes or records in C order; codes below 8 bits low bits first, flat over the whole array,
  // the bits after the last code zero.
  SharedBytes codes;
  SharedBytes scales;       // affine: one for each cell, in C order
  SharedBytes zero_points;  // affine: the same in the type of the codes; empty: all are 0

  const AffineLayout* affine() const { return std::get_if<AffineLayout>(&layout); }
  uint64_t nbytes() const { return codes.size + scales.size + zero_points.size; }
};

// How many indices of each dim a cell covers, and how many cells there are along each dim.
ONNX_LIGHT_EXPORT std::array<int64_t, 4> CellDims(const AffineLayout& layout,
                                                  const std::array<int64_t, 4>& dims);
ONNX_LIGHT_EXPORT std::array<int64_t, 4> CellCounts(const AffineLayout& layout,
                                                    const std::array<int64_t, 4>& dims);

// The format of a policy that stores payloads this way; nothing for layouts that no policy makes.
ONNX_LIGHT_EXPORT std::optional<PageFormat> FormatOf(const EncodedPayload& payload);

// The same in words for any layout: "int8/channel", "uint8/blocks of 5 along axis 0/float32",
// "other.layout".
ONNX_LIGHT_EXPORT std::string Describe(const EncodedPayload& payload);

// Whether the payload is what encoding in this format gives: groups longer than the page or the
// width end there, and scales may be FLOAT where the format's type cannot hold them.
ONNX_LIGHT_EXPORT bool HasFormat(const EncodedPayload& payload, const PageFormat& format);

}  // namespace onnx_light
