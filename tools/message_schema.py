"""Reads proto/messages.proto, the one description of every message, for the code generators.

    schema = load(path)
    for message in schema.all_messages():
        for field in message.fields: ...

Only the subset of proto2 which that file needs is understood: syntax, package, message, enum,
oneof, optional and repeated fields, `[packed = true]`, reserved and `//` comments. Anything else is
a SchemaError that names the line. The comment lines directly above a declaration are its `doc`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

INTEGER_TYPES = frozenset({"int32", "int64", "uint32", "uint64"})
SCALAR_DEFAULTS: dict[str, int | float | bool | str | bytes] = {
    **dict.fromkeys(sorted(INTEGER_TYPES), 0),
    "float": 0.0,
    "double": 0.0,
    "bool": False,
    "string": "",
    "bytes": b"",
}
MAX_FIELD_NUMBER = 2**29 - 1
PROTOBUF_OWN_NUMBERS = range(19000, 20000)


class SchemaError(ValueError):
    """The text is not a valid schema; the message begins with the line number."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


@dataclass(frozen=True)
class EnumValue:
    name: str
    number: int
    doc: str


@dataclass(frozen=True)
class Enum:
    """An enum; `full_name` is 'TensorProto.DataType', without the package."""

    name: str
    full_name: str
    doc: str
    values: tuple[EnumValue, ...]
    parent: str | None

    @property
    def cpp_name(self) -> str:
        return self.full_name.replace(".", "_")


@dataclass(frozen=True)
class Field:
    """A field; `type` is a scalar's name, or the full name of a message or enum.

    `kind` is 'scalar', 'message' or 'enum', `label` is 'optional' or 'repeated'; members of a oneof
    are optional. `default` is what an unset singular field reads as: an enum's first number, None
    for a message. `line` is where the field stands in the text.
    """

    name: str
    number: int
    label: str
    type: str
    kind: str
    packed: bool
    oneof: str | None
    default: int | float | bool | str | bytes | None
    doc: str
    line: int

    @property
    def repeated(self) -> bool:
        return self.label == "repeated"

    @property
    def cpp_type(self) -> str:
        """The C++ name of a message or enum type, the scalar's name otherwise."""
        return self.type.replace(".", "_")


@dataclass(frozen=True)
class Message:
    """A message; fields are in the order of their declaration, those of oneofs where they stand.

    `oneofs` and `oneof_docs` run in parallel; `parent` is the full name of the enclosing message.
    """

    name: str
    full_name: str
    doc: str
    fields: tuple[Field, ...]
    messages: tuple[Message, ...]
    enums: tuple[Enum, ...]
    oneofs: tuple[str, ...]
    oneof_docs: tuple[str, ...]
    parent: str | None

    @property
    def cpp_name(self) -> str:
        return self.full_name.replace(".", "_")

    def oneof_fields(self, oneof: str) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.oneof == oneof)

    def walk(self) -> Iterator[Message]:
        """This message, then those nested in it, each before its own nested ones."""
        yield self
        for message in self.messages:
            yield from message.walk()


@dataclass(frozen=True)
class Schema:
    """A whole file; `messages` and `enums` are those at its top level."""

    package: str
    messages: tuple[Message, ...]
    enums: tuple[Enum, ...]

    def all_messages(self) -> list[Message]:
        """Every message, nested ones after the one they lie in."""
        return [found for message in self.messages for found in message.walk()]

    def all_enums(self) -> list[Enum]:
        """Every enum: those of the top level, then those of each message of all_messages."""
        return [*self.enums, *(enum for message in self.all_messages() for enum in message.enums)]


@dataclass(frozen=True)
class _Token:
    text: str
    line: int
    doc: str


_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+)|(?P<newline>\n)|//(?P<comment>[^\n]*)|(?P<token>[A-Za-z_][\w.]*"
    r'|0[xX][0-9a-fA-F]+\b|\d+\b|"[^"\n]*"|[{}=;,\[\]])'
)


def _tokenize(text: str) -> Iterator[_Token]:
    """Tokens with the comment block that ends on the line above them; ends with an empty token."""
    line, position = 1, 0
    comments: list[str] = []
    line_is_empty = True
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise SchemaError(line, f"unexpected character {text[position]!r}")
        position = match.end()
        if match["newline"] is not None:
            if line_is_empty:
                comments = []
            line, line_is_empty = line + 1, True
        elif match["comment"] is not None:
            if line_is_empty:  # a comment after code on its line documents nothing
                comments.append(match["comment"].removeprefix(" ").rstrip())
                line_is_empty = False
        elif match["token"] is not None:
            yield _Token(match["token"], line, "\n".join(comments).strip())
            comments, line_is_empty = [], False
    yield _Token("", line, "")


