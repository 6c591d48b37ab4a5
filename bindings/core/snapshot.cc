// The classes under onnx_light.snapshot: reading and writing snapshot files.
#include "onnx_light/snapshot.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/bind.h"
#include "core/source.h"
#include "message_bridge.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnx_light::python {
namespace {

using NamedCaches = std::vector<std::pair<std::string, PagedCache>>;
using TokenArray = nb::ndarray<nb::ro, int64_t, nb::c_contig, nb::device::cpu>;
using NoGil = nb::call_guard<nb::gil_scoped_release>;

// A path as os.fsencode() gives it.
std::string PathText(const nb::bytes& path) { return {path.c_str(), path.size()}; }

// What a long call tells on its way: the callback, if there is one, and signals get their turn.
// REQUIRES: `callback` outlives the result, which is called without the GIL.
ProgressCallback Progress(const nb::object& callback) {
  return [&callback](uint64_t done, uint64_t total) {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!callback.is_none()) callback(done, total);
  };
}

// ---------------------------------------------------------------------------------------------
// Writing

std::optional<TokenIds> ToTokens(const std::optional<TokenArray>& array) {
  if (!array) return std::nullopt;
  const bool batched = array->ndim() == 2;
  TokenIds tokens;
  tokens.batch = batched ? static_cast<int64_t>(array->shape(0)) : 0;
  tokens.length = static_cast<int64_t>(array->shape(batched ? 1 : 0));
  tokens.ids = CopyBytes(array->data(), array->nbytes());
  return tokens;
}

void MakeWriter(SnapshotWriter* self, NamedCaches caches, const std::optional<TokenArray>& tokens,
                KeyValues identity, KeyValues metadata, uint64_t max_record_size) {
  SnapshotContent content;
  for (auto& [name, cache] : caches) content.caches.push_back({name, std::move(cache)});
  content.tokens = ToTokens(tokens);
  content.identity = std::move(identity);
  content.metadata = std::move(metadata);
  const nb::gil_scoped_release others;
  new (self) SnapshotWriter(std::move(content), {max_record_size});
}

nb::bytes ToBytes(const SnapshotWriter& self, const nb::object& callback) {
  nb::object bytes =
      nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(self.size())));
  if (!bytes.is_valid()) throw nb::python_error();
  auto* target = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr()));
  {
    const nb::gil_scoped_release others;
    self.WriteTo({target, self.size()}, Progress(callback));
  }
  return nb::borrow<nb::bytes>(bytes);
}

void BindWriter(nb::module_& m) {
  nb::class_<SnapshotWriter>(m, "SnapshotWriter", "A snapshot measured for writing.")
      .def("__init__", &MakeWriter, "caches"_a, "tokens"_a.none(), "identity"_a, "metadata"_a,
           "max_record_size"_a = SnapshotWriterOptions().max_record_size,
           nb::sig("def __init__(self, caches: collections.abc.Sequence[tuple[str, PagedCache]], "
                   "tokens: numpy.typing.NDArray[numpy.int64] | None, "
                   "identity: collections.abc.Sequence[tuple[str, str]], "
                   "metadata: collections.abc.Sequence[tuple[str, str]], "
                   "max_record_size: int = 1073741824) -> None"),
           "Checks the content and lays it out.\n\n"
           "Args:\n"
           "    tokens: int64 [length] or [batch, length], C order.\n"
           "    max_record_size: bytes of the largest record, at most 1 GiB.\n\n"
           "Raises:\n"
           "    CodedError: `snapshot.name`, `snapshot.end`, `snapshot.tokens`,\n"
           "        `snapshot.metadata`, `snapshot.too_large`.")
      .def_prop_ro("size", &SnapshotWriter::size, "Bytes of the file.")
      .def_prop_ro("records", &SnapshotWriter::records, "Records of the file.")
      .def("to_bytes", &ToBytes, "progress"_a.none(),
           nb::sig("def to_bytes(self, progress: collections.abc.Callable[[int, int], object] | "
                   "None) -> bytes"),
           "The file's bytes.")
      .def(
          "write",
          [](const SnapshotWriter& self, const nb::bytes& path, bool overwrite, bool sync,
             const nb::object& callback) {
            const std::string name = PathText(path);
            const nb::gil_scoped_release others;
            self.WriteToFile(name, overwrite, sync, Progress(callback));
          },
          "path"_a, "overwrite"_a, "sync"_a, "progress"_a.none(),
          nb::sig("def write(self, path: bytes, overwrite: bool, sync: bool, "
                  "progress: collections.abc.Callable[[int, int], object] | None) -> None"),
          "Writes a file that appears whole or not at all.");
}

