// The methods that every message class has.
#include <bit>
#include <cstring>
#include <string>

#include "fields.h"
#include "message_bridge.h"
#include "messages.h"
#include "onnx_light/message_ops.h"
#include "options.h"
#include "payload_view.h"
#include "serialization_methods.h"
#include "wire/visit.h"

namespace onnx_light::python {
namespace {

MessageObject& Self(PyObject* object) { return *reinterpret_cast<MessageObject*>(object); }
PyObject* None() { return Py_NewRef(Py_None); }

PyCFunction AsFunction(PyCFunctionWithKeywords f) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

// The name of a field or oneof as text.
std::string_view ToName(PyObject* name) {
  if (PyBytes_Check(name)) {
    return {PyBytes_AS_STRING(name), static_cast<size_t>(PyBytes_GET_SIZE(name))};
  }
  if (!PyUnicode_Check(name)) {
    Raise(PyExc_ValueError, "a field's name is a str, not %.200s", Py_TYPE(name)->tp_name);
  }
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name, &size);
  if (text == nullptr) throw ErrorAlreadySet();
  return {text, static_cast<size_t>(size)};
}

[[noreturn]] void NoSuchField(const MessageObject& self, PyObject* name, const char* what) {
  Raise(PyExc_ValueError, "%s has no %s %R", self.binding->info->full_name, what, name);
}

const OneofInfo* FindOneof(const MessageInfo& info, std::string_view name) {
  for (const OneofInfo& oneof : info.oneofs) {
    if (oneof.name == name) return &oneof;
  }
  return nullptr;
}

// The member of a oneof that is set, or null.
const FieldInfo* SetMember(const MessageObject& self, const OneofInfo& oneof) {
  const uint32_t bits = self.message->presence & oneof.mask;
  return bits == 0 ? nullptr
                   : &self.binding->info->fields[static_cast<size_t>(std::countr_zero(bits))];
}

PyObject* HasField(PyObject* object, PyObject* name) {
  return GuardObject([&] {
    const MessageObject& self = Self(object);
    const std::string_view text = ToName(name);
    if (const FieldInfo* field = self.binding->info->Find(text)) {
      if (field->repeated) NoSuchField(self, name, "singular field");
      return PyBool_FromLong(Has(*self.message, *field));
    }
    const OneofInfo* oneof = FindOneof(*self.binding->info, text);
    if (oneof == nullptr) NoSuchField(self, name, "field");
    return PyBool_FromLong(SetMember(self, *oneof) != nullptr);
  });
}

PyObject* WhichOneof(PyObject* object, PyObject* name) {
  return GuardObject([&] {
    const MessageObject& self = Self(object);
    const OneofInfo* oneof = FindOneof(*self.binding->info, ToName(name));
    if (oneof == nullptr) NoSuchField(self, name, "oneof");
    const FieldInfo* member = SetMember(self, *oneof);
    return member == nullptr ? None() : PyUnicode_FromString(member->name);
  });
}

PyObject* ClearFieldMethod(PyObject* object, PyObject* name) {
  return GuardObject([&] {
    MessageObject& self = Self(object);
    const std::string_view text = ToName(name);
    const FieldInfo* field = self.binding->info->Find(text);
    if (field == nullptr) {
      const OneofInfo* oneof = FindOneof(*self.binding->info, text);
      if (oneof == nullptr) NoSuchField(self, name, "field");
      field = SetMember(Real(self), *oneof);
    }
    if (field != nullptr) ClearFields(self, field);
    return None();
  });
}

PyObject* ClearMethod(PyObject* object, PyObject*) {
  return GuardObject([&] {
    ClearFields(Self(object), nullptr);
    return None();
  });
}

PyObject* CopyFrom(PyObject* object, PyObject* other) {
  return GuardObject([&] {
    CopyMessage(Self(object), ToMessage(other, *Self(object).binding));
    return None();
  });
}

PyObject* MergeFrom(PyObject* object, PyObject* other) {
  return GuardObject([&] {
    MergeMessage(Self(object), ToMessage(other, *Self(object).binding));
    return None();
  });
}

PyObject* ListFields(PyObject* object, PyObject*) {
  return GuardObject([&] {
    MessageObject& self = Self(object);
    Ref list(Check(PyList_New(0)));
    for (size_t i = 0; i < self.binding->info->fields.size(); ++i) {
      const FieldBinding& field = self.binding->fields[i];
      if (!Has(*self.message, *field.field)) continue;
      if (field.field->repeated && ViewList(*self.message, *field.field).size == 0) continue;
      const Ref value(Check(GetField(self, field)));
      const Ref pair(Check(PyTuple_Pack(2, field.name, value.get())));
      Check(PyList_Append(list.get(), pair.get()));
    }
    return list.release();
  });
}

PyObject* SetInParent(PyObject* object, PyObject*) {
  return GuardObject([&] {
    Real(Self(object));
    return None();
  });
}

PyObject* IsInitialized(PyObject*, PyObject*) { return Py_NewRef(Py_True); }

PyObject* DiscardUnknownFields(PyObject* object, PyObject*) {
  return GuardObject([&] {
    MessageObject& self = Real(Self(object));
    VisitMessages(*self.binding->info, *self.message,
                  [&](const MessageInfo&, Message& message, const auto&) {
                    ClearUnknownFields(self.arena->arena, message);
                  });
    return None();
  });
}

PyObject* Payload(PyObject* object, PyObject* name) {
  return GuardObject([&] {
    MessageObject& self = Self(object);
    const FieldInfo* field = self.binding->info->Find(ToName(name));
    if (field == nullptr) NoSuchField(self, name, "field");
    if (field->repeated || field->kind != Kind::kBytes) NoSuchField(self, name, "bytes field");
    if (!Has(*self.message, *field)) return NewPayloadView(SharedBytes());
    return NewPayloadView(Member<String>(*self.message, *field).Share(self.arena->arena));
  });
}

PyObject* Copy(PyObject* object, PyObject*) {
  return GuardObject([&] { return reinterpret_cast<PyObject*>(CloneMessage(Self(object))); });
}

PyObject* Reduce(PyObject* object, PyObject*) {
  return GuardObject([&] {
    const Ref make(
        Check(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "FromString")));
    const Ref bytes(Check(SerializeToBytes(Self(object), {})));
    return Check(Py_BuildValue("(O(O))", make.get(), bytes.get()));
  });
}

