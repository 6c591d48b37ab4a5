"""Makes the type stub of the extension module, _onnxpyprotoop.pyi, from the message schema.

    python tools/generate_stub.py --output build/_onnxpyprotoop.pyi

COMMON and MESSAGE_LIST are written by hand: what all messages share, the containers, the options.
The classes of the messages follow from the schema; their docs are the schema's comments.
"""

from __future__ import annotations

import argparse
import keyword
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

import message_schema
from message_schema import Enum, Field, Message, Schema

WIDTH = 100

COMMON = '''\
"""The messages of ONNX and of paged caches, with the Python interface of protobuf.

Generated from proto/messages.proto; do not edit.
"""

import enum
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from typing import Any, ClassVar, Final, Literal, Protocol, SupportsFloat, SupportsIndex
from typing import TypedDict, TypeVar, final
from typing import overload as _overload  # `overload` is a field of NodeProto

import numpy.typing as _numpy
from typing_extensions import Buffer, Self, Unpack

_Path = str | os.PathLike[str]
_Element = TypeVar("_Element")
_AnyMessage = TypeVar("_AnyMessage", bound=Message)

class _Array(Protocol):
    # numpy declares the buffer protocol from Python 3.12 on only.
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

_Bytes = Buffer | _Array

class _Output(Protocol):
    def write(self, data: Buffer, /) -> object: ...

class ParseError(ValueError):
    """The input is not a well-formed message; the text names the byte and the field."""

    code: str
    """Stable name of the kind of error, such as `wire.truncated`."""
    path: str
    """Where in the message: `graph.node[3].attribute[0].ints`, or empty."""
    offset: int
    """First byte of the input that does not belong to a well-formed message."""

DecodeError = ParseError

class FileLoadMode(enum.Enum):
    """How ParseFromFile reads a file."""

    AUTO = 0
    """Mapped where that pays, read otherwise."""
    MMAP = 1
    """Mapped into memory; payloads are borrowed from the mapping."""
    STREAM = 2
    """Read into memory."""

class TensorBufferOptions:
    """What parsing and serializing treat as a big payload, and how they place it."""

    raw_data_threshold: int
    """Payloads of at least this many bytes are big."""
    alignment: int
    """Big payloads begin at multiples of this many bytes: a power of two; 0 or 1 is off."""
    def __init__(self, *, raw_data_threshold: int = 64, alignment: int = 0) -> None: ...

class ParseOptions(TensorBufferOptions):
    """How a message is parsed."""

    skip_raw_data: bool
    """Leaves big payloads out."""
    num_threads: int
    """1 is serial, n that many threads, below 0 all cores."""
    no_copy: bool
    """Borrows payloads from a read-only buffer or mapping, which stays alive as long as needed."""
    max_recursion_depth: int
    """Deepest nesting of messages that is accepted."""
    max_tensor_size_bytes: int
    """Largest payload that is accepted, in bytes; 0 is no limit."""
    tiny_external_data_threshold: int
    """External payloads of fewer bytes become inline while a file is parsed; below 0 none do."""
    file_load_mode: FileLoadMode
    """How a file is read."""
    trusted_links: bool
    """Accepts external data files that have several hard links."""
    def __init__(
        self,
        *,
        raw_data_threshold: int = 64,
        alignment: int = 0,
        skip_raw_data: bool = False,
        num_threads: int = 1,
        no_copy: bool = False,
        max_recursion_depth: int = 100,
        max_tensor_size_bytes: int = 0,
        tiny_external_data_threshold: int = -1,
        file_load_mode: FileLoadMode = ...,
        trusted_links: bool = False,
    ) -> None: ...

class SerializeOptions(TensorBufferOptions):
    """How a message is serialized."""

    skip_raw_data: bool
    """Leaves big payloads out."""
    num_threads: int
    """1 is serial, n that many threads, below 0 all cores."""
    use_external_data_location: bool
    """Payloads that are external already keep their place."""
    max_serialized_size_bytes: int
    """A longer message is a ValueError before a byte is written; 0 is no limit."""
    max_external_file_size: int
    """External data go on in a further file (`.1`, `.2`, ...) beyond this; 0 is one file."""
    def __init__(
        self,
        *,
        raw_data_threshold: int = 64,
        alignment: int = 0,
        skip_raw_data: bool = False,
        num_threads: int = 1,
        use_external_data_location: bool = True,
        max_serialized_size_bytes: int = 0,
        max_external_file_size: int = 0,
    ) -> None: ...

class SerializeSizeResult:
    """Sizes in bytes of what serializing would write."""

    small_data_size: int
    """Payloads below the threshold."""
    big_data_size: int
    """Payloads of at least the threshold."""
    proto_size: int
    """All the rest."""
    def __init__(
        self, small_data_size: int = 0, big_data_size: int = 0, proto_size: int = 0
    ) -> None: ...
    def size(self) -> int:
        """The sum of the three."""
    def __add__(self, other: SerializeSizeResult, /) -> SerializeSizeResult: ...
    def __eq__(self, other: object, /) -> bool: ...

class _MessageFile:
    """The file of a message in two steps, for callers who commit it together with others."""

    def __init__(self, message: Message, path: bytes) -> None: ...
    def prepare(self) -> None:
        """Writes the file beside its target. At most once."""

def _commit_files(files: list[tuple[int, bytes, bytes]], message: _MessageFile | None) -> None:
    """Renames files (folder, temporary name, name), and then a prepared message's."""
def _load_external_data(message: Message, folder: bytes) -> None:
    """Makes all external payloads inline. Other threads must not have the message."""

class EnumTypeWrapper:
    """An enum: names and numbers of its values, in the order of their declaration."""

    def Name(self, number: int) -> str:
        """The name of a number; ValueError where there is none."""
    def Value(self, name: str) -> int:
        """The number of a name; ValueError where there is none."""
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...
    def items(self) -> list[tuple[str, int]]: ...

@final
class RepeatedScalar(MutableSequence[_Element]):
    """The elements of a repeated scalar field: a list that checks types and ranges."""

    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __array__(
        self, dtype: _numpy.DTypeLike | None = None, copy: bool | None = None
    ) -> _numpy.NDArray[Any]:
        """A new array of the elements: numbers of the field's type, text as str or bytes."""
    def MergeFrom(self, other: Iterable[_Element], /) -> None: ...
    @_overload
    def __getitem__(self, index: SupportsIndex, /) -> _Element: ...
    @_overload
    def __getitem__(self, index: slice, /) -> list[_Element]: ...
    @_overload
    def __setitem__(self, index: SupportsIndex, value: _Element, /) -> None: ...
    @_overload
    def __setitem__(self, index: slice, value: Iterable[_Element], /) -> None: ...
    def __delitem__(self, index: SupportsIndex | slice, /) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_Element]: ...
    def __contains__(self, value: object, /) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __deepcopy__(self, memo: dict[int, Any] | None = None, /) -> Self: ...
    def append(self, value: _Element, /) -> None: ...
    def extend(self, values: Iterable[_Element], /) -> None: ...
    def insert(
        self, index: SupportsIndex, value: _Element, /
    ) -> None: ...
    def pop(self, index: SupportsIndex = -1, /) -> _Element: ...
    def remove(self, value: _Element, /) -> None: ...
    def clear(self) -> None: ...
    def reverse(self) -> None: ...
    def sort(
        self, *, key: Callable[[_Element], Any] | None = None, reverse: bool = False
    ) -> None: ...

class Message:
    """What every message class has. Names of fields are given as text; an unknown one is an error.

    Wrong types are a TypeError, numbers out of range and unknown names a ValueError.
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def ByteSize(self) -> int:
        """The length of SerializeToString() in bytes."""
    def Clear(self) -> None:
        """Unsets every field, and drops unknown ones."""
    def ClearField(self, name: str, /) -> None:
        """Unsets a field, or whatever member of a oneof is set."""
    def CopyFrom(self, other: Self, /) -> None:
        """Becomes equal to `other`, which must be of the same class."""
    def MergeFrom(self, other: Self, /) -> None:
        """Takes over set scalars, merges messages, appends to repeated fields."""
    def HasField(self, name: str, /) -> bool:
        """Whether a singular field, or any member of a oneof, is set."""
    def WhichOneof(self, name: str, /) -> str | None:
        """The name of the member of a oneof that is set."""
    def ListFields(self) -> list[tuple[str, Any]]:
        """Name and value of every set field, in ascending field number."""
    def SetInParent(self) -> None:
        """Makes this message present in the one it is a field of, even if it stays empty."""
    def DiscardUnknownFields(self) -> None:
        """Drops unknown fields, also in messages below."""
    def IsInitialized(self) -> bool:
        """True: no field is required."""
    def ParseFromString(self, data: Buffer | str, options: ParseOptions | None = None) -> None:
        """Becomes the message that `data` holds; ParseError leaves this message as it was."""
    def MergeFromString(self, data: Buffer, /) -> int:
        """Merges the message that `data` holds and returns the number of bytes."""
    @classmethod
    def FromString(cls, data: Buffer | str, /) -> Self:
        """A new message from its serialized form."""
    def ParseFromFile(
        self, name: _Path, options: ParseOptions | None = None, external_data_file: _Path = ""
    ) -> None:
        """Becomes the message of a file; external payloads become inline from the second file."""
    def SerializeToString(self, options: SerializeOptions | None = None) -> bytes:
        """The serialized form: fields in ascending number, unknown fields last."""
    def SerializePartialToString(self, options: SerializeOptions | None = None) -> bytes:
        """The same as SerializeToString: no field is required."""
    def SerializeSize(self, options: SerializeOptions | None = None) -> SerializeSizeResult:
        """The sizes of what SerializeToString would make, without making it."""
    def SerializeToFile(
        self, name: _Path, options: SerializeOptions | None = None, external_data_file: _Path = ""
    ) -> None:
        """Writes a file whole or not at all; big payloads go to the second file where named."""
    def SerializeToFileDescriptor(self, fd: int, options: SerializeOptions | None = None) -> None:
        """Writes to an open file descriptor, which stays open."""
    def SerializeToOstream(self, output: _Output, /) -> None:
        """Calls output.write() with the pieces of the serialized form."""
    def SerializeToOStream(self, output: _Output, /) -> None:
        """The same as SerializeToOstream."""
    def payload(self, name: str, /) -> memoryview:
        """A read-only view of a bytes field, without a copy."""
    def to_onnx(self) -> Any:
        """The message of the onnx package with the same name and content."""
    @classmethod
    def from_onnx(cls, message: Any, /) -> Self:
        """A new message with the content of one of the onnx package."""
    def __eq__(self, other: object, /) -> bool: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: dict[int, Any] | None = None, /) -> Self: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
'''

