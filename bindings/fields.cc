#include "fields.h"

#include <algorithm>
#include <cstring>

#include "arrays.h"
#include "onnx_light/message_ops.h"

namespace onnx_light::python {
namespace {

// Stores a number that was converted already.
void StoreNumber(void* at, Kind kind, const Number& number) {
  std::memcpy(at, &number, ElementSize(kind));
}

// Converts `value` and puts it at `index`, or at the end if the list is shorter by then.
void InsertValue(Arena& arena, RepeatedBase& list, const FieldBinding& field, uint64_t index,
                 PyObject* value) {
  const Kind kind = field.field->kind;
  if (IsText(kind)) {
    const BytesView bytes(value, field);
    index = std::min(index, list.size);
    InsertElements(arena, list, index, 1, kind);
    static_cast<String*>(list.data)[index].Set(arena, bytes.view());
    return;
  }
  const Number number = ToNumber(value, field);
  index = std::min(index, list.size);
  InsertElements(arena, list, index, 1, kind);
  StoreNumber(static_cast<char*>(list.data) + index * ElementSize(kind), kind, number);
}

void InsertMessage(Arena& arena, RepeatedBase& list, uint64_t index, Message* message) {
  index = std::min(index, list.size);
  InsertElements(arena, list, index, 1, Kind::kMessage);
  static_cast<Message**>(list.data)[index] = message;
}

// A message for the list that `value`, a message or a mapping, describes. Not in any tree yet.
Message* NewElement(Arena& arena, const ClassBinding& binding, PyObject* value) {
  Message* message = NewMessage(arena, *binding.info);
  try {
    if (FindClass(Py_TYPE(value)) != nullptr) {
      Merge(arena, *binding.info, *message, *ToMessage(value, binding).message);
    } else {
      InitFields({arena, binding, *message}, value);
    }
  } catch (...) {
    FreeMessage(arena, *binding.info, message);
    throw;
  }
  return message;
}

template <typename F>
void ForEach(PyObject* iterable, F&& f) {
  if (PyList_CheckExact(iterable) || PyTuple_CheckExact(iterable)) {
    // The list may change while its values are converted: look at its length anew each time.
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(iterable); ++i) {
      const Ref value = Ref::Borrow(PySequence_Fast_GET_ITEM(iterable, i));
      f(value.get());
    }
    return;
  }
  const Ref iterator(Check(PyObject_GetIter(iterable)));
  while (true) {
    const Ref value(PyIter_Next(iterator.get()));
    if (!value) break;
    f(value.get());
  }
  if (PyErr_Occurred() != nullptr) throw ErrorAlreadySet();
}

void InitList(const Target& target, const FieldBinding& field, PyObject* values) {
  RepeatedBase& list = *MutableRepeated(target.arena, target.message, *field.field);
  if (AppendNumbers(target.arena, list, field, values)) return;
  ForEach(values, [&](PyObject* value) {
    if (field.element != nullptr) {
      InsertMessage(target.arena, list, UINT64_MAX,
                    NewElement(target.arena, *field.element, value));
    } else {
      InsertValue(target.arena, list, field, UINT64_MAX, value);
    }
  });
}

void InitMessage(const Target& target, const FieldBinding& field, PyObject* value) {
  Message& message =
      *MutableMessage(target.arena, *target.binding.info, target.message, *field.field);
  if (FindClass(Py_TYPE(value)) != nullptr) {
    Merge(target.arena, *field.element->info, message, *ToMessage(value, *field.element).message);
  } else {
    InitFields({target.arena, *field.element, message}, value);
  }
}

void StoreValue(const Target& target, const FieldBinding& field, PyObject* value) {
  const FieldInfo& info = *field.field;
  if (IsText(info.kind)) {
    const BytesView bytes(value, field);
    Select(target.arena, *target.binding.info, target.message, info);
    Member<String>(target.message, info).Set(target.arena, bytes.view());
    return;
  }
  const Number number = ToNumber(value, field);
  Select(target.arena, *target.binding.info, target.message, info);
  StoreNumber(&Member<char>(target.message, info), info.kind, number);
}

}  // namespace

PyObject* GetField(MessageObject& self, const FieldBinding& field) {
  const FieldInfo& info = *field.field;
  if (info.repeated || info.kind == Kind::kMessage) return GetHandle(self, field);
  // An unset number or text is all zero, which is its default.
  return ToPython(info, reinterpret_cast<const char*>(self.message) + info.offset);
}

