#include "enums.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "handles.h"

namespace nb = nanobind;

namespace onnx_light::python {
namespace {

struct EnumTypeWrapper {
  const EnumInfo* info;
};

std::string Name(const EnumTypeWrapper& self, nb::handle number) {
  if (PyBool_Check(number.ptr()) || !PyIndex_Check(number.ptr())) {
    const std::string text = nb::cast<std::string>(nb::repr(number));
    throw nb::type_error((text + " is no number of " + self.info->name).c_str());
  }
  const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow == 0 && value >= INT32_MIN && value <= INT32_MAX) {
    const std::string_view name = self.info->NameOf(static_cast<int32_t>(value));
    if (!name.empty()) return std::string(name);
  }
  const std::string text = nb::cast<std::string>(nb::str(index));
  throw nb::value_error((std::string(self.info->name) + " has no name for " + text).c_str());
}

int Value(const EnumTypeWrapper& self, const std::string& name) {
  for (const EnumValueInfo& value : self.info->values) {
    if (value.name == name) return value.number;
  }
  throw nb::value_error((std::string(self.info->name) + " has no value " + name).c_str());
}

template <typename F>
nb::list ToList(const EnumTypeWrapper& self, F&& f) {
  nb::list list;
  for (const EnumValueInfo& value : self.info->values) list.append(f(value));
  return list;
}

int GetAttribute(const EnumTypeWrapper& self, const std::string& name) {
  for (const EnumValueInfo& value : self.info->values) {
    if (value.name == name) return value.number;
  }
  throw nb::attribute_error((std::string(self.info->name) + " has no value " + name).c_str());
}

nb::list Directory(const EnumTypeWrapper& self) {
  nb::list names = nb::borrow<nb::list>(
      nb::steal(PyObject_Dir(reinterpret_cast<PyObject*>(Py_TYPE(nb::find(self).ptr())))));
  for (const EnumValueInfo& value : self.info->values) names.append(value.name);
  return names;
}

}  // namespace

void AddEnums(PyObject* module) {
  nb::module_ m = nb::borrow<nb::module_>(module);
  nb::class_<EnumTypeWrapper> wrapper(
      m, "EnumTypeWrapper",
      "An enum: names and numbers of its values, in the order of their declaration.");
  wrapper
      .def("Name", Name, nb::arg("number"), "The name of a number; ValueError where there is none.")
      .def("Value", Value, nb::arg("name"), "The number of a name; ValueError where there is none.")
      .def(
          "keys",
          [](const EnumTypeWrapper& self) {
            return ToList(self, [](const EnumValueInfo& value) { return nb::str(value.name); });
          },
          "The names.")
      .def(
          "values",
          [](const EnumTypeWrapper& self) {
            return ToList(self, [](const EnumValueInfo& value) { return value.number; });
          },
          "The numbers.")
      .def(
          "items",
          [](const EnumTypeWrapper& self) {
            return ToList(self, [](const EnumValueInfo& value) {
              return nb::make_tuple(value.name, value.number);
            });
          },
          "Pairs of name and number.")
      .def("__getattr__", GetAttribute, nb::arg("name"), "The number of a value.")
      .def("__dir__", Directory, "The values, too.")
      .def("__repr__", [](const EnumTypeWrapper& self) {
        return "<enum " + std::string(self.info->full_name) + ">";
      });
  wrapper.attr("__module__") = "onnx_light.onnx";
  for (const EnumInfo* info : AllEnums()) {
    const std::string full_name = info->full_name;
    const size_t dot = full_name.rfind('.');
    nb::object scope = m;
    if (dot != std::string::npos) scope = m.attr(full_name.substr(0, dot).c_str());
    nb::setattr(scope, info->name, nb::cast(EnumTypeWrapper{info}));
    for (const EnumValueInfo& value : info->values) {
      nb::setattr(scope, value.name, nb::int_(value.number));
    }
  }
}

}  // namespace onnx_light::python