// ---------------------------------------------------------------------------------------------
// Reading

OpenOptions Options(std::string name, bool verify_all, bool recover) {
  OpenOptions options;
  options.name = std::move(name);
  options.verify_all = verify_all;
  options.recover = recover;
  return options;
}

Snapshot OpenBytes(nb::handle data, const std::string& name, bool verify_all, bool recover) {
  SharedBytes source = BorrowBuffer(data);
  const nb::gil_scoped_release others;
  return Snapshot::Open(std::move(source), Options(name, verify_all, recover));
}

Snapshot OpenFile(const nb::bytes& path, bool verify_all, bool recover) {
  const std::string name = PathText(path);
  const nb::gil_scoped_release others;
  return Snapshot::OpenFile(name, Options("", verify_all, recover));
}

// An array that shows the ids where they lie.
nb::object TokensOf(const Snapshot& self) {
  std::optional<TokenIds> tokens;
  {
    const nb::gil_scoped_release others;
    tokens = self.Tokens();
  }
  if (!tokens) return nb::none();
  const size_t shape[] = {static_cast<size_t>(tokens->batch), static_cast<size_t>(tokens->length)};
  const bool batched = tokens->batch != 0;
  auto owner = std::make_unique<SharedBytes>(tokens->ids);
  const void* data = owner->data;
  const nb::capsule capsule(owner.release(),
                            [](void* bytes) noexcept { delete static_cast<SharedBytes*>(bytes); });
  return nb::cast(nb::ndarray<nb::numpy, nb::ro, int64_t>(data, batched ? 2 : 1,
                                                          batched ? shape : shape + 1, capsule));
}

nb::dict ReportOf(const SnapshotReport& report) {
  nb::list problems;
  for (const SnapshotProblem& problem : report.problems) {
    problems.append(nb::make_tuple(problem.code, problem.path, problem.message, problem.layer,
                                   problem.page, problem.offset));
  }
  nb::dict result;
  result["length"] = report.length;
  result["records"] = report.records;
  result["bytes_checked"] = report.bytes_checked;
  result["problems"] = problems;
  return result;
}

template <typename F>
nb::dict Verified(const nb::object& callback, F verify) {
  SnapshotReport report;
  {
    const nb::gil_scoped_release others;
    report = verify(Progress(callback));
  }
  return ReportOf(report);
}

nb::object ModelOf(const Snapshot& self) {
  nb::object model = nb::module_::import_("onnx_light.onnx_py._onnxpyprotoop").attr("ModelProto")();
  const nb::object capsule = model.attr("_bridge")();
  const auto* bridge =
      static_cast<const MessageBridge*>(PyCapsule_GetPointer(capsule.ptr(), kMessageBridge));
  if (bridge == nullptr) throw nb::python_error();
  // Nobody else has seen the message yet.
  const nb::gil_scoped_release others;
  self.ToModel(*bridge->arena, *static_cast<ModelProto*>(bridge->message));
  return model;
}

std::vector<std::string> NamesOf(const Snapshot& self) {
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(self.size()));
  for (int64_t i = 0; i < self.size(); ++i) names.push_back(self.name(i));
  return names;
}

PagedCache CacheAt(const Snapshot& self, int64_t index) {
  if (index < 0 || index >= self.size()) throw nb::index_error("no such cache");
  const nb::gil_scoped_release others;
  return self.Cache(index);
}

constexpr char kVerifyResult[] =
    "Checks every byte: a dict of length, records, bytes_checked, and problems as tuples\n"
    "(code, path, message, layer, page, offset).";

