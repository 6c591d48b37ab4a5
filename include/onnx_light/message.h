// How a message lies in memory, and the tables that describe it.
//
// A message is a plain struct in an arena: a header, then one member per field in the order of
// field numbers. A field's index in its table is its bit in `presence`. Scalars lie in the struct;
// messages and lists are pointers, null until first set. All bytes zero is the empty
// message. Everything that is done with messages (parse, write, compare, ...) is an algorithm over
// MessageInfo; no message has code of its own beyond one-line accessors and what the compiler makes
// of such an algorithm and the message's table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "onnx_light/arena.h"
#include "onnx_light/export.h"

namespace onnx_light {

class Encoder;
class Parser;
struct MessageInfo;

// ---------------------------------------------------------------------------------------------
// Values

// A pointer and a number below 2^16 in one word: addresses of user space have 48 bits.
struct PackedPointer {
  static constexpr int kShift = 48;
  static constexpr uint64_t kAddress = (uint64_t{1} << kShift) - 1;

  // Whether `pointer` can be packed. Systems with longer addresses give them only to who asks.
  static bool Fits(const void* pointer) {
    return (reinterpret_cast<uintptr_t>(pointer) & ~kAddress) == 0;
  }
};

// A string or bytes field: 8 bytes. Short ones are owned by the arena or borrowed from an input
// that the arena keeps; those of at least kPayloadSize bytes are shared buffers.
class ONNX_LIGHT_EXPORT String {
 public:
  static constexpr uint64_t kPayloadSize = 4096;
  static constexpr uint64_t kMaxSize = (uint64_t{1} << 48) - 1;

  uint64_t size() const { return is_payload() ? payload()->size : word_ >> kSizeShift & kSizeMask; }
  const char* data() const { return is_payload() ? payload()->data : text(); }
  std::string_view view() const {
    if (is_payload()) [[unlikely]] {
      return {payload()->data, static_cast<size_t>(payload()->size)};
    }
    return {text(), static_cast<size_t>(word_ >> kSizeShift & kSizeMask)};
  }

  // Whether it holds no memory: no Release() is needed before it refers to other bytes.
  bool is_null() const { return word_ == 0; }
  // Whether it is a shared buffer.
  bool is_payload() const { return (word_ & kPayload) != 0; }

  // Copies `value`; writes in place where it fits. `value` may lie inside this string.
  void Set(Arena& arena, std::string_view value);
  // Refers to `bytes` without a copy.
  void SetShared(Arena& arena, SharedBytes bytes);
  // Refers to memory that lives as long as the arena. REQUIRES: the string is empty or Release()d;
  // 0 < size < kPayloadSize.
  void SetBorrowed(Arena& arena, const char* data, uint64_t size) {
    if (!PackedPointer::Fits(data)) [[unlikely]] {
      SetShared(arena, CopyBytes(data, size));
      return;
    }
    word_ = reinterpret_cast<uintptr_t>(data) | size << kSizeShift;
  }
  // Becomes a copy of `other`, sharing its buffer if it has one.
  void CopyFrom(Arena& arena, const String& other);
  // The bytes as a reference that outlives the message; a short string first moves to a buffer.
  SharedBytes Share(Arena& arena);
  // The same without an arena. REQUIRES: size() >= kPayloadSize.
  SharedBytes Shared() const;
  // Gives the memory back and becomes empty.
  void Release(Arena& arena);

 private:
  // From the top: two flags, twelve bits of size, the address of the text. A payload has its size
  // in its node.
  static constexpr uint64_t kPayload = uint64_t{1} << 63;
  static constexpr uint64_t kOwned = uint64_t{1} << 62;
  static constexpr int kSizeShift = PackedPointer::kShift;
  static constexpr uint64_t kSizeMask = kPayloadSize - 1;

  bool is_owned() const { return (word_ & kOwned) != 0; }
  Payload* payload() const { return reinterpret_cast<Payload*>(word_ & ~kPayload); }
  char* text() const { return reinterpret_cast<char*>(word_ & PackedPointer::kAddress); }