# The end of the stub; what `add` takes follows, for each message that is in a list.
MESSAGE_LIST = '''\
@final
class RepeatedMessage(MutableSequence[_AnyMessage]):
    """The elements of a repeated message field: a list that copies what is put into it.

    An element that is held stays valid whatever happens to the list or to the message it is in.
    Assigning to an index is a TypeError: change the element, or remove and insert.
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]
    def MergeFrom(self, other: Iterable[_AnyMessage], /) -> None: ...
    @_overload
    def __getitem__(self, index: SupportsIndex, /) -> _AnyMessage: ...
    @_overload
    def __getitem__(self, index: slice, /) -> list[_AnyMessage]: ...
    __setitem__: None  # type: ignore[assignment]
    def __delitem__(self, index: SupportsIndex | slice, /) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_AnyMessage]: ...
    def __contains__(self, value: object, /) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __deepcopy__(self, memo: dict[int, Any] | None = None, /) -> Self: ...
    def append(self, value: _AnyMessage, /) -> _AnyMessage:  # type: ignore[override]
        """Adds a copy of a message at the end and returns it."""
    def extend(self, values: Iterable[_AnyMessage], /) -> None: ...
    def insert(
        self, index: SupportsIndex, value: _AnyMessage, /
    ) -> None: ...
    def pop(self, index: SupportsIndex = -1, /) -> _AnyMessage: ...
    def remove(self, value: _AnyMessage, /) -> None: ...
    def clear(self) -> None: ...
    def reverse(self) -> None: ...
    def sort(
        self, *, key: Callable[[_AnyMessage], Any] | None = None, reverse: bool = False
    ) -> None: ...
'''

