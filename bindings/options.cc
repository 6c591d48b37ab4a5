#include "options.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "base/math.h"
#include "onnx_light/errors.h"
#include "onnx_light/message_ops.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnx_light::python {
namespace {

// Sets attributes from keywords; names that the class does not have are a TypeError.
void SetKeywords(nb::handle self, const nb::kwargs& keywords) {
  for (const auto& [name, value] : keywords) {
    if (!nb::hasattr(self, name)) {
      const std::string text = nb::borrow<nb::str>(name).c_str();
      throw nb::type_error(("no option is called " + text).c_str());
    }
    nb::setattr(self, name, value);
  }
}

template <typename Options>
void Construct(nb::handle self, const nb::kwargs& keywords) {
  // Nothing else looks at `self`: ParseOptions.__init__(1) gets here.
  if (!nb::isinstance<Options>(self))
    throw nb::type_error("__init__ needs an object of this class");
  new (nb::inst_ptr<Options>(self)) Options();
  nb::inst_mark_ready(self);
  SetKeywords(self, keywords);
}

template <typename Options, typename... Extra>
void AddConstructor(nb::class_<Options, Extra...>& type) {
  type.def(
      "__init__",
      [](nb::handle self, const nb::kwargs& keywords) { Construct<Options>(self, keywords); },
      "Every option can be given as a keyword.");
}

void CheckBuffers(const TensorBufferOptions& options) {
  if (options.alignment > 1 && !IsPowerOfTwo(options.alignment)) {
    throw ValueError("options.alignment", "alignment",
                     std::to_string(options.alignment) + " is no power of two");
  }
}

template <typename Options>
Options ToOptions(PyObject* object, const char* name) {
  if (object == nullptr || object == Py_None) return Options();
  Options* options = nullptr;
  if (!nb::try_cast<Options*>(nb::handle(object), options) || options == nullptr) {
    Raise(PyExc_TypeError, "options must be %s or None, not %.200s", name,
          Py_TYPE(object)->tp_name);
  }
  CheckBuffers(*options);
  return *options;
}

void AddParseOptions(nb::module_& m) {
  nb::class_<ParseOptions, TensorBufferOptions> type(m, "ParseOptions", "How a message is parsed.");
  AddConstructor(type);
  type.def_rw("skip_raw_data", &ParseOptions::skip_raw_data, "Leaves big payloads out.")
      .def_rw("num_threads", &ParseOptions::num_threads,
              "1 is serial, n that many threads, below 0 all cores.")
      .def_rw("no_copy", &ParseOptions::no_copy,
              "Borrows from a read-only buffer or mapping, which stays alive as long as needed.")
      .def_rw("max_recursion_depth", &ParseOptions::max_recursion_depth,
              "Deepest nesting of messages that is accepted.")
      .def_rw("max_tensor_size_bytes", &ParseOptions::max_tensor_size_bytes,
              "Largest payload that is accepted, in bytes; 0 is no limit.")
      .def_rw("tiny_external_data_threshold", &ParseOptions::tiny_external_data_threshold,
              "External payloads of fewer bytes become inline while a file is parsed; below 0 none "
              "do.")
      .def_rw("file_load_mode", &ParseOptions::file_load_mode, "How a file is read.")
      .def_rw("trusted_links", &ParseOptions::trusted_links,
              "Accepts external data files behind links.");
}

void AddSerializeOptions(nb::module_& m) {
  nb::class_<SerializeOptions, TensorBufferOptions> type(m, "SerializeOptions",
                                                         "How a message is serialized.");
  AddConstructor(type);
  type.def_rw("skip_raw_data", &SerializeOptions::skip_raw_data, "Leaves big payloads out.")
      .def_rw("num_threads", &SerializeOptions::num_threads,
              "1 is serial, n that many threads, below 0 all cores.")
      .def_rw("use_external_data_location", &SerializeOptions::use_external_data_location,
              "Payloads that are external already keep their place.")
      .def_rw("max_serialized_size_bytes", &SerializeOptions::max_serialized_size_bytes,
              "A longer message is a ValueError before a byte is written; 0 is no limit.")
      .def_rw(
          "max_external_file_size", &SerializeOptions::max_external_file_size,
          "External data go on in a further file (`.1`, `.2`, ...) beyond this; 0 is one file.");
}

void AddSizeResult(nb::module_& m) {
  nb::class_<SerializeSizeResult>(m, "SerializeSizeResult",
                                  "Sizes in bytes of what serializing would write.")
      .def(
          "__init__",
          [](SerializeSizeResult* self, uint64_t small, uint64_t big, uint64_t rest) {
            new (self) SerializeSizeResult{small, big, rest};
          },
          "small_data_size"_a = 0, "big_data_size"_a = 0, "proto_size"_a = 0)
      .def_rw("small_data_size", &SerializeSizeResult::small_data_size,
              "Payloads below the threshold.")
      .def_rw("big_data_size", &SerializeSizeResult::big_data_size,
              "Payloads of at least the threshold.")
      .def_rw("proto_size", &SerializeSizeResult::proto_size, "All the rest.")
      .def("size", &SerializeSizeResult::size, "The sum of the three.")
      .def("__add__",
           [](SerializeSizeResult a, const SerializeSizeResult& b) {
             a += b;
             return a;
           })
      .def("__eq__",
           [](const SerializeSizeResult& a, nb::handle other) {
             SerializeSizeResult* b = nullptr;
             return nb::try_cast<SerializeSizeResult*>(other, b) && b != nullptr &&
                    a.small_data_size == b->small_data_size &&
                    a.big_data_size == b->big_data_size && a.proto_size == b->proto_size;
           })
      .def("__repr__", [](const SerializeSizeResult& self) {
        return "SerializeSizeResult(small_data_size=" + std::to_string(self.small_data_size) +
               ", big_data_size=" + std::to_string(self.big_data_size) +
               ", proto_size=" + std::to_string(self.proto_size) + ")";
      });
}

}  // namespace

