#include "payload_view.h"

#include <new>

namespace onnx_light::python {
namespace {

struct PayloadObject {
  PyObject_HEAD SharedBytes bytes;
};

PyTypeObject* payload_type = nullptr;

void Dealloc(PyObject* object) {
  reinterpret_cast<PayloadObject*>(object)->bytes.~SharedBytes();
  PyTypeObject* type = Py_TYPE(object);
  PyObject_Free(object);
  Py_DECREF(type);
}

int GetBuffer(PyObject* object, Py_buffer* view, int flags) {
  const SharedBytes& bytes = reinterpret_cast<PayloadObject*>(object)->bytes;
  static constexpr std::byte nothing{};
  void* data = const_cast<std::byte*>(bytes.size == 0 ? &nothing : bytes.data);
  return PyBuffer_FillInfo(view, object, data, static_cast<Py_ssize_t>(bytes.size), 1, flags);
}

}  // namespace

void AddPayloadType() {
  PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                         {Py_bf_getbuffer, reinterpret_cast<void*>(GetBuffer)},
                         {0, nullptr}};
  PyType_Spec spec{"onnx_light.onnx.Payload", sizeof(PayloadObject), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  payload_type = reinterpret_cast<PyTypeObject*>(Check(PyType_FromSpec(&spec)));
  Freeze(payload_type);
}

PyObject* NewPayloadView(SharedBytes bytes) {
  auto* object = PyObject_New(PayloadObject, payload_type);
  if (object == nullptr) throw ErrorAlreadySet();
  new (&object->bytes) SharedBytes(std::move(bytes));
  const Ref owned(reinterpret_cast<PyObject*>(object));
  return Check(PyMemoryView_FromObject(owned.get()));
}

}  // namespace onnx_light::python
