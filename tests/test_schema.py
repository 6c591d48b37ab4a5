"""The message schema against protobuf's own compiler and the schema of the onnx package."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
)

import oracle

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import message_schema  # noqa: E402
from message_schema import SchemaError  # noqa: E402

HEAD = 'syntax = "proto2";\npackage p;\n'


@pytest.fixture(scope="module")
def schema() -> message_schema.Schema:
    return message_schema.load()


# The shape of a schema as plain data, made once from our parser and once from descriptors, so that
# equality covers names, numbers, order and every property, in both directions.


def our_enum(enum: message_schema.Enum) -> Any:
    return enum.full_name, [(value.name, value.number) for value in enum.values]


def our_message(message: message_schema.Message) -> Any:
    fields = [
        (f.name, f.number, f.label, f.kind, f.type, f.packed, f.oneof) for f in message.fields
    ]
    return {
        "name": message.full_name,
        "fields": fields,
        "oneofs": list(message.oneofs),
        "enums": [our_enum(enum) for enum in message.enums],
        "messages": [our_message(nested) for nested in message.messages],
    }


def their_enum(enum: EnumDescriptorProto, prefix: str) -> Any:
    return prefix + enum.name, [(value.name, value.number) for value in enum.value]


def their_field(field: FieldDescriptorProto, message: DescriptorProto, package: str) -> Any:
    label = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    type_name = kind
    if kind in ("message", "enum"):
        type_name = field.type_name.removeprefix(f".{package}.")
    else:
        kind = "scalar"
    oneof = None
    if field.HasField("oneof_index"):
        oneof = message.oneof_decl[field.oneof_index].name
    assert not field.HasField("default_value")
    return field.name, field.number, label, kind, type_name, field.options.packed, oneof


def their_message(message: DescriptorProto, package: str, prefix: str = "") -> Any:
    name = prefix + message.name
    return {
        "name": name,
        "fields": [their_field(field, message, package) for field in message.field],
        "oneofs": [oneof.name for oneof in message.oneof_decl],
        "enums": [their_enum(enum, f"{name}.") for enum in message.enum_type],
        "messages": [their_message(nested, package, f"{name}.") for nested in message.nested_type],
    }


def by_line_of_messages(shape: Any) -> list[Any]:
    """A flat list with one entry per fact, for a readable difference."""
    facts = [(shape["name"], kind, fact) for kind in ("fields", "oneofs") for fact in shape[kind]]
    facts += [(shape["name"], "enums", enum) for enum in shape["enums"]]
    return facts + [fact for nested in shape["messages"] for fact in by_line_of_messages(nested)]


def test_every_fact_equals_the_oracle(schema: message_schema.Schema) -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(oracle.load().DESCRIPTOR.serialized_pb)
    ours = {message.name: our_message(message) for message in schema.messages}
    theirs = {message.name: their_message(message, file.package) for message in file.message_type}
    assert list(ours) == list(theirs)
    for name in ours:
        assert by_line_of_messages(ours[name]) == by_line_of_messages(theirs[name])
        assert ours[name] == theirs[name]
    assert [our_enum(e) for e in schema.enums] == [their_enum(e, "") for e in file.enum_type]


def test_protoc_reads_our_file_as_we_do(schema: message_schema.Schema, tmp_path: Path) -> None:
    target = tmp_path / "set"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={target}",
         "messages.proto"],
        cwd=ROOT / "proto", check=True, capture_output=True,
    )  # fmt: skip
    file = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file[0]
    assert file.package == schema.package == "onnx"
    assert [our_message(m) for m in schema.messages] == [
        their_message(m, "onnx") for m in file.message_type
    ]
    assert [our_enum(e) for e in schema.enums] == [their_enum(e, "") for e in file.enum_type]


def test_all_messages_and_enums(schema: message_schema.Schema) -> None:
    names = [message.full_name for message in schema.all_messages()]
    assert names == [name for name, _ in oracle.classes(oracle.load())]
    index = names.index("StructTypeProto.Structure")
    assert names[index + 1] == "StructTypeProto.Structure.Field"
    enums = [enum.full_name for enum in schema.all_enums()]
    assert enums[:2] == ["Version", "OperatorStatus"]
    assert len(enums) == len(set(enums))
    assert "TensorProto.DataLocation" in enums


def test_data_types_equal_those_of_onnx(schema: message_schema.Schema) -> None:
    import onnx

    enum = next(e for e in schema.all_enums() if e.full_name == "TensorProto.DataType")
    assert [(v.name, v.number) for v in enum.values] == onnx.TensorProto.DataType.items()


def test_everything_is_documented(schema: message_schema.Schema) -> None:
    for message in schema.all_messages():
        assert message.doc, message.full_name
        assert all(message.oneof_docs), message.full_name
        for field in message.fields:
            assert field.doc, f"{message.full_name}.{field.name}"
    for enum in schema.all_enums():
        assert enum.doc, enum.full_name
        for value in enum.values:
            assert value.doc, f"{enum.full_name}.{value.name}"


def test_defaults(schema: message_schema.Schema) -> None:
    defaults = {m.full_name: {f.name: f.default for f in m.fields} for m in schema.all_messages()}
    for name, cls in oracle.classes(oracle.load()):
        for field in cls.DESCRIPTOR.fields:
            if not field.is_repeated and field.message_type is None:
                ours = defaults[name][field.name]
                assert ours == field.default_value
                assert type(ours) is type(field.default_value)


def test_random_messages_use_every_field() -> None:
    rng = random.Random(7)
    for name, cls in oracle.classes(oracle.load()):
        unused = {field.name for field in cls.DESCRIPTOR.fields}
        for _ in range(1000):
            message = oracle.random_message(cls, rng, maxdepth=1)
            assert cls.FromString(message.SerializeToString()) == message
            unused -= {field.name for field, _ in message.ListFields()}
            if not unused:
                break
        assert not unused, name


# The parser itself.


def test_documentation_is_the_block_above() -> None:
    schema = message_schema.parse(
        HEAD
        + """