void AddOptionTypes(PyObject* module) {
  nb::module_ m = nb::borrow<nb::module_>(module);
  nb::enum_<FileLoadMode>(m, "FileLoadMode", "How ParseFromFile reads a file.")
      .value("AUTO", FileLoadMode::kAuto, "Mapped where that pays, read otherwise.")
      .value("MMAP", FileLoadMode::kMmap, "Mapped into memory.")
      .value("STREAM", FileLoadMode::kStream, "Read into memory.");
  nb::class_<TensorBufferOptions> base(m, "TensorBufferOptions",
                                       "What is treated as a big payload, and how it is placed.");
  AddConstructor(base);
  base.def_rw("raw_data_threshold", &TensorBufferOptions::raw_data_threshold,
              "Payloads of at least this many bytes are big.")
      .def_rw("alignment", &TensorBufferOptions::alignment,
              "Big payloads begin at multiples of this many bytes: a power of two; 0 or 1 is off.");
  AddParseOptions(m);
  AddSerializeOptions(m);
  AddSizeResult(m);
  for (const char* name : {"FileLoadMode", "TensorBufferOptions", "ParseOptions",
                           "SerializeOptions", "SerializeSizeResult"}) {
    m.attr(name).attr("__module__") = "onnx_light.onnx";
  }
}

ParseOptions ToParseOptions(PyObject* object) {
  ParseOptions options = ToOptions<ParseOptions>(object, "ParseOptions");
  if (options.max_recursion_depth < 0 || options.max_recursion_depth > kMaxDepth) {
    throw ValueError("options.depth", "max_recursion_depth",
                     std::to_string(options.max_recursion_depth) + " is not in 0 to " +
                         std::to_string(kMaxDepth));
  }
  return options;
}

SerializeOptions ToSerializeOptions(PyObject* object) {
  return ToOptions<SerializeOptions>(object, "SerializeOptions");
}

PyObject* FromSizeResult(const SerializeSizeResult& result) {
  return nb::cast(result).release().ptr();
}

}  // namespace onnx_light::python