  uint64_t word_;
};

// The type-erased part of a repeated field. `handle` is free for a language binding: the object
// that stands for this list there. A list with a handle is kept when its field is cleared,
// detached.
struct RepeatedBase {
  void* data;
  uint64_t size;
  uint64_t capacity : 63;  // in elements
  uint64_t detached : 1;
  void* handle;
};

// int32_t, int64_t, uint32_t, uint64_t, float, double, bool, String, or a pointer to a message.
template <typename T>
struct Repeated : RepeatedBase {
  T* elements() const { return static_cast<T*>(data); }
  std::span<const T> span() const { return {elements(), static_cast<size_t>(size)}; }
};

// The elements of a repeated field, for reading.
struct ListView {
  void* data;
  uint64_t size;

  template <typename T>
  std::span<const T> span() const {
    return {static_cast<const T*>(data), static_cast<size_t>(size)};
  }
};

// The member of a repeated field: 8 bytes. Null, a list, or the elements alone: what the parser
// makes of up to kMaxBare elements, until somebody wants to change or hold the list.
class ListSlot {
 public:
  static constexpr uint64_t kMaxBare = (uint64_t{1} << 16) - 1;

  bool is_null() const { return word_ == 0; }
  bool is_bare() const { return word_ >> PackedPointer::kShift != 0; }
  ListView view() const {
    if (is_bare()) return {bare_data(), word_ >> PackedPointer::kShift};
    return word_ == 0 ? ListView{} : ListView{list()->data, list()->size};
  }
  // REQUIRES: the slot is not bare.
  RepeatedBase* list() const { return reinterpret_cast<RepeatedBase*>(word_); }
  void SetList(RepeatedBase* list) { word_ = reinterpret_cast<uintptr_t>(list); }
  // REQUIRES: `data` fits a PackedPointer, 0 < size <= kMaxBare; the memory was asked for as that
  // many elements.
  void SetBare(void* data, uint64_t size) {
    word_ = reinterpret_cast<uintptr_t>(data) | size << PackedPointer::kShift;
  }

 private:
  void* bare_data() const { return reinterpret_cast<void*>(word_ & PackedPointer::kAddress); }

  uint64_t word_;
};

// The same, with the type of the elements.
template <typename T>
struct RepeatedSlot : ListSlot {};

// The header of every message. `handle` as in RepeatedBase.
struct Message {
  static constexpr uint32_t kDetached = 1;

  uint32_t presence;
  uint32_t flags;
  RepeatedBase* unknown;  // the bytes of unknown fields as they were read, or null
  void* handle;
};

// ---------------------------------------------------------------------------------------------
// Tables

enum class Kind : uint8_t {
  kInt32,
  kInt64,
  kUint32,
  kUint64,
  kBool,
  kEnum,
  kFloat,
  kDouble,
  kString,
  kBytes,
  kMessage
};

enum class WireType : uint8_t {
  kVarint = 0,
  kFixed64 = 1,
  kLengthDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5
};

struct EnumValueInfo {
  int32_t number;
  const char* name;
};

struct EnumInfo {
  const char* name;       // "DataType"
  const char* full_name;  // "TensorProto.DataType"
  const char* doc;
  std::span<const EnumValueInfo> values;  // in declaration order
  uint64_t known;                         // bit n: n is listed (all values are below 64)

  bool Contains(int32_t number) const { return (number & ~63) == 0 && (known >> number & 1) != 0; }
  // The name of `number`, or empty.
  std::string_view NameOf(int32_t number) const {
    for (const EnumValueInfo& value : values) {
      if (value.number == number) return value.name;
    }
    return {};
  }
};

inline constexpr uint8_t kNoOneof = 0xff;

struct FieldInfo {
  uint32_t tag;      // in the declared form
  uint8_t tag_size;  // 1 to 5 bytes
  Kind kind;
  bool repeated;
  bool packed;                  // repeated scalars: the form that is written
  uint16_t offset;              // of the member
  uint8_t index;                // in the table and in `presence`
  uint8_t oneof;                // in MessageInfo::oneofs, or kNoOneof
  WireType wire;                // of one value
  uint16_t message_size;        // of kMessage: MessageInfo::size
  const MessageInfo* message;   // of kMessage
  const EnumInfo* enumeration;  // of kEnum
  const char* name;
  const char* doc;