class _Scope:
    """Names and numbers that are taken inside one message, enum or file."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.numbers: dict[int, int] = {}
        self.reserved_names: set[str] = set()
        self.reserved_numbers: list[range] = []

    def add_name(self, name: str, line: int) -> None:
        if name in self.names:
            raise SchemaError(line, f"'{name}' is already declared in line {self.names[name]}")
        self.names[name] = line

    def add_number(self, number: int, line: int) -> None:
        if number in self.numbers:
            raise SchemaError(
                line, f"number {number} is already used in line {self.numbers[number]}"
            )
        self.numbers[number] = line

    def check_reserved(self) -> None:
        for name, line in self.names.items():
            if name in self.reserved_names:
                raise SchemaError(line, f"'{name}' is reserved")
        for number, line in self.numbers.items():
            if any(number in numbers for numbers in self.reserved_numbers):
                raise SchemaError(line, f"number {number} is reserved")


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = _tokenize(text)
        self.token = next(self.tokens)

    # Tokens.

    def unexpected(self, expected: str) -> SchemaError:
        if not self.token.text:
            return SchemaError(self.token.line, "unexpected end of the text")
        return SchemaError(self.token.line, f"expected {expected}, found '{self.token.text}'")

    def next(self) -> _Token:
        token = self.token
        if not token.text:
            raise self.unexpected("more")
        self.token = next(self.tokens)
        return token

    def accept(self, text: str) -> bool:
        if self.token.text != text:
            return False
        self.next()
        return True

    def expect(self, text: str) -> _Token:
        token = self.next()
        if token.text != text:
            raise SchemaError(token.line, f"expected '{text}', found '{token.text}'")
        return token

    def name(self) -> str:
        token = self.next()
        if not re.fullmatch(r"[A-Za-z_]\w*", token.text):
            raise SchemaError(token.line, f"expected a name, found '{token.text}'")
        return token.text

    def type_name(self) -> str:
        token = self.next()
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", token.text):
            raise SchemaError(token.line, f"expected a type, found '{token.text}'")
        return token.text

    def string(self) -> str:
        token = self.next()
        if not token.text.startswith('"'):
            raise SchemaError(token.line, f"expected a quoted text, found '{token.text}'")
        return token.text[1:-1]

    def number(self) -> int:
        token = self.next()
        if not token.text[0].isdigit():
            raise SchemaError(token.line, f"expected a number, found '{token.text}'")
        if len(token.text) > 1 and token.text[0] == "0" and token.text[1] not in "xX":
            raise SchemaError(token.line, f"octal number '{token.text}'")
        return int(token.text, 0)

    # Declarations.

    def file(self) -> Schema:
        self.expect("syntax")
        self.expect("=")
        line = self.token.line
        if self.string() != "proto2":
            raise SchemaError(line, "only syntax proto2 is understood")
        self.expect(";")
        self.expect("package")
        package = self.type_name()
        self.expect(";")
        scope = _Scope()
        messages: list[Message] = []
        enums: list[Enum] = []
        while self.token.text:
            if self.token.text == "message":
                messages.append(self.message(scope, None))
            elif self.token.text == "enum":
                enums.append(self.enum(scope, None))
            elif not self.accept(";"):
                raise self.unexpected("a message or enum")
        return _resolve(Schema(package, tuple(messages), tuple(enums)))

    def message(self, outer: _Scope, parent: str | None) -> Message:
        start = self.expect("message")
        name = self.name()
        outer.add_name(name, start.line)
        full_name = f"{parent}.{name}" if parent else name
        scope = _Scope()
        fields: list[Field] = []
        messages: list[Message] = []
        enums: list[Enum] = []
        oneofs: dict[str, str] = {}
        self.expect("{")
        while not self.accept("}"):
            keyword = self.token.text
            if keyword == "message":
                messages.append(self.message(scope, full_name))
            elif keyword == "enum":
                enums.append(self.enum(scope, full_name))
            elif keyword == "oneof":
                oneof, doc, members = self.oneof(scope)
                oneofs[oneof] = doc
                fields += members
            elif keyword == "reserved":
                self.reserved(scope)
            elif keyword in ("optional", "repeated"):
                fields.append(self.field(scope, None))
            elif not self.accept(";"):
                raise self.unexpected(f"a declaration in message {full_name}")
        scope.check_reserved()
        return Message(
            name=name,
            full_name=full_name,
            doc=start.doc,
            fields=tuple(fields),
            messages=tuple(messages),
            enums=tuple(enums),
            oneofs=tuple(oneofs),
            oneof_docs=tuple(oneofs.values()),
            parent=parent,
        )

    def oneof(self, scope: _Scope) -> tuple[str, str, list[Field]]:
        start = self.expect("oneof")
        name = self.name()
        scope.add_name(name, start.line)
        self.expect("{")
        fields: list[Field] = []
        while not self.accept("}"):
            fields.append(self.field(scope, name))
        if not fields:
            raise SchemaError(start.line, f"oneof '{name}' has no members")
        return name, start.doc, fields

    def field(self, scope: _Scope, oneof: str | None) -> Field:
        start = self.token
        if start.text in ("optional", "repeated", "required") and oneof is not None:
            raise SchemaError(start.line, f"a member of a oneof has no label, found '{start.text}'")
        label = self.next().text if oneof is None else "optional"
        type_name = self.type_name()
        name = self.name()
        self.expect("=")
        number = self.number()
        if not 1 <= number <= MAX_FIELD_NUMBER or number in PROTOBUF_OWN_NUMBERS:
            raise SchemaError(start.line, f"field number {number} of '{name}' is out of range")
        packed = self.packed_option(label, type_name)
        self.expect(";")
        scope.add_name(name, start.line)
        scope.add_number(number, start.line)
        return Field(name, number, label, type_name, "", packed, oneof, None, start.doc, start.line)

    def packed_option(self, label: str, type_name: str) -> bool:
        if self.token.text != "[":
            return False
        line = self.next().line
        if (option := self.name()) != "packed":
            raise SchemaError(line, f"unknown option '{option}'")
        self.expect("=")
        value = self.name()
        self.expect("]")
        if value not in ("true", "false"):
            raise SchemaError(line, f"packed is true or false, found '{value}'")
        numeric = type_name in SCALAR_DEFAULTS and type_name not in ("string", "bytes")
        if label != "repeated" or not numeric:
            raise SchemaError(line, "packed is for repeated numbers only")
        return value == "true"

    def reserved(self, scope: _Scope) -> None:
        self.expect("reserved")
        while True:
            if self.token.text.startswith('"'):
                scope.reserved_names.add(self.string())
            else:
                first = self.number()
                last = self.number() if self.accept("to") else first
                scope.reserved_numbers.append(range(first, last + 1))
            if not self.accept(","):
                break
        self.expect(";")

    def enum(self, outer: _Scope, parent: str | None) -> Enum:
        start = self.expect("enum")
        name = self.name()
        outer.add_name(name, start.line)
        self.expect("{")
        numbers = _Scope()
        values: list[EnumValue] = []
        while not self.accept("}"):
            value = self.token
            value_name = self.name()
            self.expect("=")
            number = self.number()
            self.expect(";")
            if number > 2**31 - 1:
                raise SchemaError(value.line, f"enum number {number} is above 32 bits")
            outer.add_name(value_name, value.line)  # as in C++, a value is a name beside its enum
            numbers.add_number(number, value.line)
            values.append(EnumValue(value_name, number, value.doc))
        if not values:
            raise SchemaError(start.line, f"enum '{name}' has no values")
        full_name = f"{parent}.{name}" if parent else name
        return Enum(name, full_name, start.doc, tuple(values), parent)


def _resolve(schema: Schema) -> Schema:
    """Replaces the type names of fields by full names, found from the innermost scope outwards."""
    message_names = {message.full_name for message in schema.all_messages()}
    enums = {enum.full_name: enum for enum in schema.all_enums()}

    def resolve_field(field: Field, scope: str) -> Field:
        if field.type in SCALAR_DEFAULTS:
            return replace(field, kind="scalar", default=SCALAR_DEFAULTS[field.type])
        while True:
            full_name = f"{scope}.{field.type}" if scope else field.type
            if full_name in message_names:
                return replace(field, kind="message", type=full_name)
            if full_name in enums:
                default = enums[full_name].values[0].number
                return replace(field, kind="enum", type=full_name, default=default)
            if not scope:
                raise SchemaError(field.line, f"unknown type '{field.type}' of '{field.name}'")
            scope = scope.rpartition(".")[0]

    def resolve_message(message: Message) -> Message:
        return replace(
            message,
            fields=tuple(resolve_field(field, message.full_name) for field in message.fields),
            messages=tuple(resolve_message(nested) for nested in message.messages),
        )

    return replace(schema, messages=tuple(resolve_message(m) for m in schema.messages))


def parse(text: str) -> Schema:
    """The schema that `text` describes; SchemaError names the line of the first mistake."""
    return _Parser(text).file()


def load(path: Path | None = None) -> Schema:
    """The schema of the file at `path`, by default the project's proto/messages.proto."""
    if path is None:
        path = Path(__file__).resolve().parent.parent / "proto" / "messages.proto"
    return parse(path.read_text(encoding="utf-8"))
