// Comparison of messages. Both functions are one walk: it stops at the first difference and, if a
// path is wanted, writes it down on the way out.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"
#include "wire/varint.h"

namespace onnx_light {
namespace {

// ---------------------------------------------------------------------------------------------
// Unknown fields

// One field: its number and wire type, and what of the other members that type uses.
struct UnknownField {
  uint32_t tag = 0;
  uint64_t value = 0;
  std::string_view bytes;
  std::vector<UnknownField> group;

  uint32_t number() const { return tag >> 3; }
};

// Takes `size` bytes off the front. False if there are not so many.
bool Take(std::string_view& input, uint64_t size, std::string_view* taken) {
  if (size > input.size()) return false;
  *taken = input.substr(0, size);
  input.remove_prefix(size);
  return true;
}

bool TakeVarint(std::string_view& input, uint64_t* value) {
  const auto* start = reinterpret_cast<const uint8_t*>(input.data());
  const uint8_t* p = ReadVarint(start, start + input.size(), value);
  if (p == nullptr) return false;
  input.remove_prefix(static_cast<size_t>(p - start));
  return true;
}

// The fields up to the end of `input` or, in a group, up to its end tag; of one number in the order
// of the input. False if the bytes are no fields.
bool ParseUnknown(std::string_view& input, uint32_t group, int depth,
                  std::vector<UnknownField>* fields);

bool ParseUnknownValue(std::string_view& input, UnknownField& field, int depth) {
  uint64_t size = 0;
  switch (static_cast<WireType>(field.tag & 7)) {
    case WireType::kVarint:
      return TakeVarint(input, &field.value);
    case WireType::kFixed64:
      return Take(input, 8, &field.bytes);
    case WireType::kFixed32:
      return Take(input, 4, &field.bytes);
    case WireType::kLengthDelimited:
      return TakeVarint(input, &size) && Take(input, size, &field.bytes);
    case WireType::kStartGroup:
      return ParseUnknown(input, field.number(), depth + 1, &field.group);
    default:
      return false;
  }
}

bool ParseUnknown(std::string_view& input, uint32_t group, int depth,
                  std::vector<UnknownField>* fields) {
  if (depth > kMaxDepth) {
    throw ValueError("message.depth", "",
                     "unknown groups of more than " + std::to_string(kMaxDepth) + " levels");
  }
  bool closed = depth == 0;
  while (!input.empty()) {
    uint64_t tag = 0;
    if (!TakeVarint(input, &tag) || tag > std::numeric_limits<uint32_t>::max()) return false;
    if (depth != 0 && tag == MakeTag(group, WireType::kEndGroup)) {
      closed = true;
      break;
    }
    UnknownField& field = fields->emplace_back();
    field.tag = static_cast<uint32_t>(tag);
    if (!ParseUnknownValue(input, field, depth)) return false;
  }
  std::stable_sort(fields->begin(), fields->end(),
                   [](const auto& a, const auto& b) { return a.number() < b.number(); });
  return closed;
}

bool SameFields(const std::vector<UnknownField>& a, const std::vector<UnknownField>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.tag == y.tag && x.value == y.value && x.bytes == y.bytes &&
           SameFields(x.group, y.group);
  });
}

bool SameUnknown(const Message& a, const Message& b) {
  std::string_view bytes_a = UnknownFields(a), bytes_b = UnknownFields(b);
  if (bytes_a == bytes_b) return true;
  std::vector<UnknownField> fields_a, fields_b;
  return ParseUnknown(bytes_a, 0, 0, &fields_a) && ParseUnknown(bytes_b, 0, 0, &fields_b) &&
         SameFields(fields_a, fields_b);
}

// ---------------------------------------------------------------------------------------------
// Known fields

bool SameText(const String& a, const String& b) {
  // Copies share their payloads: most of those need no look at the bytes.
  return a.size() == b.size() && (a.data() == b.data() || a.view() == b.view());
}

// The index of the first of `count` elements that differs, or `count`.
template <typename T>
uint64_t Mismatch(const void* a, const void* b, uint64_t count) {
  const T* first = static_cast<const T*>(a);
  const T* second = static_cast<const T*>(b);
  return static_cast<uint64_t>(std::mismatch(first, first + count, second).first - first);
}

