// How a cache stores its pages while it grows, as a value that prints and parses.
//
//   CachePolicy::Parse("key=int8/channel value=uint4/token:64 sink_tokens=4 recent_tokens=128")
//   CachePolicy::Parse("int8")      a preset
//   CachePolicy::Parse("bfloat16")  one format for both sides
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "onnx_light/dtype.h"
#include "onnx_light/export.h"
#include "onnx_light/page_format.h"

namespace onnx_light {

// New tokens go into an open page of plain numbers. A side with a dense format converts them to it
// there; one without a format keeps what is appended, bit for bit. A side with an encoded format
// encodes a page when it is full and `recent_tokens` later tokens exist, unless one of its tokens
// is among the first `sink_tokens` positions.
struct ONNX_LIGHT_EXPORT CachePolicy {
  std::optional<PageFormat> key;
  std::optional<PageFormat> value;
  // The type of plain numbers on a side without a dense format; nothing: the type appended.
  std::optional<DType> open;
  int64_t sink_tokens = 0;
  int64_t recent_tokens = 0;

  // `key=FORMAT value=FORMAT open=TYPE sink_tokens=N recent_tokens=N` in any order, separated by
  // spaces, each at most once and all but one optional; `k` and `v` stand for key and value, and
  // `open=auto` for no type. Or a single word: the name of a preset, or a format for both sides.
  // ValueError `quant.policy` or `quant.format` for anything else; the path is the option's name.
  static CachePolicy Parse(std::string_view text);

  // The text that Parse() reads.
  std::string Text() const;

  // ValueError `quant.policy` where a number of tokens is negative.
  void Validate() const;

  bool operator==(const CachePolicy&) const = default;
};

struct PolicyPreset {
  std::string_view name;
  CachePolicy policy;
};

// Points of the measured front of bits against error, from most bits to fewest.
ONNX_LIGHT_EXPORT std::span<const PolicyPreset> PolicyPresets();

}  // namespace onnx_light
