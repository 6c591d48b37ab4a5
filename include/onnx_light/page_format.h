// How the keys or the values of a page are stored, as a value that prints and parses.
//
//   PageFormat::Parse("float16")            plain numbers
//   PageFormat::Parse("int8/channel")       codes, one scale per head and channel
//   PageFormat::Parse("uint4/token:32")     codes, one scale per token and 32 numbers of the width
//   PageFormat::Parse("int8/token/float32") scales that are not FLOAT16
//   PageFormat::Parse("q8_0")               records of llama.cpp
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "onnx_light/dtype.h"
#include "onnx_light/export.h"

namespace onnx_light {

// What a stored element is. Signed codes are symmetric and have no zero point, unsigned codes have
// one. Q8_0 and Q4_0 are records of 32 numbers with a scale of their own.
enum class PageType : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kInt8,
  kUInt8,
  kInt4,
  kUInt4,
  kInt2,
  kUInt2,
  kQ8_0,
  kQ4_0,
};

inline constexpr std::array kPageTypes = {
    PageType::kFloat32,    PageType::kFloat16, PageType::kBFloat16, PageType::kFloat8E4M3FN,
    PageType::kFloat8E5M2, PageType::kInt8,    PageType::kUInt8,    PageType::kInt4,
    PageType::kUInt4,      PageType::kInt2,    PageType::kUInt2,    PageType::kQ8_0,
    PageType::kQ4_0};

// "float32", ..., "uint2", "q8_0", "q4_0".
ONNX_LIGHT_EXPORT std::string_view Name(PageType type);

// What one scale covers, within one batch entry and head unless it is the whole payload.
enum class ScaleKind : uint8_t {
  kTensor,   // everything
  kChannel,  // one channel of consecutive tokens
  kToken,    // consecutive channels of one token
};

// "tensor", "channel" or "token".
ONNX_LIGHT_EXPORT std::string_view Name(ScaleKind kind);

class ONNX_LIGHT_EXPORT PageFormat {
 public:
  // Plain float32.
  PageFormat() = default;
  static PageFormat Dense(DType dtype);
  // Codes with scales. `group` is the number of tokens (kChannel) or channels (kToken) that share a
  // scale; 0: all of the page, or of the width. ValueError `quant.format` unless `type` is one of
  // kInt8 to kUInt2, the group is 0 or more, and 0 for kTensor, and the scales are FLOAT, FLOAT16
  // or BFLOAT16.
  static PageFormat Affine(PageType type, ScaleKind scale, int64_t group = 0,
                           DType scale_type = DType::kFloat16);
  // Records of llama.cpp. REQUIRES: type is kQ8_0 or kQ4_0.
  static PageFormat Records(PageType type);

  // "<type>", and for codes "<type>/<scale kind>[:<group>][/<type of the scales>]". Also accepted:
  // the short names f32, f16, bf16, f8e4m3, f8e5m2, i8 to u2, and codes alone, whose scales are
  // per token. ValueError `quant.format` at `path` for anything else.
  static PageFormat Parse(std::string_view text, const std::string& path = "format");

  // The text that Parse() reads, in its shortest form that names the kind of scale.
  std::string Text() const;

  PageType type() const { return type_; }
  bool is_dense() const { return type_ <= PageType::kFloat8E5M2; }
  bool is_affine() const { return type_ >= PageType::kInt8 && type_ <= PageType::kUInt2; }
  // Nothing unless the format is dense.
  std::optional<DType> dtype() const;
  // REQUIRES: is_affine(), all three.
  ScaleKind scale() const { return scale_; }
  int64_t group() const { return group_; }
  DType scale_type() const { return scale_type_; }

  bool operator==(const PageFormat&) const = default;

 private:
  PageType type_ = PageType::kFloat32;
  ScaleKind scale_ = ScaleKind::kTensor;
  DType scale_type_ = DType::kFloat32;
  int64_t group_ = 0;
};

}  // namespace onnx_light