  constexpr uint32_t number() const { return tag >> 3; }
};

struct OneofInfo {
  const char* name;
  uint32_t mask;  // presence bits of its members
};

struct MessageInfo {
  static constexpr uint8_t kNoField = 0xff;

  const char* name;       // "Tensor"
  const char* full_name;  // "TypeProto.Tensor"
  const char* doc;
  std::span<const FieldInfo> fields;  // ascending by number
  std::span<const OneofInfo> oneofs;
  uint32_t size;                   // of the struct
  uint32_t repeated_mask;          // presence bits of repeated fields
  std::array<uint8_t, 32> lookup;  // number -> index for numbers below 32
  // Indices of raw_data, external_data and data_location of messages that carry a payload.
  uint8_t raw_data, external_data, data_location;
  // What the compiler makes of the table for reading (wire/parser.h) and writing (wire/encoder.h).
  const uint8_t* (*parse)(Parser& parser, const MessageInfo& info, Message& message,
                          const uint8_t* p, const uint8_t* end, int depth);
  uint8_t* (*write)(Encoder& encoder, const Message& message, uint8_t* p, int depth);

  bool has_payload() const { return raw_data != kNoField; }
  // The field with this number, or null. Constant time below 32; above, a walk from the end, where
  // the few extension fields are.
  const FieldInfo* Find(uint32_t number) const {
    if (number < lookup.size()) {
      return lookup[number] == kNoField ? nullptr : &fields[lookup[number]];
    }
    for (size_t i = fields.size(); i > 0 && fields[i - 1].number() >= number; --i) {
      if (fields[i - 1].number() == number) return &fields[i - 1];
    }
    return nullptr;
  }
  const FieldInfo* Find(std::string_view field_name) const {
    for (const FieldInfo& field : fields) {
      if (field.name == field_name) return &field;
    }
    return nullptr;
  }
};

// All messages and enums, nested ones after their parents.
ONNX_LIGHT_EXPORT std::span<const MessageInfo* const> AllMessages();
ONNX_LIGHT_EXPORT std::span<const EnumInfo* const> AllEnums();

// ---------------------------------------------------------------------------------------------
// Access by table row

inline bool Has(const Message& message, const FieldInfo& field) {
  return (message.presence >> field.index & 1) != 0;
}
template <typename T>
T& Member(Message& message, const FieldInfo& field) {
  return *reinterpret_cast<T*>(reinterpret_cast<char*>(&message) + field.offset);
}
template <typename T>
const T& Member(const Message& message, const FieldInfo& field) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(&message) + field.offset);
}

inline ListView ViewList(const Message& message, const FieldInfo& field) {
  return Member<ListSlot>(message, field).view();
}

// A message that is not set, of any class: kMaxMessageSize zero bytes. Never written to.
inline constexpr uint64_t kMaxMessageSize = 512;
ONNX_LIGHT_EXPORT const Message* EmptyMessage();

inline Message* NewMessage(Arena& arena, const MessageInfo& info) {
  return static_cast<Message*>(std::memset(arena.Allocate(info.size), 0, info.size));
}
ONNX_LIGHT_EXPORT RepeatedBase* NewRepeated(Arena& arena);

// Marks a singular scalar as present, clearing the other members of its oneof.
ONNX_LIGHT_EXPORT void Select(Arena& arena, const MessageInfo& info, Message& message,
                              const FieldInfo& field);
// The message of a singular field, made empty if it is not set. Selects the oneof member.
ONNX_LIGHT_EXPORT Message* MutableMessage(Arena& arena, const MessageInfo& info, Message& message,
                                          const FieldInfo& field);
