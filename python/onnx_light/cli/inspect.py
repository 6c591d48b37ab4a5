"""The messages in a file as a tree with sizes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from onnx_light import onnx
from onnx_light.cli.output import describe, format_count, format_size, in_file, printable
from onnx_light.errors import CodedError
from onnx_light.onnx import external

_TEXT_LIMIT = 48
_LIST_LIMIT = 6


@dataclass
class Entry:
    """One message, or a list of messages.

    Attributes:
        label: the field it is, with its position in a list.
        kind: the class of the message.
        detail: what tells it from others: a name, a type, a shape.
        nbytes: serialized, all of a list together; without external data.
        count: of a list, its length; else None.
        children: what is in it and shown.
        hidden: how many elements or fields are not shown.
    """

    label: str
    kind: str
    detail: str
    nbytes: int
    count: int | None = None
    children: list[Entry] = field(default_factory=list)
    hidden: int = 0

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {"field": self.label, "type": self.kind, "bytes": self.nbytes}
        if self.count is not None:
            result["count"] = self.count
        if self.detail:
            result["detail"] = self.detail
        if self.children:
            result["children"] = [child.to_dict() for child in self.children]
        if self.hidden:
            result["hidden"] = self.hidden
        return result


@dataclass
class Inspection:
    """A file and what is in it.

    Attributes:
        file: its path, or ``-``.
        root: the message.
        payload_bytes: of tensors and encoded values, inside the file.
        external_bytes: of those in other files, as far as the references give a length.
        external_files: the locations that are referred to.
        note: what a user should know.
    """

    file: str
    root: Entry
    payload_bytes: int
    external_bytes: int
    external_files: list[str]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "bytes": self.root.nbytes,
            "payload_bytes": self.payload_bytes,
            "external_bytes": self.external_bytes,
            "external_files": self.external_files,
            "note": self.note,
            "message": self.root.to_dict(),
        }


def read_input(file: str) -> bytes | None:
    """The bytes of standard input if `file` is ``-``; None for a file, which can be mapped."""
    return sys.stdin.buffer.read() if file == "-" else None


def inspect_file(
    file: str, data: bytes | None, message_class: str, *, depth: int, limit: int
) -> Inspection:
    """Parses a message.

    Args:
        file: its path.
        data: its bytes, if it is no file but what came from standard input.

    Raises:
        CodedError: ``cli.message`` for a class that does not exist, a ParseError for other bytes.
        OSError: the file cannot be read.
    """
    message = _new_message(message_class)
    try:
        if data is not None:
            message.ParseFromString(data)
        else:
            message.ParseFromFile(file, onnx.ParseOptions(no_copy=True))
    except OSError as error:
        raise OSError(error.errno, error.strerror, file) from None
    except CodedError as error:
        if _is_gguf(file, data):
            raise CodedError(
                "cli.kind", file, "a GGUF file; snapshots and ONNX are shown"
            ) from None
        if isinstance(error, onnx.ParseError):
            words = f"{error.message}; this is no whole {message_class}"
            error = CodedError(error.code, error.path, words)
        raise in_file(error, file) from None
    return inspect_message(message, file, depth=depth, limit=limit)


def _is_gguf(file: str, data: bytes | None) -> bool:
    if data is not None:
        return data.startswith(b"GGUF")
    with open(file, "rb") as opened:
        return opened.read(4) == b"GGUF"


def inspect_message(message: onnx.Message, file: str, *, depth: int, limit: int) -> Inspection:
    """The tree of a message; `depth` levels, `limit` elements of each list (0: all)."""
    root = _entry(message, "", depth, limit)
    payloads = [payload.message for payload in onnx.walk.find_payloads(message)]
    references, note = [], ""
    for payload in payloads:
        if external.is_external(payload):
            try:
                references.append(external.reference(payload))
            except CodedError as error:
                note = f"external data that will be refused: {describe(error)}"
    if root.nbytes and not message.ListFields():
        note = f"no field of {root.kind} is in it: another class (--message)?"
    return Inspection(
        file,
        root,
        payload_bytes=sum(len(p.payload("raw_data")) for p in payloads),
        external_bytes=sum(reference.length or 0 for reference in references),
        external_files=sorted({reference.location for reference in references}),
        note=note,
    )


def render(report: Inspection) -> Iterator[RenderableType]:
    """The tree and a summary line, for people."""
    root = report.root
    tree = Tree(Text.assemble((printable(report.file), "bold"), " ", _line(root)))
    _grow(tree, root)
    yield tree
    rest = root.nbytes - report.payload_bytes
    line = f"{format_size(root.nbytes)}: {format_size(report.payload_bytes)} of raw payloads, "
    line += f"{format_size(rest)} of all else"
    if report.external_files:
        names = ", ".join(printable(name) for name in report.external_files[:_LIST_LIMIT])
        line += f"; {format_size(report.external_bytes)} more in {names}"
    yield Text(line)
    if report.note:
        yield Text(report.note, style="yellow")


def _new_message(name: str) -> onnx.Message:
    cls = getattr(onnx, name, None)
    if not (isinstance(cls, type) and issubclass(cls, onnx.Message) and cls is not onnx.Message):
        known = sorted(
            key
            for key, value in vars(onnx).items()
            if isinstance(value, type) and issubclass(value, onnx.Message) and key != "Message"
        )
        raise CodedError(
            "cli.message", "--message", f"no message {name!r}; there are {', '.join(known)}"
        )
    return cls()


def _entry(message: onnx.Message, label: str, depth: int, limit: int) -> Entry:
    entry = Entry(label, type(message).__name__, _detail(message), message.ByteSize())
    if isinstance(message, onnx.TensorProto):
        return entry
    parts = [
        (name, value)
        for name, value in message.ListFields()
        if isinstance(value, onnx.Message | onnx.RepeatedMessage)
    ]
    if depth == 0:
        entry.hidden = len(parts)
        return entry
    for name, value in parts:
        if isinstance(value, onnx.Message):
            entry.children.append(_entry(value, name, depth - 1, limit))
        else:
            entry.children.append(_list_entry(value, name, depth - 1, limit))
    return entry


def _list_entry(elements: Any, name: str, depth: int, limit: int) -> Entry:
    shown = len(elements) if limit == 0 else min(limit, len(elements))
    return Entry(
        name,
        type(elements[0]).__name__,
        "",
        sum(element.ByteSize() for element in elements),
        count=len(elements),
        children=[_entry(elements[i], f"{name}[{i}]", depth, limit) for i in range(shown)],
        hidden=len(elements) - shown,
    )


def _detail(message: onnx.Message) -> str:
    if isinstance(message, onnx.TensorProto):
        return _tensor_detail(message)
    if isinstance(message, onnx.NodeProto):
        return _node_detail(message)
    if isinstance(message, onnx.PagedCacheProto):
        tokens = sum(block.length for block in message.blocks)
        return _join(_quoted(message.name), format_count(tokens, "token"))
    if isinstance(message, onnx.PagedCacheBlockProto):
        return f"[{message.start}, {message.start + message.length})"
    parts = []
    for name, value in message.ListFields():
        if isinstance(value, str):
            text = f'"{printable(value, _TEXT_LIMIT)}"'
            parts.append(text if name == "name" else f"{name}={text}")
        elif isinstance(value, bytes):
            parts.append(f"{name}={format_size(len(value))}")
        elif isinstance(value, onnx.RepeatedScalar):
            parts.append(f"{name}={_listed(value)}")
        elif not isinstance(value, onnx.Message | onnx.RepeatedMessage):
            parts.append(f"{name}={value}")
    return _join(*parts)


def _tensor_detail(tensor: onnx.TensorProto) -> str:
    known = tensor.data_type in onnx.TensorProto.DataType.values()
    kind = onnx.TensorProto.DataType.Name(tensor.data_type) if known else str(tensor.data_type)
    place = ""
    if external.is_external(tensor):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        place = f"in {printable(entries.get('location', '?'), _TEXT_LIMIT)}"
        place += f" at {printable(entries.get('offset', '0'), _TEXT_LIMIT)}"
        if "length" in entries:
            place += f", {printable(entries['length'], _TEXT_LIMIT)} bytes"
    return _join(_quoted(tensor.name), kind, f"[{', '.join(map(str, tensor.dims))}]", place)


def _node_detail(node: onnx.NodeProto) -> str:
    domain = f"{printable(node.domain, _TEXT_LIMIT)}::" if node.domain else ""
    call = f"{domain}{printable(node.op_type, _TEXT_LIMIT)}{_listed(node.input)}"
    return _join(_quoted(node.name), f"{call} -> {_listed(node.output)}")


def _listed(values: Any) -> str:
    shown = [printable(str(value), _TEXT_LIMIT) for value in values[:_LIST_LIMIT]]
    more = [f"… {len(values)} in all"] if len(values) > _LIST_LIMIT else []
    return f"({', '.join(shown + more)})"


def _quoted(text: str) -> str:
    return f'"{printable(text, _TEXT_LIMIT)}"' if text else ""


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _line(entry: Entry) -> Text:
    count = f"{entry.count} x " if entry.count is not None else ""
    text = Text(entry.label, style="cyan")
    if entry.label:
        text.append(" ")
    text.append(f"{count}{entry.kind}", style="dim")
    if entry.detail:
        text.append(f" {entry.detail}", style="default")
    return text.append(f"  {format_size(entry.nbytes)}", style="green")


def _grow(tree: Tree, entry: Entry) -> None:
    for child in entry.children:
        _grow(tree.add(_line(child)), child)
    if entry.hidden:
        what = "more" if entry.children else "inside"
        tree.add(Text(f"… {entry.hidden} {what}", style="dim"))
