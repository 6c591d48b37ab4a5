// The classes PageFormat and CachePolicy.
#include "core/policy.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "core/bind.h"
#include "onnx_light/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnx_light::python {
namespace {

[[noreturn]] void ThrowFormat(const char* path, const std::string& message) {
  throw ValueError("quant.format", path, message);
}

ScaleKind ToScaleKind(const std::string& name) {
  for (ScaleKind kind : {ScaleKind::kTensor, ScaleKind::kChannel, ScaleKind::kToken}) {
    if (Name(kind) == name) return kind;
  }
  ThrowFormat("scale", "'" + name + "' is none of tensor, channel, token");
}

DType ToScaleType(nb::handle scale_type) {
  const PageFormat format = ToPageFormat(scale_type, "scale_type");
  if (format.is_dense()) return *format.dtype();
  ThrowFormat("scale_type", format.Text() + " is none of float32, float16, bfloat16");
}

PageFormat MakeFormat(nb::handle name, const std::optional<std::string>& scale,
                      std::optional<int64_t> group, nb::handle scale_type) {
  const PageFormat format = ToPageFormat(name, "format");
  if (!scale && !group && scale_type.is_none()) return format;
  if (nb::isinstance<nb::str>(name) && nb::cast<std::string>(name).find('/') != std::string::npos) {
    ThrowFormat("format", format.Text() + " names its scale, so no other argument may");
  }
  if (!format.is_affine()) ThrowFormat("scale", format.Text() + " takes no scale");
  if (group && *group <= 0) ThrowFormat("group", std::to_string(*group) + " is not positive");
  return PageFormat::Affine(format.type(), scale ? ToScaleKind(*scale) : format.scale(),
                            group.value_or(0),
                            scale_type.is_none() ? DType::kFloat16 : ToScaleType(scale_type));
}

std::optional<PageFormat> ToOptionalFormat(nb::handle format, const char* path) {
  return format.is_none() ? std::nullopt : std::optional(ToPageFormat(format, path));
}

std::optional<DType> ToOpen(nb::handle open) {
  if (nb::isinstance<nb::str>(open) && nb::cast<std::string>(open) == "auto") return std::nullopt;
  const PageFormat format = ToPageFormat(open, "open");
  if (format.is_dense()) return format.dtype();
  throw ValueError("quant.policy", "open", format.Text() + " is not dense, as new tokens are");
}

std::string Repr(const char* name, const std::string& text) {
  return std::string(name) + "('" + text + "')";
}

template <typename T>
Py_hash_t HashOf(const T& value) {
  return nb::hash(nb::str(value.Text().c_str()));
}

void BindPageFormat(nb::module_& m) {
  nb::class_<PageFormat>(
      m, "PageFormat",
      "How the keys or the values of a page are stored: an immutable value whose str() parses.\n\n"
      "Plain numbers: float32, float16, bfloat16, float8_e4m3fn, float8_e5m2. Codes with scales:\n"
      "int8, int4, int2 (symmetric), uint8, uint4, uint2 (with zero points). Records of llama.cpp\n"
      "with 32 numbers each: q8_0, q4_0.")
      .def(
          "__init__",
          [](PageFormat* self, nb::handle format, const std::optional<std::string>& scale,
             std::optional<int64_t> group, nb::handle scale_type) {
            new (self) PageFormat(MakeFormat(format, scale, group, scale_type));
          },
          "format"_a, "scale"_a = nb::none(), "group"_a = nb::none(), "scale_type"_a = nb::none(),
          nb::sig("def __init__(self, format: PageFormat | numpy.typing.DTypeLike, "
                  "scale: str | None = None, group: int | None = None, "
                  "scale_type: numpy.typing.DTypeLike | None = None) -> None"),
          "Args:\n"
          "    format: a type's name, short name (f32, bf16, f8e4m3, u4, ...) or dtype; or a "
          "whole\n"
          "        text such as \"int8/channel\", \"uint4/token:32\" or \"int8/token/float32\".\n"
          "    scale: what a scale of codes covers: \"tensor\" everything, \"channel\" one channel "
          "of\n"
          "        `group` tokens, \"token\" `group` channels of one token. None: token.\n"
          "    group: None: all tokens of the page, or the whole width.\n"
          "    scale_type: float32, float16 or bfloat16. None: float16. Pages whose scales it "
          "cannot\n"
          "        hold have float32 ones.\n\n"
          "Raises:\n"
          "    CodedError: `quant.format`.")
      .def_static(
          "parse", [](const std::string& text) { return PageFormat::Parse(text); }, "text"_a,
          "The format that a text such as \"uint4/channel:32\" names.\n\n"
          "Raises:\n"
          "    CodedError: `quant.format`.")
      .def_prop_ro(
          "name", [](const PageFormat& self) { return std::string(Name(self.type())); },
          "The type: \"float32\", ..., \"uint4\", \"q8_0\".")
      .def_prop_ro(
          "scale",
          [](const PageFormat& self) {
            return self.is_affine() ? std::optional(std::string(Name(self.scale()))) : std::nullopt;
          },
          "\"tensor\", \"channel\" or \"token\"; None unless the format has codes with scales.")
      .def_prop_ro(
          "group",
          [](const PageFormat& self) {
            return self.group() != 0 ? std::optional(self.group()) : std::nullopt;
          },
          "Tokens (\"channel\") or channels (\"token\") of one scale; None: all.")
      .def_prop_ro(
          "scale_type",
          [](const PageFormat& self) {
            return self.is_affine() ? std::optional(std::string(Name(self.scale_type())))
                                    : std::nullopt;
          },
          "The type of the scales; None unless the format has codes with scales.")
      .def_prop_ro("is_dense", &PageFormat::is_dense, "Whether numbers are stored as they are.")
      .def("__str__", &PageFormat::Text)
      .def("__repr__", [](const PageFormat& self) { return Repr("PageFormat", self.Text()); })
      .def("__hash__", &HashOf<PageFormat>)
      .def(
          "__eq__", [](const PageFormat& a, const PageFormat& b) { return a == b; },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__getstate__", &PageFormat::Text)
      .def("__setstate__", [](PageFormat& self, const std::string& text) {
        new (&self) PageFormat(PageFormat::Parse(text));
      });
}

void BindPolicyClass(nb::class_<CachePolicy>& cls) {
  cls.def(
         "__init__",
         [](CachePolicy* self, nb::handle key, nb::handle value, nb::handle open,
            int64_t sink_tokens, int64_t recent_tokens) {
           const CachePolicy policy{ToOptionalFormat(key, "key"), ToOptionalFormat(value, "value"),
                                    ToOpen(open), sink_tokens, recent_tokens};
           policy.Validate();
           new (self) CachePolicy(policy);
         },
         "key"_a = nb::none(), "value"_a = nb::none(), "open"_a = "auto", "sink_tokens"_a = 0,
         "recent_tokens"_a = 0,
         nb::sig("def __init__(self, key: PageFormat | numpy.typing.DTypeLike | None = None, "
                 "value: PageFormat | numpy.typing.DTypeLike | None = None, "
                 "open: numpy.typing.DTypeLike = 'auto', sink_tokens: int = 0, "
                 "recent_tokens: int = 0) -> None"),
         "Args:\n"
         "    key: the format of full pages' keys, as a PageFormat, its text or a dtype. None: "
         "the\n"
         "        type appended.\n"
         "    value: that of their values.\n"
         "    open: the type in which new tokens wait on a side without a dense format. \"auto\":\n"
         "        the type appended.\n"
         "    sink_tokens: pages with any of the first positions stay dense.\n"
         "    recent_tokens: pages with any of the last positions stay dense.\n\n"
         "Raises:\n"
         "    CodedError: `quant.format`, `quant.policy`; the path names the argument.")
      .def_static(
          "parse", [](const std::string& text) { return CachePolicy::Parse(text); }, "text"_a,
          "The policy of a text: a preset's name, one format for both sides, or options such as\n"
          "\"key=int8/channel value=uint4/token:64 open=float16 sink_tokens=4 "
          "recent_tokens=128\".\n\n"
          "Raises:\n"
          "    CodedError: `quant.policy`, `quant.format`; the path names the option.")
      .def_ro("key", &CachePolicy::key, "The format of keys, or None.")
      .def_ro("value", &CachePolicy::value, "The format of values, or None.")
      .def_prop_ro(
          "open",
          [](const CachePolicy& self) {
            return self.open ? std::string(Name(*self.open)) : std::string("auto");
          },
          "The type in which new tokens wait, or \"auto\".")
      .def_ro("sink_tokens", &CachePolicy::sink_tokens, "First positions that stay dense.")
      .def_ro("recent_tokens", &CachePolicy::recent_tokens, "Last positions that stay dense.")
      .def("__str__", &CachePolicy::Text)
      .def("__repr__", [](const CachePolicy& self) { return Repr("CachePolicy", self.Text()); })
      .def("__hash__", &HashOf<CachePolicy>)
      .def(
          "__eq__", [](const CachePolicy& a, const CachePolicy& b) { return a == b; },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__getstate__", &CachePolicy::Text)
      .def("__setstate__", [](CachePolicy& self, const std::string& text) {
        new (&self) CachePolicy(CachePolicy::Parse(text));
      });
}

nb::object Presets() {
  nb::dict presets;
  for (const PolicyPreset& preset : PolicyPresets()) {
    presets[std::string(preset.name).c_str()] = preset.policy;
  }
  return nb::module_::import_("types").attr("MappingProxyType")(presets);
}

}  // namespace

PageFormat ToPageFormat(nb::handle format, const char* path) {
  if (nb::isinstance<PageFormat>(format)) return nb::cast<PageFormat>(format);
  if (nb::isinstance<nb::str>(format)) {
    return PageFormat::Parse(nb::cast<std::string>(format), path);
  }
  // numpy takes None for float64.
  if (format.is_none()) throw nb::type_error((std::string(path) + ": must not be None").c_str());
  const nb::object dtype = nb::module_::import_("numpy").attr("dtype")(format);
  return PageFormat::Parse(nb::cast<std::string>(dtype.attr("name")), path);
}

CachePolicy ToPolicy(nb::handle policy) {
  if (policy.is_none()) return CachePolicy();
  if (nb::isinstance<CachePolicy>(policy)) return nb::cast<CachePolicy>(policy);
  if (nb::isinstance<nb::str>(policy)) return CachePolicy::Parse(nb::cast<std::string>(policy));
  throw nb::type_error((std::string("policy: a CachePolicy or its text is needed, not ") +
                        Py_TYPE(policy.ptr())->tp_name)
                           .c_str());
}

CachePolicy ToPolicyOrFormat(nb::handle policy) {
  if (nb::isinstance<CachePolicy>(policy) || nb::isinstance<nb::str>(policy)) {
    return ToPolicy(policy);
  }
  CachePolicy formats;
  formats.key = formats.value = ToPageFormat(policy, "policy");
  return formats;
}

nb::object PolicyObject(const CachePolicy& policy) {
  return policy == CachePolicy() ? nb::none() : nb::cast(policy);
}

void BindPolicy(nb::module_& m) {
  BindPageFormat(m);
  nb::class_<CachePolicy> cls(
      m, "CachePolicy",
      "How a cache stores its pages while it grows: an immutable value whose str() parses.");
  BindPolicyClass(cls);
  cls.attr("presets") = Presets();
}

}  // namespace onnx_light::python
