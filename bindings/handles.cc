#include "handles.h"

#include <memory>
#include <utility>
#include <vector>

#include "wire/visit.h"

namespace onnx_light::python {
namespace {

RepeatedBase empty_list{};

void CountHandle(SharedArena* arena) { ++arena->handles; }

void Unlink(Handle& stub) {
  --LiveObjects().stubs;
  Handle** link = &stub.parent->stubs;
  while (*link != &stub) link = &(*link)->next_stub;
  *link = stub.next_stub;
}

// Drops the reference to a stub's parent. A chain of stubs that only hold each other goes in a
// loop: it may be longer than the stack.
void DropParent(MessageObject* parent) {
  while (parent != nullptr && Py_REFCNT(parent) == 1 && parent->is_stub()) {
    Unlink(*parent);
    MessageObject* next = std::exchange(parent->parent, nullptr);
    Py_DECREF(parent);
    parent = next;
  }
  Py_XDECREF(parent);
}

// Gives a stub its place; it is no stub any more.
void Bind(Handle& stub, SharedArena* arena, void* place) {
  stub.arena = arena;
  CountHandle(arena);
  if (IsList(reinterpret_cast<PyObject*>(&stub))) {
    static_cast<ListObject&>(stub).list = static_cast<RepeatedBase*>(place);
    static_cast<RepeatedBase*>(place)->handle = &stub;
  } else {
    static_cast<MessageObject&>(stub).message = static_cast<Message*>(place);
    static_cast<Message*>(place)->handle = &stub;
  }
  Unlink(stub);
  DropParent(std::exchange(stub.parent, nullptr));
}

// The message or the list of a field; null if it is not set.
void* PlaceOf(const MessageObject& self, const FieldInfo& field) {
  if (!Has(*self.message, field)) return nullptr;
  if (field.repeated) return MutableRepeated(self.arena->arena, *self.message, field);
  return Member<Message*>(*self.message, field);
}

template <typename Object>
Object* Allocate(PyTypeObject* type) {
  auto* object = PyObject_New(Object, type);
  if (object == nullptr) throw ErrorAlreadySet();
  object->field = nullptr;
  object->arena = nullptr;
  object->parent = nullptr;
  object->next_stub = nullptr;
  return object;
}

MessageObject* AllocateMessage(const ClassBinding& binding) {
  auto* object = Allocate<MessageObject>(binding.type);
  object->message = const_cast<Message*>(EmptyMessage());
  object->binding = &binding;
  object->stubs = nullptr;
  object->weak_references = nullptr;
  ++LiveObjects().messages;
  return object;
}

ListObject* AllocateList(const FieldBinding& field) {
  auto* object =
      Allocate<ListObject>(field.element != nullptr ? message_list_type : scalar_list_type);
  object->field = &field;
  object->list = &empty_list;
  ++LiveObjects().lists;
  return object;
}

ListObject* WrapList(const FieldBinding& field, SharedArena* arena, RepeatedBase* list) {
  if (list->handle != nullptr) {
    return reinterpret_cast<ListObject*>(Py_NewRef(static_cast<PyObject*>(list->handle)));
  }
  ListObject* object = AllocateList(field);
  object->arena = arena;
  object->list = list;
  list->handle = object;
  CountHandle(arena);
  return object;
}

void BindStubsOf(MessageObject& self) {
  std::vector<Ref> bound;  // keeps them alive while their own stubs are looked at
  for (Handle* stub = self.stubs; stub != nullptr;) {
    Handle* next = stub->next_stub;
    if (void* place = PlaceOf(self, *stub->field->field)) {
      bound.push_back(Ref::Borrow(reinterpret_cast<PyObject*>(stub)));
      Bind(*stub, self.arena, place);
    }
    stub = next;
  }
  for (const Ref& object : bound) {
    if (!IsList(object.get())) BindStubsOf(*reinterpret_cast<MessageObject*>(object.get()));
  }
}

}  // namespace

Counters& LiveObjects() {
  static Counters counters{};
  return counters;
}

void Release(SharedArena* arena) {
  if (--arena->handles > 0) return;
  --LiveObjects().arenas;
  delete arena;
}

MessageObject* WrapMessage(const ClassBinding& binding, SharedArena* arena, Message* message) {
  if (message->handle != nullptr) {
    return reinterpret_cast<MessageObject*>(Py_NewRef(static_cast<PyObject*>(message->handle)));
  }
  MessageObject* object = AllocateMessage(binding);
  object->arena = arena;
  object->message = message;
  message->handle = object;
  CountHandle(arena);
  return object;
}

MessageObject* NewRoot(const ClassBinding& binding) {
  auto arena = std::make_unique<SharedArena>();
  Message* message = NewMessage(arena->arena, *binding.info);
  message->flags |= Message::kDetached;
  MessageObject* object = WrapMessage(binding, arena.get(), message);
  arena.release();         // its handle holds it now
  ++LiveObjects().arenas;  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
  return object;
}

PyObject* GetHandle(MessageObject& self, const FieldBinding& field) {
  if (void* place = PlaceOf(self, *field.field)) {
    if (field.field->repeated) {
      return reinterpret_cast<PyObject*>(
          WrapList(field, self.arena, static_cast<RepeatedBase*>(place)));
    }
    return reinterpret_cast<PyObject*>(
        WrapMessage(*field.element, self.arena, static_cast<Message*>(place)));
  }
  for (Handle* stub = self.stubs; stub != nullptr; stub = stub->next_stub) {
    if (stub->field == &field) return Py_NewRef(reinterpret_cast<PyObject*>(stub));
  }
  Handle* stub = field.field->repeated ? static_cast<Handle*>(AllocateList(field))
                                       : static_cast<Handle*>(AllocateMessage(*field.element));
  stub->field = &field;
  stub->parent = reinterpret_cast<MessageObject*>(Py_NewRef(reinterpret_cast<PyObject*>(&self)));
  stub->next_stub = self.stubs;
  self.stubs = stub;
  ++LiveObjects().stubs;
  return reinterpret_cast<PyObject*>(stub);
}

void MakeReal(Handle& handle) {
  std::vector<Handle*> chain{&handle};
  while (chain.back()->parent->is_stub()) chain.push_back(chain.back()->parent);
  for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
    Handle& stub = **it;
    MessageObject& parent = *stub.parent;
    const FieldInfo& field = *stub.field->field;
    Arena& arena = parent.arena->arena;
    void* place = field.repeated
                      ? static_cast<void*>(MutableRepeated(arena, *parent.message, field))
                      : MutableMessage(arena, *parent.binding->info, *parent.message, field);
    Bind(stub, parent.arena, place);
  }
}

