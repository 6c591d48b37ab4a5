#include "files.h"

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "handles.h"
#include "messages.h"
#include "onnx_light/message_file.h"
#include "options.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnx_light::python {
namespace {

// Runs `f` and turns what it throws into the Python error that nanobind raises.
template <typename F>
void Translated(F&& f) {
  try {
    f();
  } catch (...) {
    SetErrorFromCurrentException();
    throw nb::python_error();
  }
}

MessageObject& MessageArgument(nb::handle object) {
  if (FindClass(Py_TYPE(object.ptr())) == nullptr) throw nb::type_error("a message is needed");
  return *reinterpret_cast<MessageObject*>(object.ptr());
}

// A path as os.fsencode() gives it.
std::string PathText(const nb::bytes& path) { return {path.c_str(), path.size()}; }

void MakeWriter(MessageFileWriter* self, nb::handle message, const nb::bytes& path) {
  const MessageObject& object = MessageArgument(message);
  Translated([&] {
    new (self) MessageFileWriter(*object.binding->info, *object.message, PathText(path));
  });
}

void Prepare(MessageFileWriter& self) {
  Translated([&] {
    const WithoutGil others;
    self.Prepare(SignalHandlers());
  });
}

// One call, so that no signal handler of Python's comes between two names.
void Commit(const nb::list& files, MessageFileWriter* message) {
  std::vector<WrittenFile> written;
  for (const nb::handle item : files) {
    const auto parts = nb::cast<nb::tuple>(item);
    written.push_back({nb::cast<int>(parts[0]), PathText(nb::cast<nb::bytes>(parts[1])),
                       PathText(nb::cast<nb::bytes>(parts[2]))});
  }
  Translated([&] {
    const WithoutGil others;
    CommitFiles(written, message);
  });
}

void LoadExternal(nb::handle message, const nb::bytes& folder) {
  MessageObject& object = MessageArgument(message);
  Translated([&] {
    MessageObject& self = Real(object);
    const WithoutGil others;
    LoadExternalData(self.arena->arena, *self.binding->info, *self.message, PathText(folder));
  });
}

}  // namespace

Interrupt SignalHandlers() {
  return [] {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw ErrorAlreadySet();
  };
}

void AddFileTypes(PyObject* module) {
  nb::module_ m = nb::borrow<nb::module_>(module);
  nb::class_<MessageFileWriter>(m, "_MessageFile",
                                "The file of a message in two steps, for callers who commit it "
                                "together with others.")
      .def("__init__", &MakeWriter, "message"_a, "path"_a)
      .def("prepare", &Prepare, "Writes the file beside its target. At most once.");
  m.def("_commit_files", &Commit, "files"_a, "message"_a.none(),
        "Renames files (folder, temporary name, name), and then a prepared message's.");
  m.def("_load_external_data", &LoadExternal, "message"_a, "folder"_a,
        "Makes all external payloads inline. Other threads must not have the message.");
}

}  // namespace onnx_light::python
