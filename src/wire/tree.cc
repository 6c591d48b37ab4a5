// Building and taking apart message trees: what message.h declares under "Access by table row".
#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "onnx_light/message.h"

namespace onnx_light {
namespace {

alignas(64) constinit const char empty_message[kMaxMessageSize] = {};

// What the arena gave for that many bare elements.
uint64_t BareBytes(Kind kind, uint64_t count) {
  return (count * ElementSize(kind) + 7) & ~uint64_t{7};
}

// Messages whose contents still have to be given back: an explicit stack, since trees may be deep.
// It is threaded through the messages' own headers: giving memory back takes none, so it cannot
// fail.
class Pending {
 public:
  bool empty() const { return top_ == nullptr; }

  void Push(Arena& arena, const MessageInfo& info, Message* message) {
    ClearUnknownFields(arena, *message);
    message->unknown = reinterpret_cast<RepeatedBase*>(const_cast<MessageInfo*>(&info));
    message->handle = std::exchange(top_, message);
  }

  std::pair<const MessageInfo*, Message*> Pop() {
    Message* message = top_;
    top_ = static_cast<Message*>(std::exchange(message->handle, nullptr));
    return {reinterpret_cast<const MessageInfo*>(std::exchange(message->unknown, nullptr)),
            message};
  }

