#include "lists.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "arrays.h"
#include "fields.h"
#include "onnx_light/message_ops.h"

namespace onnx_light::python {

PyTypeObject* scalar_list_type = nullptr;
PyTypeObject* message_list_type = nullptr;

namespace {

ListObject& Self(PyObject* object) { return *reinterpret_cast<ListObject*>(object); }
Py_ssize_t Size(PyObject* self) { return static_cast<Py_ssize_t>(Self(self).list->size); }

void Erase(ListObject& self, uint64_t index, uint64_t count) {
  EraseElements(self.arena->arena, *self.field->field, *self.list, index, count);
}

// An index from Python, negative ones from the end; IndexError where there is no element.
uint64_t ToIndex(PyObject* self, PyObject* index) {
  Py_ssize_t i = PyNumber_AsSsize_t(index, PyExc_IndexError);
  if (i == -1 && PyErr_Occurred() != nullptr) throw ErrorAlreadySet();
  const Py_ssize_t size = Size(self);
  if (i < 0) i += size;
  if (i < 0 || i >= size) Raise(PyExc_IndexError, "list index (%zd) out of range", i);
  return static_cast<uint64_t>(i);
}

PyObject* ToList(PyObject* self) {
  Ref list(Check(PyList_New(0)));
  for (Py_ssize_t i = 0; i < Size(self); ++i) {
    const Ref element(GetElement(Self(self), static_cast<uint64_t>(i)));
    Check(PyList_Append(list.get(), element.get()));
  }
  return list.release();
}

// ---------------------------------------------------------------------------------------------
// Subscripts

PyObject* Item(PyObject* self, Py_ssize_t index) {
  return GuardObject([&]() -> PyObject* {
    if (index < 0 || index >= Size(self)) {
      Raise(PyExc_IndexError, "list index (%zd) out of range", index);
    }
    return GetElement(Self(self), static_cast<uint64_t>(index));
  });
}

struct Slice {
  Py_ssize_t start, stop, step, count;
};

Slice ToSlice(PyObject* self, PyObject* slice) {
  Slice s{};
  Check(PySlice_Unpack(slice, &s.start, &s.stop, &s.step));
  s.count = PySlice_AdjustIndices(Size(self), &s.start, &s.stop, s.step);
  return s;
}

PyObject* Subscript(PyObject* self, PyObject* key) {
  return GuardObject([&]() -> PyObject* {
    if (!PySlice_Check(key)) {
      if (!PyIndex_Check(key)) {
        Raise(PyExc_TypeError, "list indices must be integers or slices, not %.200s",
              Py_TYPE(key)->tp_name);
      }
      return GetElement(Self(self), ToIndex(self, key));
    }
    // First the list: making one may collect garbage, and so run code that shortens `self`.
    Ref list(Check(PyList_New(0)));
    const Slice s = ToSlice(self, key);
    for (Py_ssize_t i = 0; i < s.count; ++i) {
      const Ref element(GetElement(Self(self), static_cast<uint64_t>(s.start + i * s.step)));
      Check(PyList_Append(list.get(), element.get()));
    }
    return list.release();
  });
}

void DeleteSlice(ListObject& self, const Slice& s) {
  if (s.count == 0) return;
  if (s.step == 1) {
    Erase(self, static_cast<uint64_t>(s.start), static_cast<uint64_t>(s.count));
    return;
  }
  // From the back, so that the indices in front stay right.
  for (Py_ssize_t i = 0; i < s.count; ++i) {
    const Py_ssize_t place = s.step > 0 ? s.count - 1 - i : i;
    Erase(self, static_cast<uint64_t>(s.start + place * s.step), 1);
  }
}

// A list of converted values with an arena of its own: assigning is all or nothing.
PyObject* ConvertAll(const ListObject& like, PyObject* values);

void AssignSlice(PyObject* object, PyObject* key, PyObject* values) {
  const Ref converted(ConvertAll(Self(object), values));
  ListObject& self = Real(Self(object));
  const Slice s = ToSlice(object, key);
  const RepeatedBase& from = *Self(converted.get()).list;
  Arena& arena = self.arena->arena;
  if (s.step == 1) {
    const auto start = static_cast<uint64_t>(s.start);
    Erase(self, start, static_cast<uint64_t>(std::max<Py_ssize_t>(s.count, 0)));
    InsertElements(arena, *self.list, start, from.size, self.kind());
    CopyElements(arena, *self.list, start, from, 0, from.size, self.kind());
    return;
  }
  if (from.size != static_cast<uint64_t>(s.count)) {
    Raise(PyExc_ValueError, "attempt to assign sequence of size %zd to extended slice of size %zd",
          static_cast<Py_ssize_t>(from.size), s.count);
  }
  for (Py_ssize_t i = 0; i < s.count; ++i) {
    CopyElements(arena, *self.list, static_cast<uint64_t>(s.start + i * s.step), from,
                 static_cast<uint64_t>(i), 1, self.kind());
  }
}

void AssignItem(PyObject* object, PyObject* key, PyObject* value) {
  // Converted into a list of one first: the index counts when nothing can run any more.
  const Ref one(Check(PyTuple_Pack(1, value)));
  const Ref converted(ConvertAll(Self(object), one.get()));
  const uint64_t index = ToIndex(object, key);
  ListObject& self = Self(object);
  CopyElements(self.arena->arena, *self.list, index, *Self(converted.get()).list, 0, 1,
               self.kind());
}

int AssignSubscript(PyObject* self, PyObject* key, PyObject* value) {
  return Guard<int>(-1, [&] {
    if (value == nullptr) {
      if (PySlice_Check(key)) {
        Real(Self(self));
        DeleteSlice(Self(self), ToSlice(self, key));
      } else {
        const uint64_t index = ToIndex(self, key);
        Erase(Self(self), index, 1);
      }
      return 0;
    }
    if (Self(self).field->element != nullptr) {
      Raise(PyExc_TypeError, "elements of a message list cannot be assigned: change them in place");
    }
    if (PySlice_Check(key)) {
      AssignSlice(self, key, value);
    } else {
      AssignItem(self, key, value);
    }
    return 0;
  });
}

// ---------------------------------------------------------------------------------------------
// Methods

PyObject* Append(PyObject* object, PyObject* value) {
  return GuardObject([&] {
    ListObject& self = Self(object);
    InsertIntoList(self, UINT64_MAX, value);
    if (self.field->element == nullptr) return Py_NewRef(Py_None);
    return GetElement(self, self.list->size - 1);
  });
}

PyObject* Extend(PyObject* self, PyObject* values) {
  return GuardObject([&] {
    ExtendList(Self(self), values);
    return Py_NewRef(Py_None);
  });
}

PyObject* Insert(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return GuardObject([&] {
    if (count != 2) Raise(PyExc_TypeError, "insert() takes an index and a value");
    Py_ssize_t index = PyNumber_AsSsize_t(arguments[0], nullptr);
    if (index == -1 && PyErr_Occurred() != nullptr) throw ErrorAlreadySet();
    if (index < 0) index = std::max<Py_ssize_t>(index + Size(self), 0);
    InsertIntoList(Self(self), static_cast<uint64_t>(index), arguments[1]);
    return Py_NewRef(Py_None);
  });
}

PyObject* Add(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  return GuardObject([&] {
    if (count != 0) Raise(PyExc_TypeError, "add() takes keywords only");
    return AddToList(Self(self), arguments, names);
  });
}

PyObject* Pop(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return GuardObject([&] {
    if (count > 1) Raise(PyExc_TypeError, "pop() takes at most one index");
    const Ref last(PyLong_FromLong(-1));
    const uint64_t index = ToIndex(self, count == 1 ? arguments[0] : last.get());
    Ref element(GetElement(Self(self), index));
    Erase(Self(self), index, 1);
    return element.release();
  });
}

// The first index in [start, stop) whose element equals `value`, or -1.
Py_ssize_t Find(PyObject* self, PyObject* value, Py_ssize_t start, Py_ssize_t stop) {
  for (Py_ssize_t i = start; i < std::min(stop, Size(self)); ++i) {
    const Ref element(GetElement(Self(self), static_cast<uint64_t>(i)));
    const int equal = PyObject_RichCompareBool(element.get(), value, Py_EQ);
    Check(equal);
    if (equal != 0) return i;
  }
  return -1;
}

PyObject* Remove(PyObject* self, PyObject* value) {
  return GuardObject([&] {
    const Py_ssize_t index = Find(self, value, 0, PY_SSIZE_T_MAX);
    if (index < 0 || index >= Size(self)) {
      Raise(PyExc_ValueError, "remove(x): x not in container");
    }
    Erase(Self(self), static_cast<uint64_t>(index), 1);
    return Py_NewRef(Py_None);
  });
}

PyObject* Index(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return GuardObject([&] {
    if (count < 1 || count > 3) Raise(PyExc_TypeError, "index() takes a value, a start and a stop");
    Py_ssize_t bounds[2] = {0, PY_SSIZE_T_MAX};
    for (Py_ssize_t i = 1; i < count; ++i) {
      Py_ssize_t bound = PyNumber_AsSsize_t(arguments[i], nullptr);
      if (bound == -1 && PyErr_Occurred() != nullptr) throw ErrorAlreadySet();
      bounds[i - 1] = bound < 0 ? std::max<Py_ssize_t>(bound + Size(self), 0) : bound;
    }
    const Py_ssize_t index = Find(self, arguments[0], bounds[0], bounds[1]);
    if (index < 0) Raise(PyExc_ValueError, "%R is not in the list", arguments[0]);
    return Check(PyLong_FromSsize_t(index));
  });
}

PyObject* Count(PyObject* self, PyObject* value) {
  return GuardObject([&] {
    Py_ssize_t count = 0;
    for (Py_ssize_t i = Find(self, value, 0, PY_SSIZE_T_MAX); i >= 0;
         i = Find(self, value, i + 1, PY_SSIZE_T_MAX)) {
      ++count;
    }
    return Check(PyLong_FromSsize_t(count));
  });
}

int Contains(PyObject* self, PyObject* value) {
  return Guard<int>(-1, [&] { return Find(self, value, 0, PY_SSIZE_T_MAX) >= 0 ? 1 : 0; });
}

PyObject* ClearList(PyObject* self, PyObject*) {
  return GuardObject([&] {
    // A list of a field that is not set stays so.
    if (!Self(self).is_stub()) Erase(Self(self), 0, Self(self).list->size);
    return Py_NewRef(Py_None);
  });
}

PyObject* Reverse(PyObject* self, PyObject*) {
  return GuardObject([&] {
    Real(Self(self));
    const RepeatedBase& list = *Self(self).list;
    const uint64_t width = ElementSize(Self(self).kind());
    auto* data = static_cast<char*>(list.data);
    for (uint64_t low = 0, high = list.size; low + 1 < high; ++low, --high) {
      std::swap_ranges(data + low * width, data + (low + 1) * width, data + (high - 1) * width);
    }
    return Py_NewRef(Py_None);
  });
}

// The messages of sorted handles go back into the list, if it still has exactly these.
void StoreOrder(ListObject& self, PyObject* sorted) {
  const auto count = static_cast<uint64_t>(PyList_GET_SIZE(sorted));
  auto** messages = static_cast<Message**>(self.list->data);
  std::vector<Message*> order, now(messages, messages + self.list->size);
  for (uint64_t i = 0; i < count; ++i) {
    PyObject* handle = PyList_GET_ITEM(sorted, static_cast<Py_ssize_t>(i));
    order.push_back(reinterpret_cast<MessageObject*>(handle)->message);
  }
  std::vector<Message*> expected = order;
  std::sort(expected.begin(), expected.end());
  std::sort(now.begin(), now.end());
  if (now != expected) Raise(PyExc_ValueError, "list modified during sort");
  std::copy(order.begin(), order.end(), messages);
}

PyObject* Sort(PyObject* object, PyObject* arguments, PyObject* keywords) {
  return GuardObject([&] {
    ListObject& self = Self(object);
    const Ref list(ToList(object));
    const Ref sort(Check(PyObject_GetAttrString(list.get(), "sort")));
    const Ref done(Check(PyObject_Call(sort.get(), arguments, keywords)));
    if (self.is_stub()) return Py_NewRef(Py_None);
    if (self.field->element != nullptr) {
      StoreOrder(self, list.get());
    } else {
      const Ref converted(ConvertAll(self, list.get()));
      const RepeatedBase& from = *Self(converted.get()).list;
      if (from.size != self.list->size) Raise(PyExc_ValueError, "list modified during sort");
      CopyElements(self.arena->arena, *self.list, 0, from, 0, from.size, self.kind());
    }
    return Py_NewRef(Py_None);
  });
}

PyObject* MergeFrom(PyObject* self, PyObject* other) {
  return GuardObject([&] {
    ExtendList(Self(self), other);
    return Py_NewRef(Py_None);
  });
}

// An empty list of the same field that is in no message.
ListObject* NewDetached(const ListObject& like) {
  // A root of the owning class carries the arena; its list is taken out.
  const Ref root(reinterpret_cast<PyObject*>(NewRoot(*like.field->owner)));
  auto& message = *reinterpret_cast<MessageObject*>(root.get());
  Ref list(GetHandle(message, *like.field));
  DetachStubs(message, like.field->field);
  return reinterpret_cast<ListObject*>(list.release());
}

PyObject* ConvertAll(const ListObject& like, PyObject* values) {
  Ref list(reinterpret_cast<PyObject*>(NewDetached(like)));
  ExtendList(Self(list.get()), values);
  return list.release();
}

PyObject* DeepCopy(PyObject* self, PyObject*) {
  return GuardObject([&] { return ConvertAll(Self(self), self); });
}

PyObject* Array(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return GuardObject([&] {
    static const char* const names[] = {"dtype", "copy", nullptr};
    PyObject *dtype = nullptr, *copy = nullptr;
    if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|OO:__array__", const_cast<char**>(names),
                                    &dtype, &copy) == 0) {
      throw ErrorAlreadySet();
    }
    return ToArray(Self(self), dtype);
  });
}