_INTEGER_INPUT = "SupportsIndex"
_FLOAT_INPUT = "SupportsFloat | SupportsIndex"
# Scalar type: (Python type that is read, what may be written).
_SCALARS = {
    **dict.fromkeys(message_schema.INTEGER_TYPES, ("int", _INTEGER_INPUT)),
    "float": ("float", _FLOAT_INPUT),
    "double": ("float", _FLOAT_INPUT),
    "bool": ("bool", _INTEGER_INPUT),
    "string": ("str", "str | bytes"),
    "bytes": ("bytes", "_Bytes"),
}
# Names that annotations inside the classes of messages refer to; no field may hide them.
_USED_NAMES = frozenset(
    {"Any", "_Bytes", "Final", "Iterable", "Literal", "Mapping", "SupportsFloat", "SupportsIndex"}
    | {"Unpack", "bool", "bytes", "float", "int", "property", "str"}
)


def _python_type(field: Field) -> str:
    """What one value of the field reads as."""
    if field.kind == "message":
        return field.type
    return "int" if field.kind == "enum" else _SCALARS[field.type][0]


def _input_type(field: Field) -> str:
    """What may be assigned to one value of the field."""
    if field.kind == "message":
        return field.type
    return "int | str" if field.kind == "enum" else _SCALARS[field.type][1]