 private:
  Message* top_ = nullptr;
};

void Discard(Arena& arena, const MessageInfo& info, Message* message, Pending& pending) {
  if (message->handle != nullptr) {
    message->flags |= Message::kDetached;
  } else {
    pending.Push(arena, info, message);
  }
}

void DiscardElements(Arena& arena, const FieldInfo& field, const ListView& list, uint64_t index,
                     uint64_t count, Pending& pending) {
  if (field.kind == Kind::kMessage) {
    auto** messages = static_cast<Message**>(list.data) + index;
    for (uint64_t i = 0; i < count; ++i) Discard(arena, *field.message, messages[i], pending);
  } else if (field.kind == Kind::kString || field.kind == Kind::kBytes) {
    auto* strings = static_cast<String*>(list.data) + index;
    for (uint64_t i = 0; i < count; ++i) strings[i].Release(arena);
  }
}

void DiscardList(Arena& arena, const FieldInfo& field, RepeatedBase* list, Pending& pending) {
  DiscardElements(arena, field, {list->data, list->size}, 0, list->size, pending);
  if (list->capacity != 0) arena.Free(list->data, list->capacity * ElementSize(field.kind));
  arena.Free(list, sizeof(RepeatedBase));
}

void DiscardSlot(Arena& arena, const FieldInfo& field, ListSlot slot, Pending& pending) {
  if (slot.is_bare()) {
    const ListView view = slot.view();
    DiscardElements(arena, field, view, 0, view.size, pending);
    arena.Free(view.data, BareBytes(field.kind, view.size));
  } else if (slot.list()->handle != nullptr) {
    slot.list()->detached = true;
  } else {
    DiscardList(arena, field, slot.list(), pending);
  }
}

void DiscardField(Arena& arena, Message& message, const FieldInfo& field, Pending& pending) {
  if (field.repeated) {
    DiscardSlot(arena, field, std::exchange(Member<ListSlot>(message, field), {}), pending);
  } else if (field.kind == Kind::kMessage) {
    Discard(arena, *field.message, std::exchange(Member<Message*>(message, field), nullptr),
            pending);
  } else if (field.kind == Kind::kString || field.kind == Kind::kBytes) {
    Member<String>(message, field).Release(arena);
  } else {
    std::memset(&Member<char>(message, field), 0, ElementSize(field.kind));
  }
}

void DiscardContents(Arena& arena, const MessageInfo& info, Message& message, Pending& pending) {
  for (uint32_t bits = std::exchange(message.presence, 0); bits != 0; bits &= bits - 1) {
    DiscardField(arena, message, info.fields[std::countr_zero(bits)], pending);
  }
  ClearUnknownFields(arena, message);
}

void FreePending(Arena& arena, Pending& pending) {
  while (!pending.empty()) {
    const auto [info, message] = pending.Pop();
    DiscardContents(arena, *info, *message, pending);
    arena.Free(message, info->size);
  }
}

}  // namespace

const Message* EmptyMessage() { return reinterpret_cast<const Message*>(empty_message); }

RepeatedBase* NewRepeated(Arena& arena) {
  return new (arena.Allocate(sizeof(RepeatedBase))) RepeatedBase{};
}

void Select(Arena& arena, const MessageInfo& info, Message& message, const FieldInfo& field) {
  if (field.oneof != kNoOneof) {
    const uint32_t others =
        message.presence & info.oneofs[field.oneof].mask & ~(uint32_t{1} << field.index);
    if (others != 0) ClearField(arena, message, info.fields[std::countr_zero(others)]);
  }
  message.presence |= uint32_t{1} << field.index;
}

Message* MutableMessage(Arena& arena, const MessageInfo& info, Message& message,
                        const FieldInfo& field) {
  if (!Has(message, field)) {
    Message* made = NewMessage(arena, *field.message);
    Select(arena, info, message, field);
    Member<Message*>(message, field) = made;
  }
  return Member<Message*>(message, field);
}

RepeatedBase* MutableRepeated(Arena& arena, Message& message, const FieldInfo& field) {
  auto& slot = Member<ListSlot>(message, field);
  if (!slot.is_null() && !slot.is_bare()) return slot.list();
  RepeatedBase* list = NewRepeated(arena);
  if (slot.is_bare()) {
    const ListView view = slot.view();
    list->data = view.data;
    list->size = view.size;
    list->capacity = BareBytes(field.kind, view.size) / ElementSize(field.kind);
  }
  slot.SetList(list);
  message.presence |= uint32_t{1} << field.index;
  return list;
}

void ClearField(Arena& arena, Message& message, const FieldInfo& field) {
  if (!Has(message, field)) return;
  Pending pending;
  message.presence &= ~(uint32_t{1} << field.index);
  DiscardField(arena, message, field, pending);
  FreePending(arena, pending);
}

void AppendUnknownFields(Arena& arena, Message& message, std::string_view bytes) {
  if (bytes.empty()) return;
  if (message.unknown == nullptr) message.unknown = NewRepeated(arena);
  RepeatedBase& list = *message.unknown;
  Reserve(arena, list, list.size + bytes.size(), 1);
  // Reserve() has made data. NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker)
  std::memcpy(static_cast<char*>(list.data) + list.size, bytes.data(), bytes.size());
  list.size += bytes.size();
}

void ClearUnknownFields(Arena& arena, Message& message) {
  if (message.unknown == nullptr) return;
  arena.Free(message.unknown->data, message.unknown->capacity);
  arena.Free(std::exchange(message.unknown, nullptr), sizeof(RepeatedBase));
}

void Clear(Arena& arena, const MessageInfo& info, Message& message) {
  Pending pending;
  DiscardContents(arena, info, message, pending);
  FreePending(arena, pending);
}

void FreeMessage(Arena& arena, const MessageInfo& info, Message* message) {
  Pending pending;
  pending.Push(arena, info, message);
  FreePending(arena, pending);
}

void FreeRepeated(Arena& arena, const FieldInfo& field, RepeatedBase* list) {
  Pending pending;
  DiscardList(arena, field, list, pending);
  FreePending(arena, pending);
}

void Reserve(Arena& arena, RepeatedBase& list, uint64_t capacity, uint64_t element_size) {
  if (capacity <= list.capacity) return;
  if (capacity > String::kMaxSize) throw std::bad_alloc();  // no size below can overflow
  // At least doubled, so that appending is constant time on average.
  capacity = std::max({capacity, uint64_t{list.capacity} * 2, uint64_t{8} / element_size});
  const uint64_t bytes = Arena::ReusableSize(capacity * element_size);
  void* data = arena.Allocate(bytes);
  if (list.capacity != 0) {
    std::memcpy(data, list.data, list.size * element_size);
    arena.Free(list.data, list.capacity * element_size);
  }
  list.data = data;
  list.capacity = bytes / element_size;
}

void InsertElements(Arena& arena, RepeatedBase& list, uint64_t index, uint64_t count, Kind kind) {
  if (count == 0) return;
  const uint64_t size = ElementSize(kind);
  Reserve(arena, list, list.size + count, size);
  char* gap = static_cast<char*>(list.data) + index * size;
  std::memmove(gap + count * size, gap, (list.size - index) * size);
  if (kind == Kind::kString || kind == Kind::kBytes) std::memset(gap, 0, count * size);
  list.size += count;
}

void EraseElements(Arena& arena, const FieldInfo& field, RepeatedBase& list, uint64_t index,
                   uint64_t count) {
  if (count == 0) return;
  Pending pending;
  DiscardElements(arena, field, {list.data, list.size}, index, count, pending);
  const uint64_t size = ElementSize(field.kind);
  char* gap = static_cast<char*>(list.data) + index * size;
  std::memmove(gap, gap + count * size, (list.size - index - count) * size);
  list.size -= count;
  FreePending(arena, pending);
}

Message* AddMessage(Arena& arena, const MessageInfo& element, RepeatedBase& list) {
  Message* message = NewMessage(arena, element);
  internal::Append(arena, static_cast<Repeated<Message*>&>(list), message);
  return message;
}

void internal::AppendString(Arena& arena, RepeatedBase& list, std::string_view value) {
  InsertElements(arena, list, list.size, 1, Kind::kString);
  static_cast<String*>(list.data)[list.size - 1].Set(arena, value);
}

}  // namespace onnx_light
