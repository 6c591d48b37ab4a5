// The class PagedCache.
#include "onnx_light/cache.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/arrays.h"
#include "core/attention.h"
#include "core/bind.h"
#include "core/comparison.h"
#include "core/messages.h"
#include "core/pages.h"
#include "core/policy.h"
#include "onnx_light/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnx_light::python {
namespace {

constexpr double kLongCall = 64 * 1024;  // bytes to copy; below, other threads cannot gain

// Calls f(key view, value view), letting other threads run if there is much to copy.
template <typename F>
PagedCache WithArrays(nb::handle key, nb::handle value, F f) {
  const ArrayArgument keys(key, "key");
  const ArrayArgument values(value, "value");
  std::optional<nb::gil_scoped_release> others;
  if (keys.nbytes() + values.nbytes() >= kLongCall) others.emplace();
  return f(keys.view(), values.view());
}

// ---------------------------------------------------------------------------------------------
// repr

// Pages that differ in their positions only.
struct Run {
  int64_t start, end, count, length;
  std::string formats;
};

std::vector<Run> RunsOf(const PagedCache& cache) {
  std::vector<Run> runs;
  const PageRange pages = cache.pages();
  for (const PlacedPage& placed : pages) {
    std::string formats =
        "key " + FormatText(placed, Side::kKey) + ", value " + FormatText(placed, Side::kValue);
    if (runs.empty() || runs.back().length != placed.length || runs.back().formats != formats) {
      runs.push_back({placed.start, placed.start, 0, placed.length, std::move(formats)});
    }
    runs.back().end = placed.end();
    ++runs.back().count;
  }
  return runs;
}

std::string Plural(int64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string CacheText(const PagedCache& cache) {
  std::string text = "PagedCache([" + std::to_string(cache.start()) + ", " +
                     std::to_string(cache.end()) + "), " + Plural(cache.length(), "token");
  if (!cache.empty()) {
    const CacheShape& shape = cache.shape();
    text += ", batch " + std::to_string(shape.batch) + ", heads " + std::to_string(shape.heads) +
            ", key width " + std::to_string(shape.key_width) + ", value width " +
            std::to_string(shape.value_width);
  }
  text += ", page size " + std::to_string(cache.page_size()) + ", " +
          Plural(cache.nbytes(), "byte") + ")";
  for (const Run& run : RunsOf(cache)) {
    text += "\n  [" + std::to_string(run.start) + ", " + std::to_string(run.end) + ") " +
            Plural(run.count, "page") + " of " + Plural(run.length, "token") + ": " + run.formats;
  }
  return text;
}

// ---------------------------------------------------------------------------------------------
// The class, part by part

using Class = nb::class_<PagedCache>;
using NoGil = nb::call_guard<nb::gil_scoped_release>;

void BindMaking(Class& cls) {
  cls.def(
         "__init__",
         [](PagedCache* self, int64_t page_size, nb::handle policy) {
           new (self) PagedCache(page_size, ToPolicy(policy));
         },
         "page_size"_a = PagedCache::kDefaultPageSize, "policy"_a = nb::none(),
         nb::sig("def __init__(self, page_size: int = 64, "
                 "policy: CachePolicy | str | None = None) -> None"),
         "The empty cache at position 0. The first append fixes the shape.\n\n"
         "Args:\n"
         "    page_size: tokens that a new page holds, positive.\n"
         "    policy: how pages are stored, a CachePolicy or its text. None: as what is appended, "
         "bit\n"
         "        for bit.\n\n"
         "Raises:\n"
         "    CodedError: `cache.page_size`, `quant.policy`, `quant.format`.")
      .def_static(
          "from_arrays",
          [](nb::handle key, nb::handle value, int64_t page_size, nb::handle policy,
             int64_t start) {
            const CachePolicy stored = ToPolicy(policy);
            return WithArrays(key, value, [&](const ArrayView& keys, const ArrayView& values) {
              return PagedCache::FromArrays(keys, values, page_size, start, stored);
            });
          },
          "key"_a.none(), "value"_a.none(), nb::kw_only(),
          "page_size"_a = PagedCache::kDefaultPageSize, "policy"_a = nb::none(), "start"_a = 0,
          nb::sig("def from_arrays(key: object, value: object, *, page_size: int = 64, "
                  "policy: CachePolicy | str | None = None, start: int = 0) -> PagedCache"),
          "The cache of these tokens, the first at position `start`. Arguments, errors and cost "
          "as\n"
          "those of the class and of append(); `cache.position` if start is negative.")
      .def_static(
          "from_proto", &CacheFromMessage, "proto"_a.none(), "model"_a = nb::none(), nb::kw_only(),
          "page_size"_a = PagedCache::kDefaultPageSize,
          nb::sig("def from_proto(proto: onnx_light.onnx_py._onnxpyprotoop.PagedCacheProto, "
                  "model: onnx_light.onnx_py._onnxpyprotoop.ModelProto | None = None, *, "
                  "page_size: int = 64) -> PagedCache"),
          "The cache that a message describes. Large raw data is shared with the message, not\n"
          "copied. Messages do not carry a page size: `page_size` is that of new pages.\n\n"
          "Args:\n"
          "    proto: the message; a later change of it does not show.\n"
          "    model: the model whose struct types and quantization catalogue it refers to.\n"
          "    page_size: tokens that a new page holds, positive.\n\n"
          "Raises:\n"
          "    CodedError: what is wrong, with a path such as `blocks[1].key`: `cache.missing`,\n"
          "        `cache.start`, `cache.length`, `cache.shape`, `cache.data_type`, `cache.data`,\n"
          "        `cache.payload_size`, `cache.too_large`; `cache.external` for data that is "
          "still\n"
          "        in another file; `cache.unsupported` for tensors in pieces; of\n"
          "        encoded payloads `cache.logical_type`, `cache.storage_type`, `cache.scale`,\n"
          "        `cache.zero_point`, `cache.axis`, `cache.block_size`, `cache.layout`,\n"
          "        `cache.reference`.\n"
          "    TypeError: proto is no PagedCacheProto.");
}

void BindProperties(Class& cls) {
  cls.def(
         "__len__", [](const PagedCache& self) { return self.length(); }, "Tokens: end - start.")
      .def_prop_ro("start", &PagedCache::start, "Position of the first token.")
      .def_prop_ro("end", &PagedCache::end, "Position after the last token.")
      .def_prop_ro("batch", &PagedCache::batch, "Batch entries; 0 while the cache is empty.")
      .def_prop_ro("heads", &PagedCache::heads, "KV heads; 0 while the cache is empty.")
      .def_prop_ro(
          "key_width", [](const PagedCache& self) { return self.shape().key_width; },
          "Numbers in a key; 0 while the cache is empty.")
      .def_prop_ro(
          "value_width", [](const PagedCache& self) { return self.shape().value_width; },
          "Numbers in a value; 0 while the cache is empty.")
      .def_prop_ro("page_size", &PagedCache::page_size, "Tokens that a new page holds.")
      .def_prop_ro(
          "policy", [](const PagedCache& self) { return PolicyObject(self.policy()); },
          nb::sig("def policy(self) -> CachePolicy | None"),
          "How new pages are stored. None: as what is appended, bit for bit.")
      .def_prop_ro("nbytes", &PagedCache::nbytes,
                   "Bytes of all pages, the room for further tokens included. O(pages).")
      .def_prop_ro(
          "bits_per_value", &PagedCache::bits_per_value,
          "Bits of keys and values with their scales and zero points for each number, over\n"
          "the tokens that count; 0 if empty. Headers and checksums of a file come on top.\n"
          "O(pages).")
      .def_prop_ro(
          "pages", [](const PagedCache& self) { return Pages{self}; },
          "The pages in order, as an immutable sequence. O(1).");
}

void BindArrays(Class& cls) {
  cls.def(
         "key_array",
         [](const PagedCache& self, nb::handle dtype) {
           return CacheArray(self, Side::kKey, ToDType(dtype));
         },
         "dtype"_a = nb::none(),
         nb::sig("def key_array(self, dtype: numpy.typing.DTypeLike | None = None) -> "
                 "numpy.typing.NDArray[typing.Any]"),
         "All keys in a new array [batch, heads, len(cache), key_width]. O(tokens).\n\n"
         "Args:\n"
         "    dtype: float32, float16, bfloat16, float8_e4m3fn or float8_e5m2, by name or as "
         "numpy\n"
         "        and ml_dtypes have it. Conversions round to nearest even. None: the pages' own "
         "if\n"
         "        all have one, else float32.\n\n"
         "Raises:\n"
         "    CodedError: `cache.dtype` for another type.")
      .def(
          "value_array",
          [](const PagedCache& self, nb::handle dtype) {
            return CacheArray(self, Side::kValue, ToDType(dtype));
          },
          "dtype"_a = nb::none(),
          nb::sig("def value_array(self, dtype: numpy.typing.DTypeLike | None = None) -> "
                  "numpy.typing.NDArray[typing.Any]"),
          "All values in a new array [batch, heads, len(cache), value_width]; see key_array().")
      .def(
          "to_arrays",
          [](const PagedCache& self, nb::handle dtype) {
            const std::optional<DType> type = ToDType(dtype);
            const nb::object keys = CacheArray(self, Side::kKey, type);
            return std::pair(keys, CacheArray(self, Side::kValue, type));
          },
          "dtype"_a = nb::none(),
          nb::sig("def to_arrays(self, dtype: numpy.typing.DTypeLike | None = None) -> "
                  "tuple[numpy.typing.NDArray[typing.Any], numpy.typing.NDArray[typing.Any]]"),
          "Keys and values; see key_array().");
}

void BindOperations(Class& cls) {
  cls.def(
         "append",
         [](const PagedCache& self, nb::handle key, nb::handle value) {
           return WithArrays(key, value, [&](const ArrayView& keys, const ArrayView& values) {
             return self.Append(keys, values);
           });
         },
         "key"_a.none(), "value"_a.none(),
         nb::sig("def append(self, key: object, value: object) -> PagedCache"),
         "This cache and then these tokens, as a new value that shares the pages. This one stays\n"
         "what it is. O(new tokens), however long the cache is.\n\n"
         "Args:\n"
         "    key: [batch, heads, tokens, key_width], anything with the buffer protocol or\n"
         "        __dlpack__, any strides, in float32, float16, bfloat16, float8_e4m3fn or\n"
         "        float8_e5m2. Copied once, bit for bit unless the policy names another type;\n"
         "        another type than the last page's begins a new page. No tokens are fine.\n"
         "    value: [batch, heads, tokens, value_width], the same way.\n\n"
         "Raises:\n"
         "    CodedError: `cache.shape`, `cache.dtype`, `cache.device`, `cache.too_large`;\n"
         "        `cache.overflow` where a finite number becomes infinite in the policy's type; "
         "the\n"
         "        path names the argument. On a side that the policy encodes `quant.not_finite`,\n"
         "        `quant.width`, `quant.overflow` for what the format cannot hold.\n"
         "    TypeError: no array.")
      .def("truncate", &PagedCache::Truncate, "end"_a,
           "The tokens before position `end`, which lies in [start, end]. O(log pages).\n\n"
           "Raises:\n"
           "    CodedError: `cache.position`.")
      .def("drop_before", &PagedCache::DropBefore, "position"_a,
           "Without the pages that end at or before `position`. The last page always stays, so\n"
           "that the cache keeps its position. O(log pages).\n\n"
           "Raises:\n"
           "    CodedError: `cache.position` after the end, or negative.")
      .def("slice", &PagedCache::Slice, "start"_a, "end"_a, NoGil(),
           "Exactly the tokens [start, end), which keep their positions. A first page that is cut\n"
           "inside is copied, all others are shared. O(log pages + page).\n\n"
           "Raises:\n"
           "    CodedError: `cache.position`.")
      .def("concat", &PagedCache::Concat, "other"_a, NoGil(),
           "This cache and then the other's tokens, renumbered to follow. O(pages of other).\n\n"
           "Raises:\n"
           "    CodedError: `cache.mismatch` if batch, heads or widths differ, `cache.too_large`.")
      .def(
          "gather",
          [](const PagedCache& self, const std::vector<int64_t>& batch_indices) {
            return self.Gather(batch_indices);
          },
          "batch_indices"_a, NoGil(),
          nb::sig("def gather(self, batch_indices: collections.abc.Sequence[int] | "
                  "numpy.typing.NDArray[numpy.integer[typing.Any]]) -> PagedCache"),
          "The given batch entries in that order, any number of times each: how beams move.\n"
          "O(tokens), unless nothing moves.\n\n"
          "Raises:\n"
          "    CodedError: `cache.batch_index` outside [0, batch), or no index at all.")
      .def("repage", &PagedCache::Repage, "page_size"_a, NoGil(),
           "The same tokens in pages of another size, as if they were appended to an empty cache:\n"
           "encoded pages are decoded, and encoded again if the policy says so. Pages that have "
           "the\n"
           "size are shared. O(tokens).\n\n"
           "Raises:\n"
           "    CodedError: `cache.page_size`.")
      .def(
          "quantize",
          [](const PagedCache& self, nb::handle policy,
             const std::optional<std::vector<int64_t>>& pages, int num_threads) {
            const CachePolicy formats = ToPolicyOrFormat(policy);
            const nb::gil_scoped_release others;
            return pages ? self.QuantizePages(*pages, formats, num_threads)
                         : self.Quantize(formats, num_threads);
          },
          "policy"_a, "pages"_a = nb::none(), nb::kw_only(), "num_threads"_a = -1,
          nb::sig("def quantize(self, policy: CachePolicy | PageFormat | str, "
                  "pages: collections.abc.Sequence[int] | None = None, "
                  "*, num_threads: int = -1) -> PagedCache"),
          "The same tokens as if they had been appended under a policy, in the pages of this "
          "cache:\n"
          "the first and last tokens that it keeps dense, and a partial last page, stay so. Pages "
          "in\n"
          "the policy's formats are shared, pages in other encoded formats decoded first. "
          "O(tokens).\n\n"
          "Args:\n"
          "    policy: a policy or its text, or one format for keys and values.\n"
          "    pages: indices of pages; exactly these are stored in the policy's formats, and the\n"
          "        result keeps the policy of this cache.\n"
          "    num_threads: 0 and 1: this one; below 0: one for each core.\n\n"
          "Raises:\n"
          "    CodedError: as append(); `cache.page_index` for an index outside or given twice;\n"
          "        `quant.unknown_layout` for pages whose values are not known.")
      .def(
          "dequantize",
          [](const PagedCache& self, nb::handle dtype,
             const std::optional<std::vector<int64_t>>& pages, int num_threads) {
            const DType type = ToDType(dtype).value_or(DType::kFloat32);
            const nb::gil_scoped_release others;
            return pages ? self.DequantizePages(*pages, type, num_threads)
                         : self.Dequantize(type, num_threads);
          },
          "dtype"_a = "float32", "pages"_a = nb::none(), nb::kw_only(), "num_threads"_a = -1,
          nb::sig("def dequantize(self, dtype: numpy.typing.DTypeLike = 'float32', "
                  "pages: collections.abc.Sequence[int] | None = None, "
                  "*, num_threads: int = -1) -> PagedCache"),
          "The same tokens with encoded pages as plain numbers, and no policy. Dense pages are\n"
          "shared. O(tokens).\n\n"
          "Args:\n"
          "    dtype: as that of key_array().\n"
          "    pages: indices of pages; exactly these are decoded, and the policy stays.\n"
          "    num_threads: 0 and 1: this one; below 0: one for each core.\n\n"
          "Raises:\n"
          "    CodedError: `cache.dtype`, `cache.page_index`, `cache.overflow`,\n"
          "        `quant.unknown_layout`.")
      .def(
          "compare",
          [](const PagedCache& self, const PagedCache& other) {
            return CacheComparison(self.Compare(other));
          },
          "other"_a, NoGil(),
          "How far the other's numbers are from these, page by page. Both cover the same tokens\n"
          "with the same shape; pages and formats may differ. O(tokens).\n\n"
          "Raises:\n"
          "    CodedError: `cache.mismatch`.")
      .def(
          "validate", [](const PagedCache& self) { self.Validate(); },
          "Checks that pages follow each other and have one shape, as every cache does that was\n"
          "made without error. O(pages).\n\n"
          "Raises:\n"
          "    CodedError: what is wrong, with a path such as `blocks[3].length`.")
      .def("to_proto", &CacheToMessage, "name"_a = "",
           nb::sig("def to_proto(self, name: str = '') -> "
                   "onnx_light.onnx_py._onnxpyprotoop.PagedCacheProto"),
           "The cache as a message, all data raw. Full pages are shared with it, others copied\n"
           "without the rows past their end, which never leave the cache. The position of an\n"
           "empty cache is not kept.\n\n"
           "Args:\n"
           "    name: the message's name; empty: it has none.");
}

void BindAttend(Class& cls) {
  cls.def(
      "attend",
      [](const PagedCache& self, nb::handle query, std::optional<double> scale, bool is_causal,
         int64_t left_window_size, double softcap, nb::handle attn_mask, nb::handle sinks,
         int num_threads) {
        return AttendArray(
            self, query,
            {scale, is_causal, left_window_size, softcap, attn_mask, sinks, num_threads});
      },
      "query"_a.none(), nb::kw_only(), "scale"_a = nb::none(), "is_causal"_a = true,
      "left_window_size"_a = -1, "softcap"_a = 0.0, "attn_mask"_a = nb::none(),
      "sinks"_a = nb::none(), "num_threads"_a = -1,
      nb::sig("def attend(self, query: object, *, scale: float | None = None, "
              "is_causal: bool = True, left_window_size: int = -1, softcap: float = 0.0, "
              "attn_mask: object | None = None, sinks: object | None = None, "
              "num_threads: int = -1) -> numpy.typing.NDArray[typing.Any]"),
      "Attention of queries on this cache, straight on its pages: softmax(scores) @ values in a\n"
      "new array [batch, query_heads, query_tokens, value_width] of the query's dtype. Query i of\n"
      "S has the position end - S + i. A query that sees no key gives exactly 0.\n\n"
      "Args:\n"
      "    query: [batch, query_heads, query_tokens, key_width], float32, float16 or bfloat16, "
      "any\n"
      "        strides. query_heads is a multiple of heads; query head h uses the KV head\n"
      "        h // (query_heads / heads).\n"
      "    scale: what products of queries and keys are multiplied with. None: key_width ** -0.5.\n"
      "    is_causal: keys after the query's position are not seen.\n"
      "    left_window_size: L >= 0: of the keys before the query's position, L are seen. -1: "
      "all.\n"
      "    softcap: c > 0: scores become c * tanh(score / c), before the mask. 0: as they are.\n"
      "    attn_mask: bools, where False hides, or numbers that are added to the scores;\n"
      "        broadcast to [batch, query_heads, query_tokens, len(cache)].\n"
      "    sinks: [query_heads], scores that take part in the softmax and have no value.\n"
      "    num_threads: 0 and 1: this one; below 0: one for each core.\n\n"
      "Raises:\n"
      "    CodedError: `attention.shape` where query, mask or sinks do not fit, or the cache is\n"
      "        empty; `attention.dtype`, `attention.option`; `cache.shape`, `cache.dtype` for a "
      "query\n"
      "        that is no array of four dims and floating-point type; `quant.unknown_layout` for\n"
      "        pages whose values are not known.\n"
      "    TypeError: no array.");
}

void BindPagedAttention(nb::module_& m) {
  m.def(
      "paged_attention",
      [](nb::handle query, nb::handle key, nb::handle value, const PagedCache& past,
         nb::handle attn_mask, nb::handle sinks, int64_t block_size, int64_t max_tokens,
         bool is_causal, int64_t left_window_size, std::optional<double> scale, double softcap,
         nb::handle policy, int num_threads) {
        return PagedAttentionResult(
            past, query, key, value,
            {scale, is_causal, left_window_size, softcap, attn_mask, sinks, num_threads},
            {block_size, max_tokens, policy});
      },
      "query"_a.none(), "key"_a.none(), "value"_a.none(), "past"_a, nb::kw_only(),
      "attn_mask"_a = nb::none(), "sinks"_a = nb::none(), "block_size"_a = 16,
      "max_tokens"_a = 4096, "is_causal"_a = true, "left_window_size"_a = -1,
      "scale"_a = nb::none(), "softcap"_a = 0.0, "policy"_a = nb::none(), "num_threads"_a = -1,
      nb::sig("def paged_attention(query: object, key: object, value: object, past: PagedCache, *, "
              "attn_mask: object | None = None, sinks: object | None = None, "
              "block_size: int = 16, max_tokens: int = 4096, is_causal: bool = True, "
              "left_window_size: int = -1, scale: float | None = None, softcap: float = 0.0, "
              "policy: CachePolicy | str | None = None, num_threads: int = -1) -> "
              "tuple[numpy.typing.NDArray[typing.Any], PagedCache]"),
      "The operator ai.rt::PagedAttention: appends the tokens to `past`, attends on all of them "
      "as\n"
      "they came, and then encodes the pages that the policy says.\n\n"
      "Args:\n"
      "    query: [batch, query_heads, query_tokens, key_width]; see PagedCache.attend(), as for\n"
      "        all options that are not named here.\n"
      "    key, value: [batch, heads, tokens, width]; see PagedCache.append().\n"
      "    block_size: the page size of an empty past.\n"
      "    max_tokens: most tokens that the result may hold; 0: no limit.\n"
      "    policy: that of the result. None: that of past.\n\n"
      "Returns:\n"
      "    The result of attend(), and the new cache.\n\n"
      "Raises:\n"
      "    CodedError: as append() and attend(), and `runtime.max_tokens`.\n"
      "    TypeError: no array.");
}

void BindProtocols(Class& cls) {
  cls.def(
         "__eq__", [](const PagedCache& a, const PagedCache& b) { return a == b; },
         nb::is_operator(), NoGil(), nb::sig("def __eq__(self, other: object, /) -> bool"),
         "Equal start, pages, their formats and the bits of their rows; page_size and policy do\n"
         "not count. O(tokens), less where pages are shared.")
      .def("__repr__", &CacheText)
      .def(
          "__copy__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __copy__(self) -> PagedCache"), "This value, which cannot change.")
      .def(
          "__deepcopy__", [](nb::handle self, nb::handle) { return nb::borrow(self); }, "memo"_a,
          nb::sig("def __deepcopy__(self, memo: dict[int, typing.Any], /) -> PagedCache"),
          "This value, which cannot change.")
      .def("__getstate__", &CacheState, nb::sig("def __getstate__(self) -> dict[str, typing.Any]"))
      .def(
          "__setstate__",
          [](PagedCache& self, const nb::dict& state) {
            new (&self) PagedCache(CacheFromState(state));
          },
          "state"_a, nb::sig("def __setstate__(self, state: dict[str, typing.Any], /) -> None"));
  cls.attr("__hash__") = nb::none();
}

}  // namespace

void BindPagedCache(nb::module_& m) {
  Class cls(
      m, "PagedCache",
      "Keys and values of one attention layer, as an immutable value in pages.\n\n"
      "Every operation gives a new value that shares pages with the old one: forks, rollback\n"
      "and snapshots cost a few pointers. Positions are absolute. Any number of threads may\n"
      "use one value.");
  BindMaking(cls);
  BindProperties(cls);
  BindArrays(cls);
  BindOperations(cls);
  BindAttend(cls);
  BindProtocols(cls);
  BindPagedAttention(m);
}

}  // namespace onnx_light::python