SharedArena* ArenaOf(const Handle& handle) {
  const Handle* real = &handle;
  while (real->is_stub()) real = real->parent;
  return real->arena;
}

void BindStubs(MessageObject& self) {
  if (LiveObjects().stubs == 0) return;
  // Every message with a handle may have stubs; only those below `self` can have been changed.
  std::vector<Ref> handles;
  VisitMessages(*self.binding->info, *self.message,
                [&](const MessageInfo&, const Message& message, const auto&) {
                  if (message.handle == nullptr) return;
                  handles.push_back(Ref::Borrow(static_cast<PyObject*>(message.handle)));
                });
  for (const Ref& handle : handles) BindStubsOf(*reinterpret_cast<MessageObject*>(handle.get()));
}

void DetachStubs(MessageObject& self, const FieldInfo* field) {
  for (Handle* stub = self.stubs; stub != nullptr;) {
    Handle* next = stub->next_stub;
    if (field == nullptr || stub->field->field == field) {
      Arena& arena = self.arena->arena;
      void* place;
      if (stub->field->field->repeated) {
        RepeatedBase* list = NewRepeated(arena);
        list->detached = true;
        place = list;
      } else {
        Message* message = NewMessage(arena, *stub->field->element->info);
        message->flags |= Message::kDetached;
        place = message;
      }
      Bind(*stub, self.arena, place);
    }
    stub = next;
  }
}

void Replace(MessageObject& self, SharedArena* arena, Message* message) {
  SharedArena* old_arena = self.arena;
  Message* old_message = self.message;
  self.arena = arena;
  self.message = message;
  message->handle = &self;
  message->flags |= Message::kDetached;
  CountHandle(arena);
  old_message->handle = nullptr;
  if (old_arena->handles > 1) FreeMessage(old_arena->arena, *self.binding->info, old_message);
  Release(old_arena);
}

void DeallocMessage(PyObject* object) {
  auto* self = reinterpret_cast<MessageObject*>(object);
  --LiveObjects().messages;
  MessageObject* parent = self->parent;
  // Callbacks of weak references may look for the handle again: it must not be found. They may also
  // remove a message from its tree, which ends it; one that is detached already nobody can reach.
  bool detached = false;
  if (parent != nullptr) {
    Unlink(*self);
  } else if (self->arena != nullptr) {
    self->message->handle = nullptr;
    detached = (self->message->flags & Message::kDetached) != 0;
  }
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  if (self->arena != nullptr) {
    // The last handle of an arena drops it whole, without a walk.
    if (detached && self->arena->handles > 1) {
      FreeMessage(self->arena->arena, *self->binding->info, self->message);
    }
    Release(self->arena);
  }
  PyTypeObject* type = Py_TYPE(object);
  PyObject_Free(object);
  Py_DECREF(type);
  DropParent(parent);
}

void DeallocList(PyObject* object) {
  auto* self = reinterpret_cast<ListObject*>(object);
  --LiveObjects().lists;
  MessageObject* parent = nullptr;
  if (self->is_stub()) {
    Unlink(*self);
    parent = self->parent;
  } else if (self->arena != nullptr) {
    self->list->handle = nullptr;
    if (self->list->detached && self->arena->handles > 1) {
      FreeRepeated(self->arena->arena, *self->field->field, self->list);
    }
    Release(self->arena);
  }
  PyTypeObject* type = Py_TYPE(object);
  PyObject_Free(object);
  Py_DECREF(type);
  DropParent(parent);
}

}  // namespace onnx_light::python