void BindReader(nb::module_& m) {
  nb::class_<Snapshot>(m, "SnapshotReader", "A snapshot file that is open.")
      .def_static("open_file", &OpenFile, "path"_a, "verify_all"_a, "recover"_a,
                  "Maps and opens a file; the path is that of os.fsencode().\n\n"
                  "Raises:\n"
                  "    CodedError: `snapshot.corrupt`, `snapshot.torn`, `snapshot.rewritten`,\n"
                  "        `snapshot.version`, `snapshot.features`, `snapshot.kind`.\n"
                  "    OSError: the file cannot be read.")
      .def_static("open_bytes", &OpenBytes, "data"_a, "name"_a, "verify_all"_a, "recover"_a,
                  nb::sig("def open_bytes(data: object, name: str, "
                          "verify_all: bool, recover: bool) -> SnapshotReader"),
                  "Opens what a buffer holds, without a copy if the buffer is read-only. Errors\n"
                  "as those of open_file().")
      .def_prop_ro("names", &NamesOf, "The names of the caches in order.")
      .def("cache", &CacheAt, "index"_a, "The cache, verified at the first call.")
      .def("tokens", &TokensOf,
           nb::sig("def tokens(self) -> numpy.typing.NDArray[numpy.int64] | None"),
           "The ids [length] or [batch, length], read-only, verified at the first call.")
      .def_prop_ro(
          "identity", [](const Snapshot& self) { return self.identity(); },
          "Fields of the model's identity.")
      .def_prop_ro(
          "metadata", [](const Snapshot& self) { return self.metadata(); }, "The user's entries.")
      .def_prop_ro("start", &Snapshot::start, "The first position that some cache keeps.")
      .def_prop_ro("end", &Snapshot::end, "The position where all caches end.")
      .def_prop_ro("nbytes", &Snapshot::nbytes, "Bytes of all keys and values.")
      .def_prop_ro("records", &Snapshot::records, "Records of the file.")
      .def("slice", &Snapshot::Slice, "start"_a, "end"_a,
           "The tokens [start, end) of all caches.\n\n"
           "Raises:\n"
           "    CodedError: `snapshot.position`.")
      .def(
          "verify",
          [](const Snapshot& self, const nb::object& callback) {
            return Verified(callback,
                            [&](const ProgressCallback& told) { return self.Verify(told); });
          },
          "progress"_a.none(),
          nb::sig("def verify(self, progress: collections.abc.Callable[[int, int], object] | "
                  "None) -> dict[str, typing.Any]"),
          kVerifyResult)
      .def("model", &ModelOf,
           nb::sig("def model(self) -> onnx_light.onnx_py._onnxpyprotoop.ModelProto"),
           "The model that the file is, folded, without the fields of the format.");
}

void BindVerify(nb::module_& m) {
  m.def(
      "verify_snapshot_file",
      [](const nb::bytes& path, const nb::object& callback) {
        const std::string name = PathText(path);
        return Verified(
            callback, [&](const ProgressCallback& told) { return VerifySnapshotFile(name, told); });
      },
      "path"_a, "progress"_a.none(),
      nb::sig("def verify_snapshot_file(path: bytes, "
              "progress: collections.abc.Callable[[int, int], object] | None) -> "
              "dict[str, typing.Any]"),
      kVerifyResult);
  m.def(
      "verify_snapshot_bytes",
      [](nb::handle data, const std::string& name, const nb::object& callback) {
        const SharedBytes source = BorrowBuffer(data);
        return Verified(callback, [&](const ProgressCallback& told) {
          return VerifySnapshot(source, name, told);
        });
      },
      "data"_a, "name"_a, "progress"_a.none(),
      nb::sig("def verify_snapshot_bytes(data: object, name: str, "
              "progress: collections.abc.Callable[[int, int], object] | None) -> "
              "dict[str, typing.Any]"),
      kVerifyResult);
}

}  // namespace

void BindSnapshot(nb::module_& m) {
  BindWriter(m);
  BindReader(m);
  BindVerify(m);
}

}  // namespace onnx_light::python