def _keyword_type(field: Field) -> str:
    """What the constructor takes for the field."""
    element = _input_type(field)
    if field.kind == "message":
        element += " | Mapping[str, Any]"
    return f"Iterable[{element}] | None" if field.repeated else f"{element} | None"


def _getter_type(field: Field) -> str:
    if not field.repeated:
        return _python_type(field)
    container = "RepeatedMessage" if field.kind == "message" else "RepeatedScalar"
    return f"{container}[{_python_type(field)}]"


def _wrap(line: str) -> str:
    """A class or def that is too long for one line, with its parameters on lines of their own."""
    match = re.fullmatch(r"( *)((?:class|def) \w+\()(.*)(\)[^)]*)", line)
    if len(line) <= WIDTH or match is None:
        return line
    indent, head, parameters, tail = match.groups()
    one_line = f"{indent}    {parameters}"
    if len(one_line) <= WIDTH:
        lines = [one_line]
    else:
        lines = [f"{indent}    {p}," for p in re.split(r", (?![^\[]*\])", parameters)]
    return "\n".join([indent + head, *lines, indent + tail])


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]


def _docstring(doc: str, depth: int) -> list[str]:
    """The lines of a docstring that stands `depth` levels deep, wrapped; none without a text."""
    if not doc:
        return []
    doc = doc.replace("\\", "\\\\").replace('"""', r"\"\"\"")
    width = WIDTH - 4 * depth - len('""""""')
    paragraphs = [textwrap.wrap(" ".join(p.split()), width) for p in doc.split("\n\n")]
    lines = [line for paragraph in paragraphs for line in [*paragraph, ""]][:-1]
    if len(lines) == 1 and not lines[0].endswith('"'):
        return [f'"""{lines[0]}"""']
    return [f'"""{lines[0]}', *lines[1:], '"""']


def _enum(enum: Enum, depth: int) -> list[str]:
    """The wrapper's class, the wrapper, and the values beside it."""
    wrapper = f"_{enum.name}"
    values = [f"{value.name}: Final = {value.number}" for value in enum.values]
    body: list[str] = []
    for value, line in zip(enum.values, values, strict=True):
        body += [line, *_docstring(value.doc, depth + 1)]
    return [
        f"class {wrapper}(EnumTypeWrapper):",
        *_indent([*_docstring(enum.doc, depth + 1), "", *body]),
        "",
        f"{enum.name}: Final[{wrapper}]",
        *_docstring(enum.doc, depth),
        *values,
    ]


