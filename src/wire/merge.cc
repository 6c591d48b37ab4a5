// Depth and merging.
#include <bit>
#include <cstring>
#include <string>

#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"

namespace onnx_light {
namespace {

void CheckLevels(const MessageInfo& info, const Message& message, int levels_left);

void CheckSubmessage(const FieldInfo& field, const Message& message, int levels_left) {
  if (levels_left == 0) {
    throw ValueError("message.depth", "",
                     "more than " + std::to_string(kMaxDepth) + " levels of messages");
  }
  CheckLevels(*field.message, message, levels_left - 1);
}

void CheckLevels(const MessageInfo& info, const Message& message, int levels_left) {
  for (uint32_t bits = message.presence; bits != 0; bits &= bits - 1) {
    const FieldInfo& field = info.fields[std::countr_zero(bits)];
    if (field.kind != Kind::kMessage) continue;
    if (!field.repeated) {
      CheckSubmessage(field, *Member<Message*>(message, field), levels_left);
      continue;
    }
    for (const Message* element : ViewList(message, field).span<Message*>()) {
      CheckSubmessage(field, *element, levels_left);
    }
  }
}

// What follows is bounded by the depth of `from`, which Merge has checked.
void MergeMessage(Arena& arena, const MessageInfo& info, Message& into, const Message& from);

void MergeMessages(Arena& arena, const FieldInfo& field, RepeatedBase& into, const ListView& from,
                   uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    Message* element = AddMessage(arena, *field.message, into);
    MergeMessage(arena, *field.message, *element, *static_cast<Message* const*>(from.data)[i]);
  }
}

// The two lists may be one: `from` is read after the room is made, and only its first elements.
void MergeRepeated(Arena& arena, const FieldInfo& field, RepeatedBase& into,
                   const Message& from_message) {
  const uint64_t count = ViewList(from_message, field).size;
  const uint64_t width = ElementSize(field.kind);
  Reserve(arena, into, into.size + count, width);
  const ListView from = ViewList(from_message, field);
  if (field.kind == Kind::kMessage) {
    MergeMessages(arena, field, into, from, count);
  } else if (field.kind == Kind::kString || field.kind == Kind::kBytes) {
    const uint64_t start = into.size;
    InsertElements(arena, into, start, count, field.kind);
    for (uint64_t i = 0; i < count; ++i) {
      static_cast<String*>(into.data)[start + i].CopyFrom(arena,
                                                          static_cast<const String*>(from.data)[i]);
    }
  } else {
    std::memcpy(static_cast<char*>(into.data) + into.size * width, from.data, count * width);
    into.size += count;
  }
}

void MergeField(Arena& arena, const MessageInfo& info, const FieldInfo& field, Message& into,
                const Message& from) {
  if (field.repeated) {
    if (ViewList(from, field).size != 0) {
      MergeRepeated(arena, field, *MutableRepeated(arena, into, field), from);
    }
  } else if (field.kind == Kind::kMessage) {
    MergeMessage(arena, *field.message, *MutableMessage(arena, info, into, field),
                 *Member<Message*>(from, field));
  } else {
    Select(arena, info, into, field);
    if (field.kind == Kind::kString || field.kind == Kind::kBytes) {
      Member<String>(into, field).CopyFrom(arena, Member<String>(from, field));
    } else {
      std::memmove(&Member<char>(into, field), &Member<char>(from, field), ElementSize(field.kind));
    }
  }
}

// As with lists: AppendUnknownFields would read the bytes after their memory has moved.
void MergeUnknown(Arena& arena, Message& into, const Message& from) {
  if (UnknownFields(from).empty()) return;
  if (into.unknown == nullptr) into.unknown = NewRepeated(arena);
  const uint64_t count = from.unknown->size;
  RepeatedBase& list = *into.unknown;
  Reserve(arena, list, list.size + count, 1);
  std::memcpy(static_cast<char*>(list.data) + list.size, from.unknown->data, count);
  list.size += count;
}

void MergeMessage(Arena& arena, const MessageInfo& info, Message& into, const Message& from) {
  for (uint32_t bits = from.presence; bits != 0; bits &= bits - 1) {
    MergeField(arena, info, info.fields[std::countr_zero(bits)], into, from);
  }
  MergeUnknown(arena, into, from);
}

}  // namespace

void CheckDepth(const MessageInfo& info, const Message& message) {
  CheckLevels(info, message, kMaxDepth);
}

void Merge(Arena& arena, const MessageInfo& info, Message& into, const Message& from) {
  CheckDepth(info, from);
  MergeMessage(arena, info, into, from);
}

}  // namespace onnx_light