PyObject* Compare(PyObject* self, PyObject* other, int operation) {
  return GuardObject([&]() -> PyObject* {
    if ((operation != Py_EQ && operation != Py_NE) || (!IsList(other) && !PyList_Check(other))) {
      return Py_NewRef(Py_NotImplemented);
    }
    const Ref a(ToList(self));
    const Ref b(IsList(other) ? ToList(other) : Py_NewRef(other));
    return PyObject_RichCompare(a.get(), b.get(), operation);
  });
}

PyObject* Repr(PyObject* self) {
  return GuardObject([&] {
    const Ref list(ToList(self));
    return PyObject_Repr(list.get());
  });
}

#define ONNX_LIGHT_LIST_METHODS                                                                    \
  {"extend", Extend, METH_O,                                                                       \
   "extend($self, values, /)\n--\n\nAppends every value of an iterable."},                         \
      {"insert", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Insert)),              \
       METH_FASTCALL,                                                                              \
       "insert($self, index, value, /)\n--\n\nPuts a value, or a copy of a message, at an "        \
       "index."},                                                                                  \
      {"pop", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Pop)), METH_FASTCALL,     \
       "pop($self, index=-1, /)\n--\n\nTakes an element out and returns it."},                     \
      {"remove", Remove, METH_O,                                                                   \
       "remove($self, value, /)\n--\n\nTakes out the first element that equals the value."},       \
      {"index", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Index)), METH_FASTCALL, \
       "index($self, value, start=0, stop=9223372036854775807, /)\n--\n\n"                         \
       "The first index of an element that equals the value; ValueError if there is none."},       \
      {"count", Count, METH_O,                                                                     \
       "count($self, value, /)\n--\n\nThe number of elements that equal the value."},              \
      {"clear", ClearList, METH_NOARGS, "clear($self, /)\n--\n\nRemoves all elements."},           \
      {"reverse", Reverse, METH_NOARGS,                                                            \
       "reverse($self, /)\n--\n\nTurns the order round, in place."},                               \
      {"sort", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Sort)),                  \
       METH_VARARGS | METH_KEYWORDS,                                                               \
       "sort($self, /, *, key=None, reverse=False)\n--\n\nSorts in place, as list.sort does."},    \
      {"MergeFrom", MergeFrom, METH_O,                                                             \
       "MergeFrom($self, other, /)\n--\n\nAppends every element of another list."},                \
  {                                                                                                \
    "__deepcopy__", DeepCopy, METH_VARARGS,                                                        \
        "__deepcopy__($self, memo=None, /)\n--\n\nA copy that is in no message."                   \
  }

