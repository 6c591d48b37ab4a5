// has_x and add_x: one callable per field, which calls with the message as its first argument.
#include <string>

#include "fields.h"
#include "messages.h"

namespace onnx_light::python {
namespace {

struct FieldMethod {
  PyObject_HEAD vectorcallfunc call;
  const FieldBinding* field;
  FieldMethodKind kind;
  PyObject* name;
  PyObject* qualified_name;
  PyObject* doc;
  PyObject* signature;
};

PyTypeObject* field_method_type = nullptr;

PyObject* CallHas(const FieldBinding& field, const MessageObject& self) {
  const FieldInfo& info = *field.field;
  bool has = Has(*self.message, info);
  if (has && info.repeated) has = ViewList(*self.message, info).size != 0;
  return PyBool_FromLong(has);
}

PyObject* CallAdd(const FieldBinding& field, MessageObject& self) {
  Real(self);
  if (!field.field->repeated) {
    // A new empty value; a handle of the old one keeps it.
    DetachStubs(self, field.field);
    ClearField(self.arena->arena, *self.message, *field.field);
    Message* made =
        MutableMessage(self.arena->arena, *self.binding->info, *self.message, *field.field);
    return reinterpret_cast<PyObject*>(WrapMessage(*field.element, self.arena, made));
  }
  const Ref list(GetHandle(self, field));
  return AddToList(*reinterpret_cast<ListObject*>(list.get()), nullptr, nullptr);
}

PyObject* Call(PyObject* callable, PyObject* const* arguments, size_t count, PyObject* names) {
  return GuardObject([&]() -> PyObject* {
    const auto& method = *reinterpret_cast<FieldMethod*>(callable);
    const FieldBinding& field = *method.field;
    if (PyVectorcall_NARGS(count) != 1 || (names != nullptr && PyTuple_GET_SIZE(names) != 0)) {
      Raise(PyExc_TypeError, "%U() takes no arguments", method.qualified_name);
    }
    MessageObject& self = ToMessage(arguments[0], *field.owner);
    return method.kind == FieldMethodKind::kHas ? CallHas(field, self) : CallAdd(field, self);
  });
}

PyObject* Get(PyObject* self, PyObject* object, PyObject*) {
  if (object == nullptr) return Py_NewRef(self);
  return PyMethod_New(self, object);
}

void Dealloc(PyObject* object) {
  auto* self = reinterpret_cast<FieldMethod*>(object);
  Py_XDECREF(self->name);
  Py_XDECREF(self->qualified_name);
  Py_XDECREF(self->doc);
  Py_XDECREF(self->signature);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_Free(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(FieldMethod, call), READONLY, nullptr},
    {"__name__", T_OBJECT, offsetof(FieldMethod, name), READONLY, nullptr},
    {"__qualname__", T_OBJECT, offsetof(FieldMethod, qualified_name), READONLY, nullptr},
    {"__doc__", T_OBJECT, offsetof(FieldMethod, doc), READONLY, nullptr},
    {"__text_signature__", T_OBJECT, offsetof(FieldMethod, signature), READONLY, nullptr},
    {}};

}  // namespace

void AddFieldMethodType() {
  PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                         {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                         {Py_tp_descr_get, reinterpret_cast<void*>(Get)},
                         {Py_tp_members, members},
                         {0, nullptr}};
  PyType_Spec spec{"onnx_light.onnx.FieldMethod", sizeof(FieldMethod), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_VECTORCALL |
                       Py_TPFLAGS_DISALLOW_INSTANTIATION,
                   slots};
  field_method_type = reinterpret_cast<PyTypeObject*>(Check(PyType_FromSpec(&spec)));
  Freeze(field_method_type);
}

PyObject* NewFieldMethod(const FieldBinding& field, FieldMethodKind kind) {
  auto* method = PyObject_New(FieldMethod, field_method_type);
  if (method == nullptr) throw ErrorAlreadySet();
  method->call = Call;
  method->field = &field;
  method->kind = kind;
  method->name = method->qualified_name = method->doc = method->signature = nullptr;
  Ref owned(reinterpret_cast<PyObject*>(method));
  const bool has = kind == FieldMethodKind::kHas;
  const std::string name = std::string(has ? "has_" : "add_") + field.field->name;
  const std::string doc = has ? std::string("Whether `") + field.field->name + "` " +
                                    (field.field->repeated ? "has elements." : "is set.")
                              : std::string(field.field->repeated ? "Appends an empty element to `"
                                                                  : "Sets an empty value for `") +
                                    field.field->name + "` and returns it.";
  method->name = Check(PyUnicode_FromString(name.c_str()));
  method->qualified_name =
      Check(PyUnicode_FromFormat("%s.%s", field.owner->info->full_name, name.c_str()));
  method->doc = Check(PyUnicode_FromString(doc.c_str()));
  method->signature = Check(PyUnicode_FromString("($self, /)"));
  return owned.release();
}

}  // namespace onnx_light::python
