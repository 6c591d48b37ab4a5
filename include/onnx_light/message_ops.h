// Operations on whole messages that need no bytes: merge, copy, compare, print. All are algorithms
// over MessageInfo. Trees deeper than kMaxDepth levels are refused with ValueError `message.depth`
// before anything is changed; none of these functions can overflow the stack.
#pragma once

#include <optional>
#include <string>

#include "onnx_light/message.h"

namespace onnx_light {

// Levels of submessages below the root that can be written, merged, compared and printed.
inline constexpr int kMaxDepth = 1000;

// Throws ValueError `message.depth` if the tree has more levels than that. Linear in the number of
// messages.
ONNX_LIGHT_EXPORT void CheckDepth(const MessageInfo& info, const Message& message);

// Merges `from` into `into` as protobuf does: scalars are replaced, messages merged, lists and
// unknown fields appended, a oneof member clears the others. Payloads are shared, not copied.
// `into` lives in `arena`. REQUIRES: neither message lies in the tree of the other (unless both are
// the same message, whose lists are then doubled).
ONNX_LIGHT_EXPORT void Merge(Arena& arena, const MessageInfo& info, Message& into,
                             const Message& from);

// Equal fields, presence and unknown fields. NaN differs from itself, 0.0 equals -0.0. Unknown
// fields of different numbers may come in any order, those of one number in the same.
ONNX_LIGHT_EXPORT bool Equal(const MessageInfo& info, const Message& a, const Message& b);

// Where two messages differ first, as a path ("graph.node[3].attribute[0].ints[2]"), or nothing if
// they are equal. Unknown fields are called "(unknown fields)".
ONNX_LIGHT_EXPORT std::optional<std::string> FirstDifference(const MessageInfo& info,
                                                             const Message& a, const Message& b);

// protobuf's text format, byte for byte what its Python package prints: fields in the order of
// their numbers, two spaces a level, no unknown fields.
ONNX_LIGHT_EXPORT std::string ToText(const MessageInfo& info, const Message& message);

}  // namespace onnx_light
