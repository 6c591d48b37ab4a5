// The pages of a cache as Python sees them.
#include "core/pages.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "core/arrays.h"
#include "core/bind.h"
#include "onnx_light/cache.h"
#include "onnx_light/page_format.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnx_light::python {
namespace {

bool EqualPages(const PlacedPage& a, const PlacedPage& b) {
  return PagedCache::FromPages({&a, 1}) == PagedCache::FromPages({&b, 1});
}

std::string PageText(const PlacedPage& placed) {
  return "Page(start=" + std::to_string(placed.start) + ", end=" + std::to_string(placed.end()) +
         ", capacity=" + std::to_string(placed.page->capacity()) +
         ", key=" + FormatText(placed, Side::kKey) + ", value=" + FormatText(placed, Side::kValue) +
         ")";
}

PlacedPage PageAt(const Pages& pages, int64_t index) {
  const PageRange range = pages.cache.pages();
  const int64_t size = range.size();
  if (index < -size || index >= size) {
    throw nb::index_error(
        ("page " + std::to_string(index) + " of " + std::to_string(size) + " pages").c_str());
  }
  return range[index < 0 ? index + size : index];
}

nb::list PagesOfSlice(const Pages& pages, const nb::slice& slice) {
  const PageRange range = pages.cache.pages();
  const auto [start, stop, step, length] = slice.compute(static_cast<size_t>(range.size()));
  nb::list result;
  for (size_t i = 0; i < length; ++i) {
    result.append(range[static_cast<int64_t>(start) + static_cast<int64_t>(i) * step]);
  }
  return result;
}

const PlacedPage* PageOrNull(nb::handle object) {
  return nb::isinstance<PlacedPage>(object) ? &nb::cast<const PlacedPage&>(object) : nullptr;
}

int64_t Count(const Pages& pages, nb::handle value) {
  const PlacedPage* page = PageOrNull(value);
  if (page == nullptr) return 0;
  int64_t count = 0;
  const PageRange range = pages.cache.pages();
  for (const PlacedPage& placed : range) count += EqualPages(placed, *page) ? 1 : 0;
  return count;
}

// As list.index: `start` and `stop` may be negative or beyond the end.
int64_t Index(const Pages& pages, nb::handle value, Py_ssize_t start, Py_ssize_t stop) {
  const PlacedPage* page = PageOrNull(value);
  const PageRange range = pages.cache.pages();
  PySlice_AdjustIndices(range.size(), &start, &stop, 1);
  for (int64_t index = start; page != nullptr && index < stop; ++index) {
    if (EqualPages(range[index], *page)) return index;
  }
  throw nb::value_error("the value is not among the pages");
}

// `flat` bytes seen as elements of a type of numpy or ml_dtypes.
nb::object ViewAs(const nb::object& flat, const std::string& name) {
  const char* module = name == "bfloat16" ? "ml_dtypes" : "numpy";
  return flat.attr("view")(nb::module_::import_(module).attr(name.c_str()));
}

// The visible rows of an array whose third dim is the capacity.
nb::object Visible(const PayloadOfPage& self, const nb::object& rows) {
  const nb::object all = nb::slice(nb::none(), nb::none(), nb::none());
  return rows[nb::make_tuple(all, all,
                             nb::slice(nb::none(), nb::int_(self.placed.length), nb::none()))];
}

nb::object CodeArray(const PayloadOfPage& self) {
  const auto* encoded = std::get_if<EncodedPayload>(&self.payload());
  if (encoded == nullptr) return nb::none();
  nb::object flat = ByteArray(encoded->codes);
  const auto& dims = encoded->dims;
  if (const AffineLayout* affine = encoded->affine()) {
    if (CodeBits(affine->code_type) != 8) return flat;
    return Visible(self, ViewAs(flat, std::string(Name(affine->code_type)))
                             .attr("reshape")(dims[0], dims[1], dims[2], dims[3]));
  }
  if (const auto* records = std::get_if<RecordLayout>(&encoded->layout)) {
    return Visible(self, flat.attr("reshape")(dims[0], dims[1], dims[2], dims[3] / kRecordValues,
                                              RecordSize(records->type)));
  }
  return flat;
}

// One element for each cell.
nb::object CellArray(const EncodedPayload& payload, const SharedBytes& bytes,
                     const std::string& type) {
  const AffineLayout& layout = *payload.affine();
  const auto counts = CellCounts(layout, payload.dims);
  nb::tuple shape = nb::make_tuple(counts[0], counts[1], counts[2], counts[3]);
  if (layout.shape == AffineLayout::Shape::kScalar) shape = nb::make_tuple();
  if (layout.shape == AffineLayout::Shape::kAxis) shape = nb::make_tuple(counts[layout.axis]);
  return ViewAs(ByteArray(bytes), type).attr("reshape")(shape);
}

nb::object ScaleArray(const PayloadOfPage& self) {
  const auto* encoded = std::get_if<EncodedPayload>(&self.payload());
  if (encoded == nullptr || encoded->affine() == nullptr) return nb::none();
  return CellArray(*encoded, encoded->scales, std::string(Name(encoded->affine()->scale_type)));
}

nb::object ZeroPointArray(const PayloadOfPage& self) {
  const auto* encoded = std::get_if<EncodedPayload>(&self.payload());
  if (encoded == nullptr || encoded->zero_points.size == 0) return nb::none();
  const PageType type = encoded->affine()->code_type;
  if (CodeBits(type) != 8) return ByteArray(encoded->zero_points);
  return CellArray(*encoded, encoded->zero_points, std::string(Name(type)));
}

void BindPayload(nb::module_& m) {
  nb::class_<PayloadOfPage>(m, "PagePayload", "The keys or the values of a page.")
      .def_prop_ro(
          "format",
          [](const PayloadOfPage& self) {
            const auto format = FormatOf(self.payload());
            return format ? nb::cast(*format) : nb::cast(FormatText(self.placed, self.side));
          },
          nb::sig("def format(self) -> PageFormat | str"),
          "How the numbers are stored; in words where no PageFormat says it.")
      .def_prop_ro(
          "array", [](const PayloadOfPage& self) { return PageArray(self.placed, self.side); },
          nb::sig("def array(self) -> numpy.typing.NDArray[typing.Any]"),
          "The rows [batch, heads, end - start, width] in the dtype that format names: a "
          "read-only\n"
          "view without a copy, valid as long as it is held. O(1).\n\n"
          "Raises:\n"
          "    CodedError: `cache.encoded` where the numbers are codes.")
      .def_prop_ro(
          "codes", &CodeArray,
          nb::sig("def codes(self) -> numpy.typing.NDArray[typing.Any] | None"),
          "The codes, a read-only view without a copy: of 8 bits as [batch, heads, end - start,\n"
          "width], of 4 and 2 bits as the packed bytes of the whole payload (low bits first), "
          "records\n"
          "of llama.cpp as bytes [batch, heads, end - start, records, bytes], other layouts as "
          "bytes.\n"
          "None where the numbers are dense. O(1).")
      .def_prop_ro(
          "scales", &ScaleArray,
          nb::sig("def scales(self) -> numpy.typing.NDArray[typing.Any] | None"),
          "The scales of codes, a read-only view without a copy in the shape of the message's "
          "scale:\n"
          "[], [n], or rank 4 with the number of blocks on the axis. None without codes. O(1).")
      .def_prop_ro(
          "zero_points", &ZeroPointArray,
          nb::sig("def zero_points(self) -> numpy.typing.NDArray[typing.Any] | None"),
          "The zero points in the shape of scales, of 4 and 2 bits as packed bytes. None where "
          "all\n"
          "are 0. O(1).")
      .def_prop_ro(
          "nbytes", [](const PayloadOfPage& self) { return PayloadSize(self.payload()); },
          "Bytes of all rows of the capacity.")
      .def("__repr__", [](const PayloadOfPage& self) {
        return "PagePayload(format='" + FormatText(self.placed, self.side) +
               "', nbytes=" + std::to_string(PayloadSize(self.payload())) + ")";
      });
}

void BindPage(nb::module_& m) {
  nb::class_<PlacedPage> page(
      m, "Page",
      "Keys and values of the consecutive positions [start, end) of a cache. Immutable.");
  page.def_prop_ro(
          "start", [](const PlacedPage& self) { return self.start; },
          "Position of the first token.")
      .def_prop_ro(
          "end", [](const PlacedPage& self) { return self.end(); },
          "Position after the last token.")
      .def_prop_ro(
          "capacity", [](const PlacedPage& self) { return self.page->capacity(); },
          "Tokens that the page has memory for; only end - start of them count.")
      .def_prop_ro(
          "nbytes",
          [](const PlacedPage& self) {
            return PayloadSize(self.page->key()) + PayloadSize(self.page->value());
          },
          "Bytes of both payloads, rows past the end included.")
      .def_prop_ro(
          "key",
          [](const PlacedPage& self) {
            return PayloadOfPage{self, Side::kKey};
          },
          "The keys.")
      .def_prop_ro(
          "value",
          [](const PlacedPage& self) {
            return PayloadOfPage{self, Side::kValue};
          },
          "The values.")
      .def(
          "__len__", [](const PlacedPage& self) { return self.length; }, "end - start.")
      .def("__eq__", &EqualPages, nb::is_operator(), nb::call_guard<nb::gil_scoped_release>(),
           nb::sig("def __eq__(self, other: object, /) -> bool"),
           "Equal positions, formats and bits of the rows. O(rows).")
      .def("__repr__", &PageText);
  page.attr("__hash__") = nb::none();
}

}  // namespace

