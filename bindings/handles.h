// Python objects that stand for messages and lists.
//
// A message tree lives in an arena; a handle is a counted reference to the arena and a pointer into
// it. The message points back, so that one place has one object while somebody holds it. A handle
// of a field that is not set is a stub: it holds its parent's handle and the field, and the first
// write through it sets the field. What is cleared while a handle stands for it is detached: it
// stays in the arena, with its content, until the handle goes.
//
// Everything here is called under the GIL. Functions throw (python.h).
#pragma once

#include "onnx_light/message.h"
#include "python.h"

namespace onnx_light::python {

struct ClassBinding;

// One field of one class: what a property's closure points to.
struct FieldBinding {
  const FieldInfo* field;
  const ClassBinding* owner;
  const ClassBinding* element;  // of message fields
  PyObject* name;               // interned
};

struct ClassBinding {
  const MessageInfo* info;
  PyTypeObject* type;
  FieldBinding* fields;  // as info->fields
};

// The class of `info`; of a Python type, or null if it is no message class.
const ClassBinding* FindClass(const MessageInfo* info);
const ClassBinding* FindClass(PyTypeObject* type);

struct SharedArena {
  Arena arena;
  Py_ssize_t handles = 0;
};

struct MessageObject;

// What messages and lists have in common. `parent` is set as long as the handle is a stub.
struct Handle {
  PyObject_HEAD const FieldBinding* field;  // of a stub, and of every list
  SharedArena* arena;                       // null in a stub
  MessageObject* parent;
  Handle* next_stub;  // among the stubs of the parent

  bool is_stub() const { return parent != nullptr; }
};

struct MessageObject : Handle {
  Message* message;  // EmptyMessage() in a stub
  const ClassBinding* binding;
  Handle* stubs;  // handles of fields of this message that are not set
  PyObject* weak_references;
};

struct ListObject : Handle {
  RepeatedBase* list;  // an empty one in a stub

  Kind kind() const { return field->field->kind; }
};

// Live arenas and handles; stubs are also counted among these. For tests of leaks.
struct Counters {
  Py_ssize_t arenas, messages, lists, stubs;
};
Counters& LiveObjects();

extern PyTypeObject* scalar_list_type;
extern PyTypeObject* message_list_type;

inline bool IsList(PyObject* object) {
  return Py_TYPE(object) == scalar_list_type || Py_TYPE(object) == message_list_type;
}

// A new empty message in an arena of its own.
MessageObject* NewRoot(const ClassBinding& binding);
// A handle of `message`, which lives in `arena`: the one there is, or a new one.
MessageObject* WrapMessage(const ClassBinding& binding, SharedArena* arena, Message* message);
// The handle of a singular message field or a list: of what is there, or a stub.
PyObject* GetHandle(MessageObject& self, const FieldBinding& field);

// Makes a stub, and all stubs above it, real.
void MakeReal(Handle& handle);
inline MessageObject& Real(MessageObject& self) {
  if (self.is_stub()) MakeReal(self);
  return self;
}
inline ListObject& Real(ListObject& self) {
  if (self.is_stub()) MakeReal(self);
  return self;
}

// The arena that a handle lives in, or will when it is made real.
SharedArena* ArenaOf(const Handle& handle);

// After fields were set behind the back of handles (merge, parse): stubs in the tree of `self`
// whose field is set now stand for what is there.
void BindStubs(MessageObject& self);
// Before fields of `self` are cleared: its stubs (of one field, or of all) become detached messages
// and lists.
void DetachStubs(MessageObject& self, const FieldInfo* field = nullptr);

// `self` becomes the handle of the root `message` of `arena`. What it stood for stays with the
// handles below it. REQUIRES: `self` is a root or detached.
void Replace(MessageObject& self, SharedArena* arena, Message* message);
inline bool IsRoot(const MessageObject& self) {
  return !self.is_stub() && (self.message->flags & Message::kDetached) != 0;
}

void DeallocMessage(PyObject* self);
void DeallocList(PyObject* self);

void Release(SharedArena* arena);

}  // namespace onnx_light::python