// The onnx package is only needed when somebody asks for its messages.
PyObject* CallInterop(const char* function, PyObject* first, PyObject* second) {
  const Ref module(PyImport_ImportModule("onnx_light.onnx.interop"));
  if (!module) return nullptr;
  return second == nullptr ? PyObject_CallMethod(module.get(), function, "O", first)
                           : PyObject_CallMethod(module.get(), function, "OO", first, second);
}
PyObject* ToOnnx(PyObject* self, PyObject*) { return CallInterop("to_onnx", self, nullptr); }
PyObject* FromOnnx(PyObject* type, PyObject* message) {
  return CallInterop("from_onnx", type, message);
}

PyObject* Bridge(PyObject* object, PyObject*) {
  return GuardObject([&] {
    const MessageObject& self = Self(object);
    Arena* arena = self.is_stub() ? nullptr : &self.arena->arena;
    auto* bridge = new MessageBridge{self.binding->info, self.message, arena};
    PyObject* capsule = PyCapsule_New(bridge, kMessageBridge, [](PyObject* done) {
      delete static_cast<MessageBridge*>(PyCapsule_GetPointer(done, kMessageBridge));
    });
    if (capsule == nullptr) delete bridge;
    return Check(capsule);
  });
}

}  // namespace

PyObject* CompareMessages(PyObject* self, PyObject* other, int operation) {
  return GuardObject([&] {
    if ((operation != Py_EQ && operation != Py_NE) || FindClass(Py_TYPE(other)) == nullptr) {
      return Py_NewRef(Py_NotImplemented);
    }
    const bool equal = Py_TYPE(self) == Py_TYPE(other) &&
                       Equal(*Self(self).binding->info, *Self(self).message, *Self(other).message);
    return PyBool_FromLong(equal == (operation == Py_EQ));
  });
}

