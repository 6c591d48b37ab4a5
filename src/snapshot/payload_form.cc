#include "snapshot/payload_form.h"

#include <charconv>
#include <vector>

#include "base/math.h"
#include "quant/packing.h"
#include "snapshot/fields.h"

namespace onnx_light::snapshot {
namespace {

using Shape = AffineLayout::Shape;
constexpr int kTokenAxis = 2, kWidthAxis = 3;

std::string CellsText(const AffineLayout& layout) {
  const std::string axis = std::to_string(layout.axis);
  if (layout.shape == Shape::kScalar) return "tensor";
  if (layout.shape == Shape::kAxis) return "axis:" + axis;
  const std::string block = ":" + std::to_string(layout.block_size);
  if (layout.axis == kTokenAxis) return "channel" + block;
  if (layout.axis == kWidthAxis) return "token" + block;
  return "axis:" + axis + block;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::optional<int64_t> ParseNumber(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool ParseCells(std::string_view text, AffineLayout* layout) {
  const std::vector<std::string_view> parts = Split(text, ':');
  std::vector<int64_t> numbers;
  for (size_t i = 1; i < parts.size(); ++i) {
    const auto number = ParseNumber(parts[i]);
    if (!number || *number < 0) return false;
    numbers.push_back(*number);
  }
  if (parts[0] == "tensor") {
    layout->shape = Shape::kScalar;
    return numbers.empty();
  }
  const bool channel = parts[0] == "channel", token = parts[0] == "token";
  if (channel || token) numbers.insert(numbers.begin(), channel ? kTokenAxis : kWidthAxis);
  if (!channel && !token && parts[0] != "axis") return false;
  if (numbers.empty() || numbers.size() > 2 || numbers[0] > kWidthAxis) return false;
  layout->axis = static_cast<int>(numbers[0]);
  layout->shape = numbers.size() == 1 ? Shape::kAxis : Shape::kBlocked;
  if (numbers.size() == 1) return true;
  layout->block_size = numbers[1];
  return layout->block_size > 0;
}

std::optional<PageType> ParseType(std::string_view text) {
  for (const PageType type : kPageTypes) {
    if (Name(type) == text) return type;
  }
  return std::nullopt;
}

bool IsCode(PageType type) { return type >= PageType::kInt8 && type <= PageType::kUInt2; }

// Takes every spelling; the caller compares with the one that is written.
std::optional<PayloadForm> ParseAffine(PageType type, const std::vector<std::string_view>& parts) {
  AffineForm form;
  form.layout.code_type = type;
  form.layout.scale_type = DType::kFloat16;
  form.has_zero_points = !IsSigned(type);
  if (parts.size() < 2 || !ParseCells(parts[1], &form.layout)) return std::nullopt;
  for (size_t i = 2; i < parts.size(); ++i) {
    if (parts[i] == "zero_points" || parts[i] == "no_zero_points") {
      form.has_zero_points = parts[i] == "zero_points";
    } else if (const auto scale = ParseDType(parts[i]); scale && *scale <= DType::kBFloat16) {
      form.layout.scale_type = *scale;
    } else {
      return std::nullopt;
    }
  }
  return form;
}

std::optional<PayloadForm> ParseAnySpelling(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text, '/');
  const auto type = ParseType(parts[0]);
  if (!type) return std::nullopt;
  if (IsCode(*type)) return ParseAffine(*type, parts);
  if (*type == PageType::kQ8_0 || *type == PageType::kQ4_0) return onnx_light::RecordLayout{*type};
  return *ParseDType(parts[0]);
}

// The product, if it is at most kMaxPadded.
std::optional<uint64_t> SmallProduct(uint64_t size, std::initializer_list<int64_t> factors) {
  for (const int64_t factor : factors) {
    const auto product = CheckedMul(size, static_cast<uint64_t>(factor));
    if (!product || *product > kMaxPadded) return std::nullopt;
    size = *product;
  }
  return size;
}

std::optional<PartSizes> AffineSizes(const AffineForm& form, const std::array<int64_t, 4>& dims,
                                     uint64_t count) {
  const std::array<int64_t, 4> counts = CellCounts(form.layout, dims);
  uint64_t cells = 1;  // at most one for each code
  for (const int64_t number : counts) cells *= static_cast<uint64_t>(number);
  const int bits = CodeBits(form.layout.code_type);
  PartSizes sizes;
  sizes.scales = cells * ElementSize(form.layout.scale_type);
  if (sizes.scales > kMaxPadded) return std::nullopt;
  if (form.has_zero_points) sizes.zero_points = PackedSize(static_cast<int64_t>(cells), bits);
  sizes.data = PackedSize(static_cast<int64_t>(count), bits);
  return sizes;
}

}  // namespace

std::optional<PayloadForm> FormOf(const PagePayload& payload) {
  if (const auto* dense = std::get_if<DensePayload>(&payload)) return dense->dtype;
  const auto& encoded = std::get<EncodedPayload>(payload);
  if (const AffineLayout* affine = encoded.affine()) {
    return AffineForm{*affine, encoded.zero_points.size != 0};
  }
  const auto* records = std::get_if<onnx_light::RecordLayout>(&encoded.layout);
  return records != nullptr ? std::optional<PayloadForm>(*records) : std::nullopt;
}

std::string FormText(const PayloadForm& form) {
  if (const DType* dtype = std::get_if<DType>(&form)) return std::string(Name(*dtype));
  if (const auto* records = std::get_if<onnx_light::RecordLayout>(&form)) {
    return std::string(Name(records->type));
  }
  const auto& affine = std::get<AffineForm>(form);
  const AffineLayout& layout = affine.layout;
  std::string text = std::string(Name(layout.code_type)) + "/" + CellsText(layout);
  if (layout.scale_type != DType::kFloat16) text += "/" + std::string(Name(layout.scale_type));
  if (affine.has_zero_points == IsSigned(layout.code_type)) {
    text += affine.has_zero_points ? "/zero_points" : "/no_zero_points";
  }
  return text;
}

std::optional<PayloadForm> ParseForm(std::string_view text) {
  const auto form = ParseAnySpelling(text);
  return form && FormText(*form) == text ? form : std::nullopt;
}

std::optional<PartSizes> SizesOf(const PayloadForm& form, const std::array<int64_t, 4>& dims) {
  for (const int64_t dim : dims) {
    if (dim <= 0) return std::nullopt;
  }
  const auto count = SmallProduct(1, {dims[0], dims[1], dims[2], dims[3]});
  if (!count) return std::nullopt;
  if (const DType* dtype = std::get_if<DType>(&form)) {
    const auto size = SmallProduct(*count, {ElementSize(*dtype)});
    return size ? std::optional(PartSizes{0, 0, *size}) : std::nullopt;
  }
  if (const auto* affine = std::get_if<AffineForm>(&form)) {
    return AffineSizes(*affine, dims, *count);
  }
  if (dims[kWidthAxis] % kRecordValues != 0) return std::nullopt;
  const PageType type = std::get<onnx_light::RecordLayout>(form).type;
  const auto size = SmallProduct(*count / kRecordValues, {RecordSize(type)});
  return size ? std::optional(PartSizes{0, 0, *size}) : std::nullopt;
}

}  // namespace onnx_light::snapshot
