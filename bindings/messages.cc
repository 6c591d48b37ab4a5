#include "messages.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>
#include <vector>

#include "enums.h"
#include "fields.h"

namespace onnx_light::python {
namespace {

// Made once, with the module, and never freed: types refer to them.
std::vector<ClassBinding>& Bindings() {
  static auto* bindings = new std::vector<ClassBinding>();
  return *bindings;
}
PyTypeObject* message_type = nullptr;

// ---------------------------------------------------------------------------------------------
// Properties

PyObject* GetProperty(PyObject* self, void* closure) {
  return GuardObject([&] {
    return GetField(*reinterpret_cast<MessageObject*>(self),
                    *static_cast<const FieldBinding*>(closure));
  });
}

int SetProperty(PyObject* self, PyObject* value, void* closure) {
  return Guard<int>(-1, [&] {
    const auto& field = *static_cast<const FieldBinding*>(closure);
    if (value == nullptr) {
      Raise(PyExc_AttributeError, "%s cannot be deleted: ClearField unsets it",
            FieldName(field).c_str());
    }
    SetField(*reinterpret_cast<MessageObject*>(self), field, value);
    return 0;
  });
}

// ---------------------------------------------------------------------------------------------
// Construction

const ClassBinding& BindingOf(PyTypeObject* type) {
  const ClassBinding* binding = FindClass(type);
  if (binding == nullptr) Raise(PyExc_TypeError, "%s cannot be constructed", type->tp_name);
  return *binding;
}

MessageObject* NewFromPositional(const ClassBinding& binding, PyObject* const* arguments,
                                 Py_ssize_t count) {
  if (count > 1) {
    Raise(PyExc_TypeError, "%s() takes at most one message to copy, and keywords",
          binding.info->full_name);
  }
  return count == 0 ? NewRoot(binding) : CloneMessage(ToMessage(arguments[0], binding));
}

PyObject* Construct(PyObject* type, PyObject* const* arguments, size_t flags, PyObject* names) {
  return GuardObject([&] {
    const ClassBinding& binding = BindingOf(reinterpret_cast<PyTypeObject*>(type));
    const Py_ssize_t count = PyVectorcall_NARGS(flags);
    Ref made(reinterpret_cast<PyObject*>(NewFromPositional(binding, arguments, count)));
    const auto& self = *reinterpret_cast<MessageObject*>(made.get());
    for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_GET_SIZE(names); ++i) {
      InitField({self.arena->arena, binding, *self.message}, PyTuple_GET_ITEM(names, i),
                arguments[count + i]);
    }
    return made.release();
  });
}

PyObject* New(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  return GuardObject([&] {
    const ClassBinding& binding = BindingOf(type);
    Ref made(reinterpret_cast<PyObject*>(
        NewFromPositional(binding, &PyTuple_GET_ITEM(arguments, 0), PyTuple_GET_SIZE(arguments))));
    const auto& self = *reinterpret_cast<MessageObject*>(made.get());
    if (keywords != nullptr) InitFields({self.arena->arena, binding, *self.message}, keywords);
    return made.release();
  });
}

// ---------------------------------------------------------------------------------------------
// Types

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET,
     static_cast<Py_ssize_t>(offsetof(MessageObject, weak_references)), READONLY, nullptr},
    {}};
#pragma GCC diagnostic pop

void MakeBaseType(PyObject* module) {
  PyType_Slot slots[] = {
      {Py_tp_doc,
       const_cast<char*>("What every message class has. Names of fields are given as text.")},
      {Py_tp_dealloc, reinterpret_cast<void*>(DeallocMessage)},
      {Py_tp_methods, MessageMethods()},
      {Py_tp_members, members},
      {Py_tp_repr, reinterpret_cast<void*>(MessageText)},
      {Py_tp_str, reinterpret_cast<void*>(MessageText)},
      {Py_tp_richcompare, reinterpret_cast<void*>(CompareMessages)},
      {Py_tp_hash, reinterpret_cast<void*>(PyObject_HashNotImplemented)},
      {0, nullptr}};
  PyType_Spec spec{"onnx_light.onnx.Message", sizeof(MessageObject), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                   slots};
  message_type = reinterpret_cast<PyTypeObject*>(Check(PyType_FromSpec(&spec)));
  Check(PyModule_AddObjectRef(module, "Message", reinterpret_cast<PyObject*>(message_type)));
}

