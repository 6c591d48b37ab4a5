#include "onnx/tensor_layout.h"

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "base/math.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

// How the elements of one data type are stored.
struct Element {
  int bits = -1;                // in raw data; 0: there is no raw form
  const char* field = nullptr;  // of elements that are not raw
  int entries = 1;              // of that field for each element; packed ones share theirs
};

constexpr auto kElements = [] {
  std::array<Element, 29> elements{};  // by number
  const auto set = [&](std::initializer_list<int> types, int bits, const char* field) {
    for (int type : types) elements[type] = {bits, field, 1};
  };
  using T = TensorProto;
  set({T::FLOAT}, 32, "float_data");
  set({T::DOUBLE}, 64, "double_data");
  set({T::INT64}, 64, "int64_data");
  set({T::UINT32}, 32, "uint64_data");
  set({T::UINT64}, 64, "uint64_data");
  set({T::STRING}, 0, "string_data");
  set({T::INT32}, 32, "int32_data");
  set({T::INT16, T::UINT16, T::FLOAT16, T::BFLOAT16}, 16, "int32_data");
  set({T::INT8, T::UINT8, T::BOOL, T::FLOAT8E4M3FN, T::FLOAT8E4M3FNUZ, T::FLOAT8E5M2,
       T::FLOAT8E5M2FNUZ, T::FLOAT8E8M0},
      8, "int32_data");
  set({T::FLOAT6E2M3, T::FLOAT6E3M2}, 6, "int32_data");
  set({T::INT4, T::UINT4, T::FLOAT4E2M1}, 4, "int32_data");
  set({T::INT2, T::UINT2}, 2, "int32_data");
  elements[T::COMPLEX64] = {64, "float_data", 2};
  elements[T::COMPLEX128] = {128, "double_data", 2};
  return elements;
}();

constexpr std::string_view kTypedFields[] = {"float_data", "int32_data",  "string_data",
                                             "int64_data", "double_data", "uint64_data"};

const FieldInfo& Field(std::string_view name) { return *TensorProto::kInfo.Find(name); }

uint64_t Entries(const TensorProto& tensor, const FieldInfo& field) {
  return Has(tensor, field) ? ViewList(tensor, field).size : 0;
}

const Element* FindElement(int32_t data_type) {
  if (data_type < 0 || data_type >= static_cast<int32_t>(kElements.size())) return nullptr;
  return kElements[data_type].bits < 0 ? nullptr : &kElements[data_type];
}

std::string DimsText(const TensorProto& tensor) {
  std::string text = "[";
  for (int64_t dim : tensor.dims()) text += (text.size() == 1 ? "" : ", ") + std::to_string(dim);
  return text + "]";
}

// Bytes of this many elements in raw data, or nothing above 2^63 - 1. Packed elements share bytes.
std::optional<int64_t> RawSize(int64_t count, int bits) {
  if (bits % 8 == 0) return CheckedMul<int64_t>(count, bits / 8);
  const auto size = CheckedMul<uint64_t>(static_cast<uint64_t>(count), bits);
  if (!size) return std::nullopt;
  return static_cast<int64_t>(CeilDiv(*size, 8));
}

int64_t ElementCount(const TensorProto& tensor, const Element& element, const std::string& path) {
  for (size_t axis = 0; axis < tensor.dims().size(); ++axis) {
    const int64_t dim = tensor.dims()[axis];
    if (dim < 0) {
      throw ValueError("tensor.dims", path + "dims[" + std::to_string(axis) + "]",
                       "must not be negative, is " + std::to_string(dim));
    }
  }
  const std::optional<int64_t> count = CheckedProduct(tensor.dims());
  if (count && RawSize(*count, element.bits)) return *count;
  throw ValueError("tensor.dims", path + "dims", DimsText(tensor) + " is more than 2^63 - 1 bytes");
}

std::string Join(const std::vector<const FieldInfo*>& fields) {
  std::string text;
  for (const FieldInfo* field : fields)
    text += (text.empty() ? "" : " and ") + std::string(field->name);
  return text;
}

// The one field that holds the elements; an absent one may hold none.
const FieldInfo& DataField(const TensorProto& tensor, const Element& element,
                           const std::string& path) {
  std::vector<const FieldInfo*> used;
  for (std::string_view name : kTypedFields) {
    if (Entries(tensor, Field(name)) > 0) used.push_back(&Field(name));
  }
  const bool is_typed = !used.empty();
  const bool is_external = tensor.data_location() == TensorProto::EXTERNAL;
  if (tensor.has_raw_data() && (!is_external || !tensor.raw_data().empty())) {
    used.push_back(&Field("raw_data"));
  }
  if (is_external) used.push_back(&Field("external_data"));
  if (used.empty()) return Field(element.field);
  const FieldInfo& field = *used[0];
  if (used.size() > 1) {
    throw ValueError(is_external ? "external.inline" : "tensor.data", path + field.name,
                     Join(used) + " cannot all hold elements");
  }
  if (field.name != std::string_view(element.field) && (element.bits == 0 || is_typed)) {
    throw ValueError(
        "tensor.data", path + field.name,
        "elements of " + DataTypeName(tensor.data_type()) + " belong into " + element.field);
  }
  return field;
}

void CheckSize(const TensorProto& tensor, const std::string& path, uint64_t actual,
               uint64_t expected, const char* unit) {
  if (actual == expected) return;
  throw ValueError("tensor.size", path,
                   std::to_string(actual) + " " + unit + ", but dims " + DimsText(tensor) +
                       " need " + std::to_string(expected));
}

}  // namespace

std::optional<int> ElementBits(int32_t data_type) {
  const Element* element = FindElement(data_type);
  return element == nullptr ? std::nullopt : std::optional(element->bits);
}

std::string DataTypeName(int32_t data_type) {
  for (const EnumInfo* info : AllEnums()) {
    if (info->full_name != std::string_view("TensorProto.DataType")) continue;
    const std::string_view name = info->NameOf(data_type);
    if (!name.empty()) return std::string(name);
  }
  return std::to_string(data_type);
}

TensorLayout ReadTensorLayout(const TensorProto& tensor, const std::string& path) {
  const std::string prefix = path.empty() ? "" : path + ".";
  if (tensor.has_segment()) {
    throw ValueError("tensor.segment", prefix + "segment", "tensors in segments are not supported");
  }
  const Element* element = FindElement(tensor.data_type());
  if (element == nullptr) {
    throw ValueError("tensor.data_type", prefix + "data_type",
                     "must be 1 to " + std::to_string(kElements.size() - 1) + ", is " +
                         std::to_string(tensor.data_type()));
  }
  const int64_t count = ElementCount(tensor, *element, prefix);
  const FieldInfo& field = DataField(tensor, *element, prefix);
  const std::string where = prefix + field.name;
  const auto raw_size = static_cast<uint64_t>(*RawSize(count, element->bits));
  if (&field == &Field("raw_data")) {
    CheckSize(tensor, where, tensor.raw_data().size(), raw_size, "bytes");
  } else if (&field != &Field("external_data")) {
    const bool is_packed = element->bits == 2 || element->bits == 4;  // an entry is one byte
    const uint64_t entries = is_packed ? raw_size : static_cast<uint64_t>(count) * element->entries;
    CheckSize(tensor, where, Entries(tensor, field), entries, "entries");
  }
  return {&field, count, raw_size};
}

}  // namespace onnx_light
