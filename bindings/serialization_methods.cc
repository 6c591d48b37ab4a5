#include "serialization_methods.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "base/chunk_pool.h"
#include "fields.h"
#include "files.h"
#include "input.h"
#include "onnx_light/message_file.h"
#include "onnx_light/message_ops.h"
#include "options.h"
#include "payload_view.h"

namespace onnx_light::python {
namespace {

// Work on fewer bytes than this is not worth letting other threads in.
constexpr uint64_t kLongWork = 64 * 1024;
// Streams get payloads in pieces of this size.
constexpr size_t kStreamPiece = size_t{16} << 20;

MessageObject& Self(PyObject* object) { return *reinterpret_cast<MessageObject*>(object); }
PyObject* None() { return Py_NewRef(Py_None); }

// Parses with `parse(arena, message)` into a tree of its own; `self` becomes it if that works.
template <typename F>
void ParseWith(MessageObject& self, bool release_gil, F&& parse) {
  const MessageInfo& info = *self.binding->info;
  auto arena = std::make_unique<SharedArena>();
  Message* message = NewMessage(arena->arena, info);
  {
    std::optional<WithoutGil> released;
    if (release_gil) released.emplace();
    parse(arena->arena, *message);
  }
  if (IsRoot(self)) {
    DetachStubs(self);
    ++LiveObjects().arenas;
    Replace(self, arena.release(), message);
    return;
  }
  // A message inside another tree takes over a copy, which shares the payloads.
  Message* copy = CopyForContent(self, *message);
  Real(self);
  DetachStubs(self);
  TakeContent(self, copy);
}

void ParseBytes(MessageObject& self, const Input& input, ParseOptions options) {
  if (input.is_private_copy()) options.no_copy = true;
  const ParseInput& bytes = input.parse_input();
  const bool release_gil = bytes.bytes.size() >= kLongWork && !input.may_change();
  ParseWith(self, release_gil, [&](Arena& arena, Message& message) {
    Parse(arena, *self.binding->info, message, bytes, options);
  });
}

// The text of a path argument, in the file system's encoding.
std::string ToPath(PyObject* path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path, &bytes) == 0) throw ErrorAlreadySet();
  const Ref owned(bytes);
  return {PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes))};
}

void ParseArguments(PyObject* arguments, PyObject* keywords, const char* format,
                    const char* const* names, PyObject** a, PyObject** b, PyObject** c = nullptr) {
  auto** list = const_cast<char**>(names);
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, format, list, a, b, c) == 0) {
    throw ErrorAlreadySet();
  }
}

SerializeOptions OptionsArgument(PyObject* arguments, PyObject* keywords, const char* format) {
  static const char* const names[] = {"options", nullptr};
  PyObject* options = nullptr;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, format, const_cast<char**>(names),
                                  &options) == 0) {
    throw ErrorAlreadySet();
  }
  return ToSerializeOptions(options);
}

void WriteToStream(PyObject* output, Ref view) {
  while (true) {
    const Py_ssize_t size = PyMemoryView_GET_BUFFER(view.get())->len;
    const Ref written(Check(PyObject_CallMethod(output, "write", "O", view.get())));
    // Streams that say nothing have taken everything; raw ones may take less.
    Py_ssize_t count = size;
    if (written.get() != Py_None) {
      count = PyNumber_AsSsize_t(written.get(), PyExc_OverflowError);
      if (count == -1 && PyErr_Occurred() != nullptr) throw ErrorAlreadySet();
    }
    if (count == size) break;
    if (count <= 0 || count > size) {
      Raise(PyExc_OSError, "write() returned %zd for %zd bytes", count, size);
    }
    view = Ref(Check(PySequence_GetSlice(view.get(), count, size)));
  }
}

// `owner` keeps `bytes` alive: the stream may keep the views that it gets.
void WriteRun(PyObject* output, std::span<const std::byte> bytes, const BufferRef& owner) {
  while (!bytes.empty()) {
    const std::span<const std::byte> piece = bytes.first(std::min(bytes.size(), kStreamPiece));
    WriteToStream(output, Ref(NewPayloadView({piece.data(), piece.size(), owner})));
    bytes = bytes.subspan(piece.size());
  }
}

}  // namespace

PyObject* SerializeToBytes(const MessageObject& self, const SerializeOptions& options) {
  const Serializer serializer(*self.binding->info, *self.message, options);
  if (serializer.size() > static_cast<uint64_t>(PY_SSIZE_T_MAX)) {
    Raise(PyExc_OverflowError, "the message takes more bytes than a bytes object can hold");
  }
  Ref bytes(Check(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(serializer.size()))));
  auto* output = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.get()));
  AdviseHugePages(output, serializer.size());
  if (serializer.shared_size() < kLongWork) {
    serializer.WriteTo(output);
  } else {
    const Serializer::Segments segments = serializer.Gather();
    const WithoutGil released;
    segments.CopyTo(output, options.num_threads);
  }
  return bytes.release();
}