void MakeType(ClassBinding& binding) {
  // Names, properties and texts live as long as the type: for ever.
  auto* properties = new std::vector<PyGetSetDef>();
  for (size_t i = 0; i < binding.info->fields.size(); ++i) {
    const FieldInfo& field = binding.info->fields[i];
    properties->push_back({field.name, GetProperty, SetProperty, field.doc, &binding.fields[i]});
  }
  properties->push_back({});
  PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(New)},
                         {Py_tp_doc, const_cast<char*>(binding.info->doc)},
                         {Py_tp_getset, properties->data()},
                         {0, nullptr}};
  auto* name = new std::string(std::string("onnx_light.onnx.") + binding.info->name);
  PyType_Spec spec{name->c_str(), sizeof(MessageObject), 0, Py_TPFLAGS_DEFAULT, slots};
  const Ref bases(Check(PyTuple_Pack(1, message_type)));
  binding.type =
      reinterpret_cast<PyTypeObject*>(Check(PyType_FromSpecWithBases(&spec, bases.get())));
  binding.type->tp_vectorcall = Construct;
}

// Sets an attribute of a class that is just being made.
void SetAttribute(const ClassBinding& binding, const std::string& name, PyObject* owned) {
  const Ref value(Check(owned));
  Check(
      PyObject_SetAttrString(reinterpret_cast<PyObject*>(binding.type), name.c_str(), value.get()));
}

void AddFieldAttributes(const ClassBinding& binding) {
  for (size_t i = 0; i < binding.info->fields.size(); ++i) {
    const FieldBinding& field = binding.fields[i];
    std::string upper = field.field->name;
    std::transform(upper.begin(), upper.end(), upper.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    SetAttribute(binding, upper + "_FIELD_NUMBER", PyLong_FromLong(field.field->number()));
    SetAttribute(binding, std::string("has_") + field.field->name,
                 NewFieldMethod(field, FieldMethodKind::kHas));
    if (field.element != nullptr) {
      SetAttribute(binding, std::string("add_") + field.field->name,
                   NewFieldMethod(field, FieldMethodKind::kAdd));
    }
  }
}

// A nested class becomes an attribute of its parent, others of the module.
void Place(PyObject* module, const ClassBinding& binding) {
  const std::string full_name = binding.info->full_name;
  auto* type = reinterpret_cast<PyObject*>(binding.type);
  const size_t dot = full_name.rfind('.');
  if (dot == std::string::npos) {
    Check(PyModule_AddObjectRef(module, binding.info->name, type));
    return;
  }
  SetAttribute(binding, "__qualname__", PyUnicode_FromString(full_name.c_str()));
  for (const ClassBinding& parent : Bindings()) {
    if (full_name.substr(0, dot) == parent.info->full_name) {
      SetAttribute(parent, binding.info->name, Py_NewRef(type));
    }
  }
}

}  // namespace

const ClassBinding* FindClass(const MessageInfo* info) {
  for (const ClassBinding& binding : Bindings()) {
    if (binding.info == info) return &binding;
  }
  return nullptr;
}

const ClassBinding* FindClass(PyTypeObject* type) {
  if (type->tp_base != message_type) return nullptr;
  // Every message has a field, whose property knows the class.
  return static_cast<const FieldBinding*>(type->tp_getset[0].closure)->owner;
}

void AddMessageTypes(PyObject* module) {
  AddFieldMethodType();
  MakeBaseType(module);
  std::vector<ClassBinding>& bindings = Bindings();
  for (const MessageInfo* info : AllMessages()) {
    bindings.push_back({info, nullptr, new FieldBinding[info->fields.size()]});
  }
  for (ClassBinding& binding : bindings) {
    for (size_t i = 0; i < binding.info->fields.size(); ++i) {
      const FieldInfo& field = binding.info->fields[i];
      binding.fields[i] = {&field, &binding,
                           field.message == nullptr ? nullptr : FindClass(field.message),
                           Check(PyUnicode_InternFromString(field.name))};
    }
    MakeType(binding);
  }
  for (const ClassBinding& binding : bindings) {
    AddFieldAttributes(binding);
    Place(module, binding);
  }
  AddEnums(module);
  for (const ClassBinding& binding : bindings) Freeze(binding.type);
  Freeze(message_type);
}

}  // namespace onnx_light::python