// The list of a repeated field, made empty if there is none.
ONNX_LIGHT_EXPORT RepeatedBase* MutableRepeated(Arena& arena, Message& message,
                                                const FieldInfo& field);
// Clears one field: presence, memory, references. Messages and lists with a handle are detached.
// This and what follows takes no memory, at any depth.
ONNX_LIGHT_EXPORT void ClearField(Arena& arena, Message& message, const FieldInfo& field);
// Clears all fields, the unknown ones too.
ONNX_LIGHT_EXPORT void Clear(Arena& arena, const MessageInfo& info, Message& message);
// Gives a message that is in no tree back to its arena.
ONNX_LIGHT_EXPORT void FreeMessage(Arena& arena, const MessageInfo& info, Message* message);
// The same for a list of `field` that is in no message.
ONNX_LIGHT_EXPORT void FreeRepeated(Arena& arena, const FieldInfo& field, RepeatedBase* list);

// The size in bytes of one element of a repeated field of this kind.
constexpr uint64_t ElementSize(Kind kind) {
  switch (kind) {
    case Kind::kBool:
      return 1;
    case Kind::kInt32:
    case Kind::kUint32:
    case Kind::kEnum:
    case Kind::kFloat:
      return 4;
    case Kind::kString:
    case Kind::kBytes:
      return sizeof(String);
    default:
      return 8;
  }
}

// Makes room for `capacity` elements. The new ones are not initialised.
ONNX_LIGHT_EXPORT void Reserve(Arena& arena, RepeatedBase& list, uint64_t capacity,
                               uint64_t element_size);
// Opens a gap of `count` elements at `index`; strings in it are empty, all else is uninitialised.
ONNX_LIGHT_EXPORT void InsertElements(Arena& arena, RepeatedBase& list, uint64_t index,
                                      uint64_t count, Kind kind);
// Removes elements. Messages with a handle are detached.
ONNX_LIGHT_EXPORT void EraseElements(Arena& arena, const FieldInfo& field, RepeatedBase& list,
                                     uint64_t index, uint64_t count);
// Appends an empty message.
ONNX_LIGHT_EXPORT Message* AddMessage(Arena& arena, const MessageInfo& element, RepeatedBase& list);

// ---------------------------------------------------------------------------------------------
// Ownership from C++

// A message and the arena that it lives in. `M` is a message class, or Message with its
// MessageInfo.
template <typename M>
class Owned {
 public:
  Owned() : message_(static_cast<M*>(NewMessage(arena_, M::kInfo))) {}
  Arena& arena() { return arena_; }
  M& operator*() { return *message_; }
  const M& operator*() const { return *message_; }
  M* operator->() { return message_; }
  const M* operator->() const { return message_; }

 private:
  Arena arena_;
  M* message_;
};

// The unknown fields as they were read: tags and values, in input order.
inline std::string_view UnknownFields(const Message& message) {
  if (message.unknown == nullptr) return {};
  return {static_cast<const char*>(message.unknown->data),
          static_cast<size_t>(message.unknown->size)};
}
ONNX_LIGHT_EXPORT void AppendUnknownFields(Arena& arena, Message& message, std::string_view bytes);
ONNX_LIGHT_EXPORT void ClearUnknownFields(Arena& arena, Message& message);

// What the generated accessors are made of.
namespace internal {

template <typename T>
std::span<const T> View(const RepeatedSlot<T>& slot) {
  return slot.view().template span<T>();
}
template <typename M>
const M& OrEmpty(const M* message) {
  return message == nullptr ? *static_cast<const M*>(EmptyMessage()) : *message;
}
template <typename T>
void Append(Arena& arena, Repeated<T>& list, T value) {
  if (list.size == list.capacity) Reserve(arena, list, list.size + 1, sizeof(T));
  list.elements()[list.size++] = value;
}
ONNX_LIGHT_EXPORT void AppendString(Arena& arena, RepeatedBase& list, std::string_view value);

}  // namespace internal
}  // namespace onnx_light