// Not attached: an empty line follows.

// First line
//   and second.
message M { // not this one
  // The choice.
  oneof choice {
    // The member.
    int32 a = 1; // nor this
    bytes b = 0x10;
  }
}
"""
    )
    (message,) = schema.messages
    assert message.doc == "First line\n  and second."
    assert (message.oneofs, message.oneof_docs) == (("choice",), ("The choice.",))
    assert [(f.name, f.number, f.doc) for f in message.fields] == [("a", 1, "The member."),
                                                                   ("b", 16, "")]  # fmt: skip


def test_types_are_found_from_the_inside_out() -> None:
    schema = message_schema.parse(
        HEAD
        + """
enum Kind { OUTER = 3; OTHER = 1; }
message A {
  message B { optional Kind x = 1; optional A y = 2; optional C.Kind z = 3; }
  enum Kind { INNER = 5; }
  optional Kind k = 1;
  repeated B b = 2;
}
message C { enum Kind { LAST = 0; } optional A.Kind k = 1; optional string s = 2; }
message D { optional Kind k = 1; }
"""
    )
    fields = {(m.cpp_name, f.name): f for m in schema.all_messages() for f in m.fields}
    assert {key: (f.type, f.kind, f.default) for key, f in fields.items()} == {
        ("A", "k"): ("A.Kind", "enum", 5),
        ("A", "b"): ("A.B", "message", None),
        ("A_B", "x"): ("A.Kind", "enum", 5),
        ("A_B", "y"): ("A", "message", None),
        ("A_B", "z"): ("C.Kind", "enum", 0),
        ("C", "k"): ("A.Kind", "enum", 5),
        ("C", "s"): ("string", "scalar", ""),
        ("D", "k"): ("Kind", "enum", 3),
    }
    assert fields["A", "b"].cpp_type == "A_B"
    assert [m.parent for m in schema.all_messages()] == [None, "A", None, None]


def test_packed_and_reserved() -> None:
    schema = message_schema.parse(
        HEAD
        + """message M {
  reserved 2, 4 to 6; reserved "x", "y";
  repeated int64 a = 1 [packed = true];
  repeated int64 b = 3 [packed = false];
  repeated int64 c = 7;
}"""
    )
    assert [f.packed for f in schema.messages[0].fields] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("message M { optional int32 a = 1 }", 3, "expected ';', found '}'"),
        ("message M {\n optional int32 a = 0;\n}", 4, "field number 0 of 'a' is out of range"),
        ("message M {\n optional int32 a = 536870912;\n}", 4, "out of range"),
        ("message M { optional int32 a = 19000; }", 3, "out of range"),
        ("message M { optional int32 a = 07; }", 3, "octal number '07'"),
        ("message M { optional int32 a = b; }", 3, "expected a number, found 'b'"),
        ("message M { optional int32 = 1; }", 3, "expected a name, found '='"),
        ("message M { required int32 a = 1; }", 3, "expected a declaration in message M"),
        ("message M {\n optional int32 a = 1;\n\n optional int32 a = 2; }", 6, "'a' is already"),
        ("message M {\n optional int32 a = 1;\n optional int32 b = 1; }", 5, "number 1 is already"),
        ("message M { reserved 1; optional int32 a = 1; }", 3, "number 1 is reserved"),
        ("message M { optional int32 a = 5; reserved 3 to 9; }", 3, "number 5 is reserved"),
        ('message M { reserved "a"; optional int32 a = 1; }', 3, "'a' is reserved"),
        ("message M {\n optional Q q = 1;\n}", 4, "unknown type 'Q' of 'q'"),
        ("message M { optional int32 a = 1 [deprecated = true]; }", 3, "unknown option"),
        ("message M { optional int32 a = 1 [packed = true]; }", 3, "repeated numbers only"),
        ("message M { repeated string a = 1 [packed = true]; }", 3, "repeated numbers only"),
        ("message M { repeated int32 a = 1 [packed = yes]; }", 3, "packed is true or false"),
        ("message M { oneof o { } }", 3, "oneof 'o' has no members"),
        ("message M { oneof o { optional int32 a = 1; } }", 3, "has no label, found 'optional'"),
        ("message M { oneof o { int32 a = 1; } optional int32 o = 2; }", 3, "'o' is already"),
        ("message M { }\nmessage M { }", 4, "'M' is already declared in line 3"),
        ("enum E { }", 3, "enum 'E' has no values"),
        ("enum E { A = 1; B = 1; }", 3, "number 1 is already used"),
        ("enum E { A = 1; }\nenum F { A = 1; }", 4, "'A' is already declared in line 3"),
        ("enum E { A = 2147483648; }", 3, "enum number 2147483648 is above 32 bits"),
        ("message M {\n", 4, "unexpected end of the text"),
        ("message M { optional int32 a = 1; } ?", 3, "unexpected character '?'"),
        ("option x = 1;", 3, "expected a message or enum, found 'option'"),
        ("message M { reserved x; }", 3, "expected a number, found 'x'"),
        ("message M { optional .x a = 1; }", 3, "unexpected character '.'"),
        ("message M { optional x. a = 1; }", 3, "expected a type, found 'x.'"),
        ("message M { optional int32 a = 1x; }", 3, "unexpected character '1'"),
    ],
)
def test_mistakes_name_their_line(text: str, line: int, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        message_schema.parse(HEAD + text)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"line {line}: ")
    assert message in str(caught.value)


def test_only_proto2() -> None:
    with pytest.raises(SchemaError, match="line 2: only syntax proto2 is understood"):
        message_schema.parse('\nsyntax = "proto3";\npackage p;')
    with pytest.raises(SchemaError, match="line 1: expected 'syntax', found 'package'"):
        message_schema.parse("package p;")