def _field(field: Field, depth: int) -> list[str]:
    """The property of a field, its `has_` and `add_` methods and its number."""
    lines = [
        "@property",
        f"def {field.name}(self) -> {_getter_type(field)}:",
        *_indent(_docstring(field.doc, depth + 1) or ["..."]),
    ]
    if not field.repeated:
        lines.append(f"@{field.name}.setter")
        lines.append(f"def {field.name}(self, value: {_input_type(field)}) -> None: ...")
    lines.append(f"def has_{field.name}(self) -> bool: ...")
    if field.kind == "message":
        lines.append(f"def add_{field.name}(self) -> {field.type}: ...")
    lines.append(f"{field.name.upper()}_FIELD_NUMBER: Final = {field.number}")
    return lines


def _which_oneof(message: Message) -> list[str]:
    """WhichOneof with the names of this message's oneofs and their members."""
    lines: list[str] = []
    for oneof in message.oneofs:
        members = ", ".join(f'"{field.name}"' for field in message.oneof_fields(oneof))
        lines.append("@_overload")
        lines.append(
            f'def WhichOneof(self, name: Literal["{oneof}"], /) -> Literal[{members}] | None: ...'
        )
    if lines:
        lines.append("@_overload")
        lines.append("def WhichOneof(self, name: str, /) -> str | None: ...")
    return lines


def _message(message: Message, depth: int = 0) -> list[str]:
    """The class of a message with everything nested in it."""
    body = [*_docstring(message.doc, depth + 1), ""]
    for enum in message.enums:
        body += [*_enum(enum, depth + 1), ""]
    for nested in message.messages:
        body += [*_message(nested, depth + 1), ""]
    fields = f"_{message.cpp_name}Fields"
    body.append(
        f"def __init__(self, message: {message.full_name} = ..., /, **fields: Unpack[{fields}])"
        " -> None: ..."
    )
    body += _which_oneof(message)
    for field in message.fields:
        body += _field(field, depth + 1)
    return ["@final", f"class {message.name}(Message):", *_indent(body)]


def _fields(message: Message) -> list[str]:
    """The keywords that the constructor of a message and `add` of its lists take."""
    lines = [f"{field.name}: {_keyword_type(field)}" for field in message.fields]
    return [f"class _{message.cpp_name}Fields(TypedDict, total=False):", *_indent(lines), ""]


def _add(message: Message) -> list[str]:
    """What `add` of a list of these messages takes."""
    return [
        "@_overload",
        f"def add(self: RepeatedMessage[{message.full_name}],"
        f" **fields: Unpack[_{message.cpp_name}Fields]) -> {message.full_name}:",
        '    """Appends a new element with these fields and returns it."""',
    ]


def _check_names(schema: Schema) -> None:
    """ValueError where a name of the schema cannot be one in Python or would hide a type."""
    for message in schema.all_messages():
        for name in [f.name for f in message.fields] + [m.name for m in message.messages]:
            if keyword.iskeyword(name) or name in _USED_NAMES:
                raise ValueError(f"{message.full_name}.{name} cannot be a Python attribute")


def stub(schema: Schema) -> str:
    """The text of _onnxpyprotoop.pyi."""
    _check_names(schema)
    messages = schema.all_messages()
    listed = {f.type for m in messages for f in m.fields if f.repeated and f.kind == "message"}
    lines: list[str] = [""]
    for enum in schema.enums:
        lines += [*_enum(enum, 0), ""]
    for message in messages:
        lines += _fields(message)
    for message in schema.messages:
        lines += [*_message(message), ""]
    lines += MESSAGE_LIST.splitlines()
    for message in messages:
        if message.full_name in listed:
            lines += _indent(_add(message))
    return COMMON + "\n".join(_wrap(line) for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the type stub of the extension module.")
    parser.add_argument("--schema", type=Path, help="default: the project's proto/messages.proto")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    text = stub(message_schema.load(arguments.schema))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
