// Makes the constexpr tables of message.h and checks them at compile time.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "onnx_light/message.h"
#include "wire/encoder.h"
#include "wire/parser.h"
#include "wire/varint.h"

namespace onnx_light {

// Whether a member of type M can hold what a field's kind and label say.
template <typename M>
constexpr bool MemberFits(Kind kind, bool repeated) {
  const auto is = [repeated]<typename T>(T*) {
    return repeated ? std::is_same_v<M, RepeatedSlot<T>> : std::is_same_v<M, T>;
  };
  switch (kind) {
    case Kind::kInt32:
    case Kind::kEnum:
      return is(static_cast<int32_t*>(nullptr));
    case Kind::kInt64:
      return is(static_cast<int64_t*>(nullptr));
    case Kind::kUint32:
      return is(static_cast<uint32_t*>(nullptr));
    case Kind::kUint64:
      return is(static_cast<uint64_t*>(nullptr));
    case Kind::kBool:
      return is(static_cast<bool*>(nullptr));
    case Kind::kFloat:
      return is(static_cast<float*>(nullptr));
    case Kind::kDouble:
      return is(static_cast<double*>(nullptr));
    case Kind::kString:
    case Kind::kBytes:
      return is(static_cast<String*>(nullptr));
    case Kind::kMessage:
      return repeated ? std::is_base_of_v<ListSlot, M> : std::is_pointer_v<M>;
  }
  return false;
}

// How one value of this kind stands in the input.
constexpr WireType WireTypeOf(Kind kind) {
  switch (kind) {
    case Kind::kFloat:
      return WireType::kFixed32;
    case Kind::kDouble:
      return WireType::kFixed64;
    case Kind::kString:
    case Kind::kBytes:
    case Kind::kMessage:
      return WireType::kLengthDelimited;
    default:
      return WireType::kVarint;
  }
}

// Of the message that a member of type M holds: a pointer, or a list of pointers.
template <typename T>
struct PointedTo {
  static constexpr size_t kSize = 0;
};
template <typename T>
struct PointedTo<T*> {
  static constexpr size_t kSize = sizeof(T);
};
template <typename T>
struct PointedTo<RepeatedSlot<T*>> : PointedTo<T*> {};

// One row. A member that does not fit is a compile error.
template <typename M>
consteval FieldInfo MakeField(uint32_t tag, Kind kind, bool repeated, bool packed, size_t offset,
                              uint8_t index, uint8_t oneof, const MessageInfo* message,
                              const EnumInfo* enumeration, const char* name, const char* doc) {
  if (!MemberFits<M>(kind, repeated)) throw "the member's type does not fit the field's kind";
  return FieldInfo{.tag = tag,
                   .tag_size = static_cast<uint8_t>(VarintSize(tag)),
                   .kind = kind,
                   .repeated = repeated,
                   .packed = packed,
                   .offset = static_cast<uint16_t>(offset),
                   .index = index,
                   .oneof = oneof,
                   .wire = WireTypeOf(kind),
                   .message_size = static_cast<uint16_t>(PointedTo<M>::kSize),
                   .message = message,
                   .enumeration = enumeration,
                   .name = name,
                   .doc = doc};
}

// Numbers ascend and are unique, a row's index is its place, members follow each other, and the
// struct fits into presence's bits and EmptyMessage.
template <typename M>
consteval bool ValidTable(std::span<const FieldInfo> fields) {
  if (fields.size() > 32 || sizeof(M) > kMaxMessageSize) return false;
  for (size_t i = 0; i < fields.size(); ++i) {
    const FieldInfo& field = fields[i];
    if (field.index != i || field.number() == 0) return false;
    if (field.offset < sizeof(Message) || field.offset >= sizeof(M)) return false;
    if (i > 0 && field.number() <= fields[i - 1].number()) return false;
    if (i > 0 && field.offset <= fields[i - 1].offset) return false;
    // One direction: with sanitizers GCC takes no address of an extern object for a constant.
    if (field.kind != Kind::kMessage && field.message != nullptr) return false;
    if ((field.kind == Kind::kEnum) != (field.enumeration != nullptr)) return false;
    if (field.packed && (!field.repeated || (field.tag & 7) != 2)) return false;
    if (field.repeated && field.oneof != kNoOneof) return false;
  }
  return true;
}

template <const auto& kFields, uint8_t kRawData>
consteval MessageInfo MakeMessage(const char* name, const char* full_name, const char* doc,
                                  std::span<const OneofInfo> oneofs, uint32_t size,
                                  uint8_t external_data, uint8_t data_location) {
  MessageInfo info{};
  info.name = name;
  info.full_name = full_name;
  info.doc = doc;
  info.fields = kFields;
  info.oneofs = oneofs;
  info.size = size;
  info.raw_data = kRawData;
  info.external_data = external_data;
  info.data_location = data_location;
  info.parse = Parser::ParseFields<kFields, kRawData>;
  info.write = Encoder::WriteFields<kFields, kRawData>;
  info.lookup.fill(MessageInfo::kNoField);
  for (const FieldInfo& field : kFields) {
    if (field.number() < info.lookup.size()) info.lookup[field.number()] = field.index;
    if (field.repeated) info.repeated_mask |= uint32_t{1} << field.index;
  }
  return info;
}

}  // namespace onnx_light