PyObject* MessageText(PyObject* object) {
  return GuardObject([&] {
    const std::string text = ToText(*Self(object).binding->info, *Self(object).message);
    return Check(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
  });
}

PyMethodDef* MessageMethods() {
  static PyMethodDef methods[] = {
      {"HasField", HasField, METH_O,
       "HasField($self, name, /)\n--\n\nWhether a singular field, or any member of a oneof, is "
       "set."},
      {"WhichOneof", WhichOneof, METH_O,
       "WhichOneof($self, name, /)\n--\n\nThe name of the member of a oneof that is set, or None."},
      {"Clear", ClearMethod, METH_NOARGS,
       "Clear($self, /)\n--\n\nUnsets every field, and drops unknown ones."},
      {"ClearField", ClearFieldMethod, METH_O,
       "ClearField($self, name, /)\n--\n\nUnsets a field, or whatever member of a oneof is set."},
      {"CopyFrom", CopyFrom, METH_O,
       "CopyFrom($self, other, /)\n--\n\nBecomes equal to `other`, a message of the same class."},
      {"MergeFrom", MergeFrom, METH_O,
       "MergeFrom($self, other, /)\n--\n\n"
       "Takes over set scalars, merges messages, appends to repeated fields."},
      {"ListFields", ListFields, METH_NOARGS,
       "ListFields($self, /)\n--\n\nName and value of every set field, in ascending field number."},
      {"SetInParent", SetInParent, METH_NOARGS,
       "SetInParent($self, /)\n--\n\n"
       "Makes this message present in the one it is a field of, even if it stays empty."},
      {"IsInitialized", IsInitialized, METH_NOARGS,
       "IsInitialized($self, /)\n--\n\nTrue: no field is required."},
      {"DiscardUnknownFields", DiscardUnknownFields, METH_NOARGS,
       "DiscardUnknownFields($self, /)\n--\n\nDrops unknown fields, also in messages below."},
      {"payload", Payload, METH_O,
       "payload($self, name, /)\n--\n\n"
       "A read-only view of a bytes field, without a copy. It stays valid and unchanged whatever\n"
       "happens to the message."},
      {"ByteSize", ByteSize, METH_NOARGS,
       "ByteSize($self, /)\n--\n\nThe length of SerializeToString() in bytes."},
      {"ParseFromString", AsFunction(ParseFromString), METH_VARARGS | METH_KEYWORDS,
       "ParseFromString($self, data, options=None)\n--\n\n"
       "Becomes the message that `data` holds; ParseError leaves this message as it was."},
      {"MergeFromString", MergeFromString, METH_O,
       "MergeFromString($self, data, /)\n--\n\n"
       "Merges the message that `data` holds; returns the number of bytes."},
      {"FromString", FromString, METH_O | METH_CLASS,
       "FromString($type, data, /)\n--\n\nA new message from its serialized form."},
      {"ParseFromFile", AsFunction(ParseFromFile), METH_VARARGS | METH_KEYWORDS,
       "ParseFromFile($self, name, options=None, external_data_file='')\n--\n\n"
       "Becomes the message of a file; external payloads become inline from the second file."},
      {"SerializeToString", AsFunction(SerializeToString), METH_VARARGS | METH_KEYWORDS,
       "SerializeToString($self, options=None)\n--\n\n"
       "The serialized form: fields in ascending number, unknown fields last."},
      {"SerializePartialToString", AsFunction(SerializeToString), METH_VARARGS | METH_KEYWORDS,
       "SerializePartialToString($self, options=None)\n--\n\n"
       "The same as SerializeToString: no field is required."},
      {"SerializeSize", AsFunction(SerializeSize), METH_VARARGS | METH_KEYWORDS,
       "SerializeSize($self, options=None)\n--\n\n"
       "The sizes of what SerializeToString would make, without making it."},
      {"SerializeToFile", AsFunction(SerializeToFile), METH_VARARGS | METH_KEYWORDS,
       "SerializeToFile($self, name, options=None, external_data_file='')\n--\n\n"
       "Writes a file whole or not at all; big payloads go to the second file where named."},
      {"SerializeToFileDescriptor", AsFunction(SerializeToFileDescriptor),
       METH_VARARGS | METH_KEYWORDS,
       "SerializeToFileDescriptor($self, fd, options=None)\n--\n\n"
       "Writes to an open file descriptor, which stays open."},
      {"SerializeToOstream", SerializeToStream, METH_O,
       "SerializeToOstream($self, output, /)\n--\n\n"
       "Calls output.write() with the pieces of the serialized form."},
      {"SerializeToOStream", SerializeToStream, METH_O,
       "SerializeToOStream($self, output, /)\n--\n\nThe same as SerializeToOstream."},
      {"to_onnx", ToOnnx, METH_NOARGS,
       "to_onnx($self, /)\n--\n\n"
       "The message of the onnx package with the same name and content."},
      {"from_onnx", FromOnnx, METH_O | METH_CLASS,
       "from_onnx($type, message, /)\n--\n\n"
       "A new message with the content of one of the onnx package."},
      {"__copy__", Copy, METH_NOARGS, "__copy__($self, /)\n--\n\nA copy of the whole tree."},
      {"__deepcopy__", Copy, METH_VARARGS,
       "__deepcopy__($self, memo=None, /)\n--\n\nA copy of the whole tree."},
      {"__reduce__", Reduce, METH_NOARGS, "__reduce__($self, /)\n--\n\nFor pickle."},
      {"_bridge", Bridge, METH_NOARGS,
       "_bridge($self, /)\n--\n\nThe message, for other extension modules of the package."},
      {}};
  return methods;
}

}  // namespace onnx_light::python