void SetField(MessageObject& self, const FieldBinding& field, PyObject* value) {
  const FieldInfo& info = *field.field;
  if (info.repeated) {
    Raise(PyExc_AttributeError, "%s is a list: change it in place", FieldName(field).c_str());
  }
  if (info.kind == Kind::kMessage) {
    const MessageObject& other = ToMessage(value, *field.element);
    const Ref child(GetHandle(self, field));
    auto& target = *reinterpret_cast<MessageObject*>(child.get());
    CopyMessage(target, other);
    Real(target);  // also where a stub is assigned to itself
    return;
  }
  if (IsText(info.kind)) {
    const BytesView bytes(value, field);
    Real(self);
    Select(self.arena->arena, *self.binding->info, *self.message, info);
    Member<String>(*self.message, info).Set(self.arena->arena, bytes.view());
    return;
  }
  const Number number = ToNumber(value, field);
  Real(self);
  Select(self.arena->arena, *self.binding->info, *self.message, info);
  StoreNumber(&Member<char>(*self.message, info), info.kind, number);
}

const FieldBinding* FindField(const ClassBinding& binding, PyObject* name) {
  const size_t count = binding.info->fields.size();
  for (size_t i = 0; i < count; ++i) {
    if (binding.fields[i].name == name) return &binding.fields[i];
  }
  if (!PyUnicode_Check(name)) return nullptr;
  for (size_t i = 0; i < count; ++i) {
    if (PyUnicode_Compare(binding.fields[i].name, name) == 0) return &binding.fields[i];
  }
  return nullptr;
}

void InitField(const Target& target, PyObject* name, PyObject* value) {
  const FieldBinding* field = FindField(target.binding, name);
  if (field == nullptr) {
    Raise(PyExc_ValueError, "%s has no field %R", target.binding.info->full_name, name);
  }
  if (value == Py_None) return;
  if (field->field->repeated) {
    InitList(target, *field, value);
  } else if (field->element != nullptr) {
    InitMessage(target, *field, value);
  } else {
    StoreValue(target, *field, value);
  }
}

void InitFields(const Target& target, PyObject* mapping) {
  if (!PyDict_CheckExact(mapping)) {
    if (PyMapping_Check(mapping) == 0 || PyUnicode_Check(mapping) || PyBytes_Check(mapping) ||
        PyList_Check(mapping) || PyTuple_Check(mapping)) {
      Raise(PyExc_TypeError, "%s: a message of this class or a mapping of its fields, not %.200s",
            target.binding.info->full_name, Py_TYPE(mapping)->tp_name);
    }
    const Ref items(Check(PyMapping_Items(mapping)));
    ForEach(items.get(), [&](PyObject* pair) {
      if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        Raise(PyExc_TypeError, "items() of a mapping must give pairs");
      }
      InitField(target, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    });
    return;
  }
  // A copy of the dict's items: converting may run code that changes it.
  const Ref items(Check(PyDict_Items(mapping)));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject* pair = PyList_GET_ITEM(items.get(), i);
    InitField(target, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
  }
}

MessageObject& ToMessage(PyObject* value, const ClassBinding& binding) {
  if (Py_TYPE(value) != binding.type) {
    Raise(PyExc_TypeError, "a message of class %s is needed, not %.200s", binding.info->full_name,
          Py_TYPE(value)->tp_name);
  }
  return *reinterpret_cast<MessageObject*>(value);
}

Message* CopyForContent(MessageObject& self, const Message& other) {
  const MessageInfo& info = *self.binding->info;
  Arena& arena = ArenaOf(self)->arena;
  Message* copy = NewMessage(arena, info);
  try {
    Merge(arena, info, *copy, other);
  } catch (...) {
    FreeMessage(arena, info, copy);
    throw;
  }
  return copy;
}

void TakeContent(MessageObject& self, Message* copy) {
  const MessageInfo& info = *self.binding->info;
  Arena& arena = self.arena->arena;
  Clear(arena, info, *self.message);
  // Everything behind the header moves; the header keeps its handle and flags.
  std::swap(self.message->presence, copy->presence);
  std::swap(self.message->unknown, copy->unknown);
  std::memcpy(self.message + 1, copy + 1, info.size - sizeof(Message));
  std::memset(static_cast<void*>(copy + 1), 0, info.size - sizeof(Message));
  FreeMessage(arena, info, copy);
}

void CopyMessage(MessageObject& self, const MessageObject& other) {
  if (&self == &other) return;
  // Copied before `self` becomes real, which may change `other`, and before it is cleared.
  Message* copy = CopyForContent(self, *other.message);
  Real(self);
  TakeContent(self, copy);
  BindStubs(self);
}

