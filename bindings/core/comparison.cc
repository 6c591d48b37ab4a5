#include "core/comparison.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "core/bind.h"

namespace nb = nanobind;

namespace onnx_light::python {
namespace {

// The larger one; NaN if either is.
double Larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

std::string Short(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", number);
  return text;
}

std::string ErrorText(const PageError& error) {
  return "key max " + Short(error.key_max) + " rms " + Short(error.key_rms) + ", value max " +
         Short(error.value_max) + " rms " + Short(error.value_rms);
}

std::string RangeText(const PageError& error) {
  return std::string("[") + std::to_string(error.start) + ", " + std::to_string(error.end) + ")";
}

nb::dict ErrorDict(const PageError& error) {
  nb::dict result;
  result["start"] = error.start;
  result["end"] = error.end;
  result["key_max"] = error.key_max;
  result["key_rms"] = error.key_rms;
  result["value_max"] = error.value_max;
  result["value_rms"] = error.value_rms;
  return result;
}

nb::dict ComparisonDict(const CacheComparison& comparison) {
  nb::dict result = ErrorDict(comparison.all);
  nb::list pages;
  for (const PageError& error : comparison.pages) pages.append(ErrorDict(error));
  result["pages"] = pages;
  return result;
}

void BindPageError(nb::module_& m) {
  nb::class_<PageError>(
      m, "PageError",
      "How far the numbers of one page are from another cache's. Errors are absolute: 0 where the\n"
      "numbers are equal (NaN and NaN are), NaN where only one of two is NaN.")
      .def_ro("start", &PageError::start, "Position of the first token.")
      .def_ro("end", &PageError::end, "Position after the last token.")
      .def_ro("key_max", &PageError::key_max, "Largest error of the keys.")
      .def_ro("key_rms", &PageError::key_rms, "Root of the mean squared error of the keys.")
      .def_ro("value_max", &PageError::value_max, "Largest error of the values.")
      .def_ro("value_rms", &PageError::value_rms, "Root of the mean squared error of the values.")
      .def("to_dict", &ErrorDict, nb::sig("def to_dict(self) -> dict[str, float]"),
           "The attributes by name.")
      .def("__repr__", [](const PageError& self) {
        return "PageError(" + RangeText(self) + ": " + ErrorText(self) + ")";
      });
}

}  // namespace

CacheComparison::CacheComparison(std::vector<PageError> errors) : pages(std::move(errors)) {
  if (pages.empty()) return;
  all.start = pages.front().start;
  all.end = pages.back().end;
  double key_squares = 0, value_squares = 0;
  for (const PageError& error : pages) {
    const auto tokens = static_cast<double>(error.end - error.start);
    all.key_max = Larger(all.key_max, error.key_max);
    all.value_max = Larger(all.value_max, error.value_max);
    key_squares += tokens * error.key_rms * error.key_rms;
    value_squares += tokens * error.value_rms * error.value_rms;
  }
  const auto tokens = static_cast<double>(all.end - all.start);
  all.key_rms = std::sqrt(key_squares / tokens);
  all.value_rms = std::sqrt(value_squares / tokens);
}

void BindComparison(nb::module_& m) {
  BindPageError(m);
  nb::class_<CacheComparison>(m, "CacheComparison",
                              "How far one cache's numbers are from another's: per page, and over\n"
                              "all pages. Errors as in PageError.")
      .def_prop_ro(
          "pages", [](const CacheComparison& self) { return self.pages; },
          "One PageError for each page of the cache whose compare() was called.")
      .def_prop_ro(
          "key_max", [](const CacheComparison& self) { return self.all.key_max; },
          "Largest error of all keys.")
      .def_prop_ro(
          "key_rms", [](const CacheComparison& self) { return self.all.key_rms; },
          "Root of the mean squared error of all keys.")
      .def_prop_ro(
          "value_max", [](const CacheComparison& self) { return self.all.value_max; },
          "Largest error of all values.")
      .def_prop_ro(
          "value_rms", [](const CacheComparison& self) { return self.all.value_rms; },
          "Root of the mean squared error of all values.")
      .def("to_dict", &ComparisonDict, nb::sig("def to_dict(self) -> dict[str, typing.Any]"),
           "start, end, the errors over all pages, and under \"pages\" a dict for each page.")
      .def("__repr__", [](const CacheComparison& self) {
        return "CacheComparison(" + std::to_string(self.pages.size()) + " pages, " +
               RangeText(self.all) + ": " + ErrorText(self.all) + ")";
      });
}

}  // namespace onnx_light::python