PyObject* ByteSize(PyObject* self, PyObject*) {
  return GuardObject([&] {
    const SerializeSizeResult sizes = MeasureSize(*Self(self).binding->info, *Self(self).message);
    return Check(PyLong_FromUnsignedLongLong(sizes.size()));
  });
}

PyObject* ParseFromString(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return GuardObject([&] {
    static const char* const names[] = {"data", "options", nullptr};
    PyObject *data = nullptr, *options = nullptr;
    ParseArguments(arguments, keywords, "O|O:ParseFromString", names, &data, &options);
    const ParseOptions parse_options = ToParseOptions(options);
    ParseBytes(Self(self), Input(data, parse_options.no_copy, true), parse_options);
    return None();
  });
}

PyObject* MergeFromString(PyObject* object, PyObject* data) {
  return GuardObject([&] {
    const Input input(data, false, false);
    const ParseInput& bytes = input.parse_input();
    MessageObject& self = Self(object);
    const MessageInfo& info = *self.binding->info;
    {
      // All or nothing: what parses on its own also parses into the message.
      Arena scratch;
      Parse(scratch, info, *NewMessage(scratch, info), bytes);
    }
    Real(self);
    Parse(self.arena->arena, info, *self.message, {bytes.bytes, {}});
    BindStubs(self);
    return Check(PyLong_FromSize_t(bytes.bytes.size()));
  });
}

PyObject* FromString(PyObject* type, PyObject* data) {
  return GuardObject([&] {
    const ClassBinding* binding = FindClass(reinterpret_cast<PyTypeObject*>(type));
    if (binding == nullptr) Raise(PyExc_TypeError, "FromString needs a message class");
    Ref made(reinterpret_cast<PyObject*>(NewRoot(*binding)));
    ParseBytes(Self(made.get()), Input(data, false, true), {});
    return made.release();
  });
}

PyObject* ParseFromFile(PyObject* object, PyObject* arguments, PyObject* keywords) {
  return GuardObject([&] {
    static const char* const names[] = {"name", "options", "external_data_file", nullptr};
    PyObject *name = nullptr, *options = nullptr, *external = nullptr;
    ParseArguments(arguments, keywords, "O|OO:ParseFromFile", names, &name, &options, &external);
    const std::string path = ToPath(name);
    const std::string data_path = external == nullptr ? "" : ToPath(external);
    const ParseOptions parse_options = ToParseOptions(options);
    MessageObject& self = Self(object);
    ParseWith(self, true, [&](Arena& arena, Message& message) {
      ParseFile(arena, *self.binding->info, message, path, parse_options, data_path);
    });
    return None();
  });
}

PyObject* SerializeToString(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return GuardObject([&] {
    return SerializeToBytes(Self(self),
                            OptionsArgument(arguments, keywords, "|O:SerializeToString"));
  });
}

PyObject* SerializeSize(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return GuardObject([&] {
    const SerializeOptions options = OptionsArgument(arguments, keywords, "|O:SerializeSize");
    return Check(
        FromSizeResult(MeasureSize(*Self(self).binding->info, *Self(self).message, options)));
  });
}

PyObject* SerializeToFile(PyObject* object, PyObject* arguments, PyObject* keywords) {
  return GuardObject([&] {
    static const char* const names[] = {"name", "options", "external_data_file", nullptr};
    PyObject *name = nullptr, *options = nullptr, *external = nullptr;
    ParseArguments(arguments, keywords, "O|OO:SerializeToFile", names, &name, &options, &external);
    const std::string path = ToPath(name);
    const std::string data_path = external == nullptr ? "" : ToPath(external);
    MessageFileWriter writer(*Self(object).binding->info, *Self(object).message, path,
                             ToSerializeOptions(options), data_path);
    {
      const WithoutGil released;
      writer.Write(SignalHandlers());
    }
    return None();
  });
}

PyObject* SerializeToFileDescriptor(PyObject* object, PyObject* arguments, PyObject* keywords) {
  return GuardObject([&] {
    static const char* const names[] = {"fd", "options", nullptr};
    PyObject *fd = nullptr, *options = nullptr;
    ParseArguments(arguments, keywords, "O|O:SerializeToFileDescriptor", names, &fd, &options);
    const int descriptor = PyObject_AsFileDescriptor(fd);
    Check(descriptor);
    const Serializer serializer(*Self(object).binding->info, *Self(object).message,
                                ToSerializeOptions(options));
    const Serializer::Segments segments = serializer.Gather();
    {
      const WithoutGil released;
      WriteToDescriptor(segments, descriptor, SignalHandlers());
    }
    return None();
  });
}

PyObject* SerializeToStream(PyObject* object, PyObject* output) {
  return GuardObject([&] {
    const Serializer serializer(*Self(object).binding->info, *Self(object).message);
    const auto segments = std::make_shared<const Serializer::Segments>(serializer.Gather());
    const BufferRef owner = BufferRef::Wrap(nullptr, 0, [segments] {});
    for (const Serializer::Segments::Run& run : segments->runs()) {
      WriteRun(output, run.bytes, owner);
    }
    return None();
  });
}

}  // namespace onnx_light::python
