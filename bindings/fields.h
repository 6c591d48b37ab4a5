// Fields of messages and elements of lists, set from Python values.
//
// Python code may run while a value is converted (__index__, iterators), and it may change any
// message. So every function converts first and looks at the message afterwards.
#pragma once

#include "convert.h"
#include "handles.h"

namespace onnx_light::python {

// The value of a field: a Python number or text, a message handle, or a list handle.
PyObject* GetField(MessageObject& self, const FieldBinding& field);
// Assignment to the property. Messages are copied; lists cannot be assigned.
void SetField(MessageObject& self, const FieldBinding& field, PyObject* value);

// The field called `name` (a str), or null.
const FieldBinding* FindField(const ClassBinding& binding, PyObject* name);

// Fills one field of a message that Python cannot see yet from a keyword's value: numbers, text,
// messages, mappings, iterables; None leaves the field alone.
struct Target {
  Arena& arena;
  const ClassBinding& binding;
  Message& message;
};
void InitField(const Target& target, PyObject* name, PyObject* value);
// All pairs of a mapping.
void InitFields(const Target& target, PyObject* mapping);

// The message of `value` if it is one of this class; else TypeError.
MessageObject& ToMessage(PyObject* value, const ClassBinding& binding);

// A copy of `other` in the arena of `self`, whose content it becomes by TakeContent: the first may
// run out of memory, the second does not. REQUIRES of the second: `self` is no stub.
Message* CopyForContent(MessageObject& self, const Message& other);
void TakeContent(MessageObject& self, Message* copy);
// `self` becomes a copy of `other`, which may lie above or below it.
void CopyMessage(MessageObject& self, const MessageObject& other);
void MergeMessage(MessageObject& self, const MessageObject& other);
// A copy with an arena of its own.
MessageObject* CloneMessage(const MessageObject& self);

// Clears one field or all, with their stubs. Makes `self` real.
void ClearFields(MessageObject& self, const FieldInfo* field);

// Appends every value of an iterable. Numbers and text: all or none; a list of messages keeps what
// was appended before an error.
void ExtendList(ListObject& self, PyObject* values);
// Inserts one value at `index`, or copies one message there.
void InsertIntoList(ListObject& self, uint64_t index, PyObject* value);
// Copies numbers or texts from a list to another. REQUIRES: the elements exist in both.
void CopyElements(Arena& arena, RepeatedBase& to, uint64_t at, const RepeatedBase& from,
                  uint64_t index, uint64_t count, Kind kind);
// A new element of a message list with these keywords, appended when it is complete.
PyObject* AddToList(ListObject& self, PyObject* const* values, PyObject* names);
// The element at `index` as a Python object. REQUIRES: it exists.
PyObject* GetElement(ListObject& self, uint64_t index);

}  // namespace onnx_light::python