uint64_t MismatchStrings(const void* a, const void* b, uint64_t count) {
  const auto* first = static_cast<const String*>(a);
  const auto* second = static_cast<const String*>(b);
  uint64_t i = 0;
  while (i < count && SameText(first[i], second[i])) ++i;
  return i;
}

// Every kind but messages.
uint64_t MismatchValues(Kind kind, const void* a, const void* b, uint64_t count) {
  switch (kind) {
    case Kind::kFloat:
      return Mismatch<float>(a, b, count);
    case Kind::kDouble:
      return Mismatch<double>(a, b, count);
    case Kind::kString:
    case Kind::kBytes:
      return MismatchStrings(a, b, count);
    default:
      break;
  }
  if (count == 0 || std::memcmp(a, b, count * ElementSize(kind)) == 0) return count;
  switch (ElementSize(kind)) {
    case 1:
      return Mismatch<uint8_t>(a, b, count);
    case 4:
      return Mismatch<uint32_t>(a, b, count);
    default:
      return Mismatch<uint64_t>(a, b, count);
  }
}

class Comparer {
 public:
  explicit Comparer(bool wants_path) : wants_path_(wants_path) {}

  bool Same(const MessageInfo& info, const Message& a, const Message& b);
  std::string TakePath() { return std::move(path_); }

 private:
  bool SameField(const FieldInfo& field, const Message& a, const Message& b);
  bool SameLists(const FieldInfo& field, const ListView& a, const ListView& b);

  // Puts a step in front of the path. Returns false, which every caller passes on.
  bool Differs(std::string_view step, std::optional<uint64_t> index = {});

  const bool wants_path_;
  std::string path_;
};

bool Comparer::Differs(std::string_view step, std::optional<uint64_t> index) {
  if (!wants_path_) return false;
  std::string front(step);
  if (index) front += '[' + std::to_string(*index) + ']';
  path_ = path_.empty() ? std::move(front) : front + '.' + path_;
  return false;
}

bool Comparer::SameLists(const FieldInfo& field, const ListView& a, const ListView& b) {
  if (a.size != b.size && !wants_path_) return false;
  const uint64_t common = std::min(a.size, b.size);
  uint64_t same = 0;
  if (field.kind == Kind::kMessage) {
    const auto* first = static_cast<Message* const*>(a.data);
    const auto* second = static_cast<Message* const*>(b.data);
    while (same < common && Same(*field.message, *first[same], *second[same])) ++same;
  } else {
    same = MismatchValues(field.kind, a.data, b.data, common);
  }
  return (same == common && a.size == b.size) || Differs(field.name, same);
}

bool Comparer::SameField(const FieldInfo& field, const Message& a, const Message& b) {
  if (field.repeated) return SameLists(field, ViewList(a, field), ViewList(b, field));
  if (Has(a, field) != Has(b, field)) return Differs(field.name);
  const bool same =
      field.kind == Kind::kMessage
          ? Same(*field.message, *Member<Message*>(a, field), *Member<Message*>(b, field))
          : MismatchValues(field.kind, &Member<char>(a, field), &Member<char>(b, field), 1) == 1;
  return same || Differs(field.name);
}

bool Comparer::Same(const MessageInfo& info, const Message& a, const Message& b) {
  for (uint32_t bits = a.presence | b.presence; bits != 0; bits &= bits - 1) {
    if (!SameField(info.fields[std::countr_zero(bits)], a, b)) return false;
  }
  return SameUnknown(a, b) || Differs("(unknown fields)");
}

}  // namespace

bool Equal(const MessageInfo& info, const Message& a, const Message& b) {
  CheckDepth(info, a);
  CheckDepth(info, b);
  return Comparer(false).Same(info, a, b);
}

std::optional<std::string> FirstDifference(const MessageInfo& info, const Message& a,
                                           const Message& b) {
  CheckDepth(info, a);
  CheckDepth(info, b);
  Comparer comparer(true);
  if (comparer.Same(info, a, b)) return std::nullopt;
  return comparer.TakePath();
}

}  // namespace onnx_light