std::string FormatText(const PlacedPage& placed, Side side) {
  const PagePayload& payload = placed.page->payload(side);
  if (const auto* encoded = std::get_if<EncodedPayload>(&payload)) return Describe(*encoded);
  return std::string(Name(std::get<DensePayload>(payload).dtype));
}

void BindPages(nb::module_& m) {
  BindPayload(m);
  BindPage(m);
  nb::class_<Pages>(m, "Pages", nb::sig("class Pages(collections.abc.Sequence[Page])"),
                    "The pages of a cache in order: an immutable sequence.")
      .def("__len__", [](const Pages& self) { return self.cache.pages().size(); })
      .def("__getitem__", &PageAt, "index"_a,
           nb::sig("def __getitem__(self, index: int, /) -> Page"),
           "One page, O(log pages); IndexError outside. A slice gives a list.")
      .def("__getitem__", &PagesOfSlice, "index"_a,
           nb::sig("def __getitem__(self, index: slice, /) -> list[Page]"))
      .def(
          "__iter__", [](nb::handle self) { return nb::steal(PySeqIter_New(self.ptr())); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[Page]"))
      .def(
          "__contains__",
          [](const Pages& self, nb::handle value) { return Count(self, value) > 0; },
          "value"_a.none(), nb::sig("def __contains__(self, value: object, /) -> bool"))
      .def("index", &Index, "value"_a.none(), "start"_a = 0, "stop"_a = PY_SSIZE_T_MAX,
           nb::sig("def index(self, value: object, start: int = 0, stop: int = ...) -> int"),
           "Index of the first page in [start, stop) that equals `value`; ValueError if none does.")
      .def("count", &Count, "value"_a.none(), nb::sig("def count(self, value: object) -> int"),
           "How many pages equal `value`.")
      .def("__repr__", [](const Pages& self) {
        return "Pages(" + std::to_string(self.cache.pages().size()) + ")";
      });
}

}  // namespace onnx_light::python