PyMethodDef scalar_methods[] = {
    ONNX_LIGHT_LIST_METHODS,
    {"append", Append, METH_O, "append($self, value, /)\n--\n\nAdds a value at the end."},
    {"__array__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Array)),
     METH_VARARGS | METH_KEYWORDS,
     "__array__($self, dtype=None, copy=None)\n--\n\n"
     "A new array of the elements: numbers of the field's type, text as str or bytes."},
    {}};
PyMethodDef message_methods[] = {
    ONNX_LIGHT_LIST_METHODS,
    {"append", Append, METH_O,
     "append($self, value, /)\n--\n\nAdds a copy of a message at the end and returns it."},
    {"add", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Add)),
     METH_FASTCALL | METH_KEYWORDS,
     "add($self, /, **fields)\n--\n\nAppends a new element with these fields and returns it."},
    {}};

PyTypeObject* MakeType(PyObject* module, const char* name, const char* doc, PyMethodDef* methods) {
  PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(DeallocList)},
                         {Py_tp_doc, const_cast<char*>(doc)},
                         {Py_tp_methods, methods},
                         {Py_tp_repr, reinterpret_cast<void*>(Repr)},
                         {Py_tp_richcompare, reinterpret_cast<void*>(Compare)},
                         {Py_tp_hash, reinterpret_cast<void*>(PyObject_HashNotImplemented)},
                         {Py_sq_length, reinterpret_cast<void*>(Size)},
                         {Py_sq_item, reinterpret_cast<void*>(Item)},
                         {Py_sq_contains, reinterpret_cast<void*>(Contains)},
                         {Py_mp_length, reinterpret_cast<void*>(Size)},
                         {Py_mp_subscript, reinterpret_cast<void*>(Subscript)},
                         {Py_mp_ass_subscript, reinterpret_cast<void*>(AssignSubscript)},
                         {0, nullptr}};
  PyType_Spec spec{name, sizeof(ListObject), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_SEQUENCE,
                   slots};
  PyObject* type = Check(PyType_FromSpec(&spec));
  Check(PyModule_AddObjectRef(module, std::strrchr(name, '.') + 1, type));
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace

void AddListTypes(PyObject* module) {
  scalar_list_type =
      MakeType(module, "onnx_light.onnx.RepeatedScalar",
               "The elements of a repeated field of numbers, text or bytes.", scalar_methods);
  message_list_type = MakeType(module, "onnx_light.onnx.RepeatedMessage",
                               "The elements of a repeated message field.", message_methods);
  const Ref abc(Check(PyImport_ImportModule("collections.abc")));
  const Ref sequence(Check(PyObject_GetAttrString(abc.get(), "MutableSequence")));
  for (PyTypeObject* type : {scalar_list_type, message_list_type}) {
    const Ref done(Check(PyObject_CallMethod(sequence.get(), "register", "O", type)));
    Freeze(type);
  }
}

}  // namespace onnx_light::python
