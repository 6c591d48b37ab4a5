"""Makes the C++ message structs and their field tables from the schema.

    generate_messages.py --schema proto/messages.proto --output DIR

writes DIR/onnx_light/messages.h and DIR/onnx/messages.cc. Files whose content does not change keep
their time stamp, so that nothing is compiled again in vain.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import message_schema
from message_schema import Enum, Field, Message, Schema

CPP_TYPES = {
    "int32": "int32_t",
    "int64": "int64_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "bool": "bool",
    "float": "float",
    "double": "double",
    "string": "String",
    "bytes": "String",
}
CPP_KEYWORDS = {"operator"}
FIXED = {"float": 5, "double": 1}
PAYLOAD_FIELDS = ("raw_data", "external_data", "data_location")

HEADER = """\
// Generated from proto/messages.proto. Do not edit.
//
// One struct per message. Reading: `x()`, `has_x()`; the default if x is not set. Writing needs the
// arena that the message lives in: `set_x(arena, value)`, `mutable_x(arena)`, `add_x(arena)`,
// `clear_x(arena)`. Lists are read as spans; `mutable_x` of a list is for append and erase.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "onnx_light/message.h"

namespace onnx_light {
"""

SOURCE = """\
// Generated from proto/messages.proto. Do not edit.
#include "onnx_light/messages.h"

#include "wire/table.h"

// The structs have a base with members of its own; every compiler that we support lays them out as
// one would expect, which the tests of the tables check.
#pragma GCC diagnostic ignored "-Winvalid-offsetof"

namespace onnx_light {
"""


def comment(text: str, indent: int = 0) -> list[str]:
    """`text` as // lines of at most 100 columns."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        lines += textwrap.wrap(paragraph, 96 - indent) or [""]
    return [" " * indent + ("// " + line).rstrip() for line in lines]


def literal(text: str) -> str:
    """`text` as a C string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def identifier(name: str) -> str:
    return name + "_field" if name in CPP_KEYWORDS else name


def by_number(message: Message) -> list[Field]:
    return sorted(message.fields, key=lambda field: field.number)


def cpp_type(field: Field) -> str:
    """The type of one value in a message's struct."""
    if field.kind == "message":
        return field.cpp_type + "*"
    return "int32_t" if field.kind == "enum" else CPP_TYPES[field.type]


def member_type(field: Field) -> str:
    return f"RepeatedSlot<{cpp_type(field)}>" if field.repeated else cpp_type(field)


def enum_declaration(enum: Enum, indent: int) -> list[str]:
    """Nested enums are plain (TensorProto::FLOAT), those at the top are scoped."""
    head = f"enum {'class ' if enum.parent is None else ''}{enum.name} : int32_t {{"
    lines = comment(enum.doc, indent) + [" " * indent + head]
    for value in enum.values:
        lines += comment(value.doc, indent + 2)
        lines.append(" " * (indent + 2) + f"{value.name} = {value.number},")
    return [*lines, " " * indent + "};"]


def accessors(field: Field) -> list[str]:
    """The accessors of one field. `static` rows come from the table, by index."""
    name, row = identifier(field.name), "kInfo.fields[{index}]"
    has = f"bool has_{field.name}() const {{ return (presence >> {{index}} & 1) != 0; }}"
    clear = f"void clear_{field.name}(Arena& arena) {{ ClearField(arena, *this, {row}); }}"
    if field.repeated:
        return repeated_accessors(field, name, row, clear)
    if field.kind == "message":
        cls = field.cpp_type
        return [
            has,
            f"const {cls}& {name}() const {{ return internal::OrEmpty({field.name}_); }}",
            f"{cls}* mutable_{field.name}(Arena& arena) {{",
            f"  return reinterpret_cast<{cls}*>(MutableMessage(arena, kInfo, *this, {row}));",
            "}",
            clear,
        ]
    if field.type in ("string", "bytes"):
        return [
            has,
            f"std::string_view {name}() const {{ return {field.name}_.view(); }}",
            f"void set_{field.name}(Arena& arena, std::string_view value) {{",
            f"  Select(arena, kInfo, *this, {row});",
            f"  {field.name}_.Set(arena, value);",
            "}",
            f"void set_{field.name}(Arena& arena, SharedBytes value) {{",
            f"  Select(arena, kInfo, *this, {row});",
            f"  {field.name}_.SetShared(arena, std::move(value));",
            "}",
            clear,
        ]
    return [
        has,
        f"{cpp_type(field)} {name}() const {{ return {field.name}_; }}",
        f"void set_{field.name}(Arena& arena, {cpp_type(field)} value) {{",
        f"  Select(arena, kInfo, *this, {row});",
        f"  {field.name}_ = value;",
        "}",
        clear,
    ]


def repeated_accessors(field: Field, name: str, row: str, clear: str) -> list[str]:
    element = cpp_type(field)
    lines = [
        f"bool has_{field.name}() const {{ return !{name}().empty(); }}",
        f"std::span<{element.replace('*', '* const') if '*' in element else 'const ' + element}> "
        f"{name}() const {{ return internal::View({field.name}_); }}",
        f"Repeated<{element}>& mutable_{field.name}(Arena& arena) {{",
        f"  return static_cast<Repeated<{element}>&>(*MutableRepeated(arena, *this, {row}));",
        "}",
    ]
    if field.kind == "message":
        cls = field.cpp_type
        lines += [
            f"{cls}* add_{field.name}(Arena& arena) {{",
            f"  return reinterpret_cast<{cls}*>(",
            f"      AddMessage(arena, *{row}.message, mutable_{field.name}(arena)));",
            "}",
        ]
    elif field.type in ("string", "bytes"):
        lines += [
            f"void add_{field.name}(Arena& arena, std::string_view value) {{",
            f"  internal::AppendString(arena, mutable_{field.name}(arena), value);",
            "}",
        ]
    else:
        lines += [
            f"void add_{field.name}(Arena& arena, {element} value) {{",
            f"  internal::Append(arena, mutable_{field.name}(arena), value);",
            "}",
        ]
    return [*lines, clear]


def struct_declaration(message: Message) -> list[str]:
    lines = ["", *comment(message.doc), f"struct {message.cpp_name} : Message {{"]
    lines.append("  static ONNX_LIGHT_EXPORT const MessageInfo kInfo;")
    for nested in message.messages:
        lines.append(f"  using {nested.name} = {nested.cpp_name};")
    for enum in message.enums:
        lines += ["", *enum_declaration(enum, 2)]
    for index, field in enumerate(by_number(message)):
        lines += ["", *comment(field.doc, 2)]
        lines += ["  " + line.replace("{index}", str(index)) for line in accessors(field)]
    lines.append("")
    for field in by_number(message):
        lines.append(f"  {member_type(field)} {field.name}_;")
    return [*lines, "};"]


def header(schema: Schema) -> str:
    lines = [HEADER]
    lines += [f"struct {message.cpp_name};" for message in schema.all_messages()]
    for enum in schema.enums:
        lines += ["", *enum_declaration(enum, 0)]
    for message in schema.all_messages():
        lines += struct_declaration(message)
    return "\n".join([*lines, "", "}  // namespace onnx_light", ""])


def enum_table(enum: Enum) -> list[str]:
    values = "".join(f"\n    {{{value.number}, {literal(value.name)}}}," for value in enum.values)
    known = sum(1 << value.number for value in enum.values)
    return [
        f"constexpr EnumValueInfo k{enum.cpp_name}Values[] = {{{values}}};",
        f"constexpr EnumInfo k{enum.cpp_name}Enum = {{",
        f"    {literal(enum.name)}, {literal(enum.full_name)}, {literal(enum.doc)},",
        f"    k{enum.cpp_name}Values, {known:#x}}};",
        "",
    ]


def wire_type(field: Field) -> int:
    if field.packed or field.kind == "message" or field.type in ("string", "bytes"):
        return 2
    return FIXED.get(field.type, 0)


def field_row(message: Message, field: Field) -> str:
    kind = "Enum" if field.kind == "enum" else "Message" if field.kind == "message" else None
    kind = kind or field.type.capitalize()
    oneof = "kNoOneof" if field.oneof is None else str(message.oneofs.index(field.oneof))
    info = f"&{field.cpp_type}::kInfo" if field.kind == "message" else "nullptr"
    enum = f"&k{field.cpp_type.replace('::', '_')}Enum" if field.kind == "enum" else "nullptr"
    index = by_number(message).index(field)
    return (
        f"    MakeField<decltype({message.cpp_name}::{field.name}_)>("
        f"{field.number << 3 | wire_type(field)}, Kind::k{kind}, {str(field.repeated).lower()}, "
        f"{str(field.packed).lower()}, offsetof({message.cpp_name}, {field.name}_), {index}, "
        f"{oneof}, {info}, {enum}, {literal(field.name)}, {literal(field.doc)}),"
    )


def message_table(message: Message) -> list[str]:
    name, fields = message.cpp_name, by_number(message)
    if any(field.kind == "enum" and field.repeated for field in fields):
        raise ValueError(f"{name}: repeated enums are not supported by the reader")
    oneofs = []
    for oneof in message.oneofs:
        mask = sum(1 << i for i, field in enumerate(fields) if field.oneof == oneof)
        oneofs.append(f"{{{literal(oneof)}, {mask:#x}}}")
    names = [field.name for field in fields]
    payload = [
        str(names.index(part)) if set(PAYLOAD_FIELDS) <= set(names) else "MessageInfo::kNoField"
        for part in PAYLOAD_FIELDS
    ]
    lines = [f"constexpr FieldInfo k{name}Fields[] = {{", *(field_row(message, f) for f in fields)]
    lines += ["};", f"static_assert(ValidTable<{name}>(k{name}Fields));"]
    oneof_span = "{}"
    if oneofs:
        lines.append(f"constexpr OneofInfo k{name}Oneofs[] = {{{', '.join(oneofs)}}};")
        oneof_span = f"k{name}Oneofs"
    lines += [
        f"constinit const MessageInfo {name}::kInfo = MakeMessage<k{name}Fields, {payload[0]}>(",
        f"    {literal(message.name)}, {literal(message.full_name)}, {literal(message.doc)},",
        f"    {oneof_span}, sizeof({name}), {', '.join(payload[1:])});",
        "",
    ]
    return lines


def source(schema: Schema) -> str:
    lines = [SOURCE, "namespace {", ""]
    for enum in schema.all_enums():
        lines += enum_table(enum)
    lines += ["}  // namespace", ""]
    for message in schema.all_messages():
        lines += message_table(message)
    messages = "".join(f"\n    &{m.cpp_name}::kInfo," for m in schema.all_messages())
    enums = "".join(f"\n    &k{enum.cpp_name}Enum," for enum in schema.all_enums())
    lines += [
        f"static constexpr const MessageInfo* kAllMessages[] = {{{messages}}};",
        f"static constexpr const EnumInfo* kAllEnums[] = {{{enums}}};",
        "std::span<const MessageInfo* const> AllMessages() { return kAllMessages; }",
        "std::span<const EnumInfo* const> AllEnums() { return kAllEnums; }",
        "",
    ]
    return "\n".join([*lines, "}  // namespace onnx_light", ""])


def write(path: Path, text: str) -> None:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes C++ code from the schema.")
    parser.add_argument("--schema", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder, made if needed")
    arguments = parser.parse_args()
    schema = message_schema.load(arguments.schema)
    write(arguments.output / "onnx_light" / "messages.h", header(schema))
    write(arguments.output / "onnx" / "messages.cc", source(schema))


if __name__ == "__main__":
    main()
