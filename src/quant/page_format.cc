#include "onnx_light/page_format.h"

#include <algorithm>

#include "onnx_light/errors.h"
#include "quant/numbers.h"

namespace onnx_light {
namespace {

constexpr std::string_view kNames[] = {
    "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8",
    "int4",    "uint4",   "int2",     "uint2",         "q8_0",        "q4_0"};
constexpr std::string_view kShortNames[] = {"f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8",
                                            "u8",  "i4",  "u4",   "i2",     "u2"};
constexpr ScaleKind kScaleKinds[] = {ScaleKind::kTensor, ScaleKind::kChannel, ScaleKind::kToken};

[[noreturn]] void Throw(const std::string& path, const std::string& message) {
  throw ValueError("quant.format", path, message);
}

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

template <typename T, size_t n>
std::optional<size_t> IndexOf(const T (&names)[n], std::string_view name) {
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) return std::nullopt;
  return static_cast<size_t>(found - std::begin(names));
}

PageType ParseType(std::string_view name, const std::string& path) {
  auto index = IndexOf(kNames, name);
  if (!index) index = IndexOf(kShortNames, name);
  if (index) return static_cast<PageType>(*index);
  std::string known;
  for (std::string_view other : kNames) known += (known.empty() ? "" : ", ") + std::string(other);
  Throw(path, Quoted(name) + " is none of " + known);
}

ScaleKind ParseScaleKind(std::string_view name, const std::string& path) {
  for (ScaleKind kind : kScaleKinds) {
    if (Name(kind) == name) return kind;
  }
  Throw(path, "scale " + Quoted(name) + " is none of tensor, channel, token");
}

int64_t ParseGroup(std::string_view text, const std::string& path) {
  const auto group = ParseCount(text);
  if (group && *group > 0) return *group;
  Throw(path, "group " + Quoted(text) + " is no positive number");
}

DType ParseScaleType(std::string_view name, const std::string& path) {
  const PageType type = ParseType(name, path);
  if (type <= PageType::kBFloat16) return static_cast<DType>(type);
  Throw(path, "scale type " + Quoted(name) + " is none of float32, float16, bfloat16");
}

// The part before the next separator, which `text` loses.
std::string_view TakePart(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

// "<scale kind>[:<group>][/<type of the scales>]".
PageFormat ParseAffine(PageType type, std::string_view text, const std::string& path) {
  const bool has_scale_type = text.find('/') != text.npos;
  std::string_view scale = TakePart(text, '/');
  const bool has_group = scale.find(':') != scale.npos;
  const ScaleKind kind = ParseScaleKind(TakePart(scale, ':'), path);
  if (has_group && kind == ScaleKind::kTensor) Throw(path, "scale 'tensor' takes no group");
  const int64_t group = has_group ? ParseGroup(scale, path) : 0;
  const DType scale_type = has_scale_type ? ParseScaleType(text, path) : DType::kFloat16;
  return PageFormat::Affine(type, kind, group, scale_type);
}

}  // namespace

std::string_view Name(PageType type) { return kNames[static_cast<size_t>(type)]; }

std::string_view Name(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kTensor:
      return "tensor";
    case ScaleKind::kChannel:
      return "channel";
    case ScaleKind::kToken:
      return "token";
  }
  return "";
}

PageFormat PageFormat::Dense(DType dtype) {
  PageFormat format;
  format.type_ = static_cast<PageType>(dtype);
  return format;
}

PageFormat PageFormat::Affine(PageType type, ScaleKind scale, int64_t group, DType scale_type) {
  PageFormat format;
  format.type_ = type;
  format.scale_ = scale;
  format.group_ = group;
  format.scale_type_ = scale_type;
  if (!format.is_affine()) Throw("scale", std::string(Name(type)) + " takes no scale");
  if (group < 0) Throw("group", std::to_string(group) + " is negative");
  if (group != 0 && scale == ScaleKind::kTensor) Throw("group", "scale 'tensor' takes no group");
  if (scale_type > DType::kBFloat16) {
    Throw("scale_type", std::string(Name(scale_type)) + " is none of float32, float16, bfloat16");
  }
  return format;
}

PageFormat PageFormat::Records(PageType type) {
  PageFormat format;
  format.type_ = type;
  return format;
}

PageFormat PageFormat::Parse(std::string_view text, const std::string& path) {
  const bool has_scale = text.find('/') != text.npos;
  std::string_view rest = text;
  const PageType type = ParseType(TakePart(rest, '/'), path);
  PageFormat format;
  format.type_ = type;
  if (format.is_affine()) return ParseAffine(type, has_scale ? rest : "token", path);
  if (has_scale) Throw(path, Quoted(text) + ": " + std::string(Name(type)) + " takes no scale");
  return format;
}

std::string PageFormat::Text() const {
  std::string text(Name(type_));
  if (!is_affine()) return text;
  text += "/" + std::string(Name(scale_));
  if (group_ != 0) text += ":" + std::to_string(group_);
  if (scale_type_ != DType::kFloat16) text += "/" + std::string(Name(scale_type_));
  return text;
}

std::optional<DType> PageFormat::dtype() const {
  return is_dense() ? std::optional(static_cast<DType>(type_)) : std::nullopt;
}

}  // namespace onnx_light