void MergeMessage(MessageObject& self, const MessageObject& other) {
  const MessageInfo& info = *self.binding->info;
  if (ArenaOf(self) == other.arena) {
    // They may lie in one another: merge from a copy, made before `self` becomes real.
    Arena scratch;
    Message* copy = NewMessage(scratch, info);
    Merge(scratch, info, *copy, *other.message);
    Real(self);
    Merge(self.arena->arena, info, *self.message, *copy);
  } else {
    Real(self);
    Merge(self.arena->arena, info, *self.message, *other.message);
  }
  BindStubs(self);
}

MessageObject* CloneMessage(const MessageObject& self) {
  Ref clone(reinterpret_cast<PyObject*>(NewRoot(*self.binding)));
  auto& copy = *reinterpret_cast<MessageObject*>(clone.get());
  Merge(copy.arena->arena, *self.binding->info, *copy.message, *self.message);
  return reinterpret_cast<MessageObject*>(clone.release());
}

void ClearFields(MessageObject& self, const FieldInfo* field) {
  Real(self);
  DetachStubs(self, field);
  if (field == nullptr) {
    Clear(self.arena->arena, *self.binding->info, *self.message);
  } else {
    ClearField(self.arena->arena, *self.message, *field);
  }
}

void InsertIntoList(ListObject& self, uint64_t index, PyObject* value) {
  Real(self);
  Arena& arena = self.arena->arena;
  if (self.field->element == nullptr) {
    InsertValue(arena, *self.list, *self.field, index, value);
    return;
  }
  ToMessage(value, *self.field->element);
  InsertMessage(arena, *self.list, index, NewElement(arena, *self.field->element, value));
}

void ExtendList(ListObject& self, PyObject* values) {
  Real(self);
  if (self.field->element != nullptr) {
    const Ref snapshot = values == reinterpret_cast<PyObject*>(&self)
                             ? Ref(Check(PySequence_List(values)))
                             : Ref::Borrow(values);
    ForEach(snapshot.get(), [&](PyObject* value) { InsertIntoList(self, UINT64_MAX, value); });
    return;
  }
  if (AppendNumbers(self.arena->arena, *self.list, *self.field, values)) return;
  Arena scratch;
  RepeatedBase converted{};
  ForEach(values, [&](PyObject* value) {
    InsertValue(scratch, converted, *self.field, UINT64_MAX, value);
  });
  const uint64_t start = self.list->size;
  InsertElements(self.arena->arena, *self.list, start, converted.size, self.kind());
  CopyElements(self.arena->arena, *self.list, start, converted, 0, converted.size, self.kind());
}

PyObject* AddToList(ListObject& self, PyObject* const* values, PyObject* names) {
  Real(self);
  const ClassBinding& binding = *self.field->element;
  Arena& arena = self.arena->arena;
  Message* message = NewMessage(arena, *binding.info);
  try {
    const Py_ssize_t count = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < count; ++i) {
      InitField({arena, binding, *message}, PyTuple_GET_ITEM(names, i), values[i]);
    }
    InsertMessage(arena, *self.list, UINT64_MAX, message);
  } catch (...) {
    FreeMessage(arena, *binding.info, message);
    throw;
  }
  return reinterpret_cast<PyObject*>(WrapMessage(binding, self.arena, message));
}

void CopyElements(Arena& arena, RepeatedBase& to, uint64_t at, const RepeatedBase& from,
                  uint64_t index, uint64_t count, Kind kind) {
  if (count == 0) return;
  if (IsText(kind)) {
    auto* target = static_cast<String*>(to.data) + at;
    const auto* source = static_cast<const String*>(from.data) + index;
    for (uint64_t i = 0; i < count; ++i) target[i].CopyFrom(arena, source[i]);
    return;
  }
  const uint64_t width = ElementSize(kind);
  std::memcpy(static_cast<char*>(to.data) + at * width,
              static_cast<const char*>(from.data) + index * width, count * width);
}

PyObject* GetElement(ListObject& self, uint64_t index) {
  if (self.field->element != nullptr) {
    Message* message = static_cast<Message**>(self.list->data)[index];
    return reinterpret_cast<PyObject*>(WrapMessage(*self.field->element, self.arena, message));
  }
  const char* at = static_cast<const char*>(self.list->data) + index * ElementSize(self.kind());
  return Check(ToPython(*self.field->field, at));
}

}  // namespace onnx_light::python
