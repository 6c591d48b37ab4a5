"""A snapshot file as people look at it: model, tokens, layers, runs of equal pages."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from onnx_light import PagedCache, snapshot
from onnx_light.cli.output import describe, format_count, format_size, in_file, printable
from onnx_light.errors import CodedError

_TOKENS_SHOWN = 8
_OTHER_FILES = ("snapshot.kind", "snapshot.rewritten")


@dataclass
class Run:
    """Neighbouring pages of equal capacity and formats.

    Attributes:
        start, end: positions of the tokens.
        pages: their number.
        capacity: tokens that each has room for.
        key, value: formats.
        nbytes: of keys and values.
    """

    start: int
    end: int
    pages: int
    capacity: int
    key: str
    value: str
    nbytes: int


@dataclass
class Layer:
    """One cache; `problem` says why it cannot be read, and then there is no more than the name."""

    name: str
    start: int = 0
    end: int = 0
    batch: int = 0
    heads: int = 0
    key_width: int = 0
    value_width: int = 0
    nbytes: int = 0
    runs: list[Run] = field(default_factory=list)
    problem: str = ""


@dataclass
class SnapshotInspection:
    """A file and what is in it.

    Attributes:
        file: its path, or ``-``.
        nbytes, payload_bytes: of the file, and of the keys and values in it.
        records: in the file.
        start, end: positions that the caches keep.
        tokens: the shape of the ids and the first few; None if the file has none.
        identity: the fields of the model's identity that say something.
        metadata: the user's entries.
        layers: the caches in order; `hidden` more are not shown.
        damaged: whether a layer shown or the ids cannot be read.
    """

    file: str
    nbytes: int
    payload_bytes: int
    records: int
    start: int
    end: int
    tokens: dict[str, Any] | None
    identity: dict[str, Any]
    metadata: dict[str, str]
    layers: list[Layer]
    hidden: int
    damaged: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect_snapshot(file: str, data: bytes | None, *, limit: int) -> SnapshotInspection | None:
    """Looks into a file; pages of the layers that are shown are verified.

    Args:
        file: its path.
        data: its bytes, if it is no file but what came from standard input.
        limit: layers to show; 0: all.

    Returns:
        None if it is something else than a snapshot.

    Raises:
        CodedError: it is a snapshot, but cannot be opened.
        OSError: the file cannot be read.
    """
    nbytes = os.stat(file).st_size if data is None else len(data)
    if nbytes == 0:
        return None  # an empty message
    try:
        opened = snapshot.open(file if data is None else data)
    except CodedError as error:
        if error.code in _OTHER_FILES or error.code == "file.not_regular":
            return None
        raise in_file(error, file) from None
    with opened:
        return _inspect(opened, file, nbytes, limit)


def _inspect(opened: snapshot.Snapshot, file: str, nbytes: int, limit: int) -> SnapshotInspection:
    names = list(opened.caches)
    shown = names[:limit] if limit else names
    layers = [_layer(opened, name) for name in shown]
    tokens = _tokens(opened)
    return SnapshotInspection(
        file,
        nbytes,
        opened.nbytes,
        opened.records,
        opened.start,
        opened.end,
        tokens,
        {name: value for name, value in asdict(opened.identity).items() if value},
        opened.metadata,
        layers,
        len(names) - len(shown),
        damaged=any(layer.problem for layer in layers) or bool(tokens and "problem" in tokens),
    )


def _tokens(opened: snapshot.Snapshot) -> dict[str, Any] | None:
    try:
        ids = opened.tokens
    except CodedError as error:
        return {"problem": describe(error)}
    if ids is None:
        return None
    return {"shape": list(ids.shape), "first": ids.reshape(-1)[:_TOKENS_SHOWN].tolist()}


def _layer(opened: snapshot.Snapshot, name: str) -> Layer:
    try:
        cache = opened[name]
    except CodedError as error:
        return Layer(name, problem=describe(error))
    return Layer(
        name,
        cache.start,
        cache.end,
        cache.batch,
        cache.heads,
        cache.key_width,
        cache.value_width,
        cache.nbytes,
        _runs(cache),
    )


def _runs(cache: PagedCache) -> list[Run]:
    runs = []
    pages = cache.pages

    def look(page: Any) -> tuple[int, str, str]:
        return page.capacity, str(page.key.format), str(page.value.format)

    for (capacity, key, value), group in groupby(pages, look):
        members = list(group)
        nbytes = sum(page.nbytes for page in members)
        first, last = members[0], members[-1]
        runs.append(Run(first.start, last.end, len(members), capacity, key, value, nbytes))
    return runs


def render(report: SnapshotInspection) -> Iterator[RenderableType]:
    """The tree and a summary line, for people."""
    title = Text.assemble((printable(report.file), "bold"), " ", ("snapshot", "dim"))
    title.append(f" positions [{report.start}, {report.end})")
    tree = Tree(title.append(f"  {format_size(report.nbytes)}", style="green"))
    _grow_texts(tree, "identity", report.identity)
    _grow_texts(tree, "metadata", report.metadata)
    tree.add(_token_line(report.tokens))
    layers = format_count(len(report.layers) + report.hidden, "layer")
    branch = tree.add(Text(layers, style="cyan"))
    for layer in report.layers:
        _grow_layer(branch, layer)
    if report.hidden:
        branch.add(Text(f"… {report.hidden} more", style="dim"))
    yield tree
    rest = report.nbytes - report.payload_bytes
    yield Text(
        f"{format_size(report.nbytes)} in {format_count(report.records, 'record')}: "
        f"{format_size(report.payload_bytes)} of keys and values, {format_size(rest)} of all else"
    )
    if report.damaged:
        yield Text("damaged: onnx-light verify shows all of it", style="bold red")


def _grow_texts(tree: Tree, name: str, texts: dict[str, Any]) -> None:
    if not texts:
        tree.add(Text.assemble((name, "cyan"), (" none", "dim")))
        return
    branch = tree.add(Text(name, style="cyan"))
    for key, value in texts.items():
        branch.add(Text.assemble((f"{printable(key)} ", "dim"), printable(str(value), 100)))


def _token_line(tokens: dict[str, Any] | None) -> Text:
    line = Text("tokens", style="cyan")
    if tokens is None:
        return line.append(" none", style="dim")
    if "problem" in tokens:
        return line.append(f" {tokens['problem']}", style="red")
    first = ", ".join(map(str, tokens["first"]))
    more = ", …" if math.prod(tokens["shape"]) > len(tokens["first"]) else ""
    return line.append(f" {tokens['shape']}: {first}{more}", style="default")


def _grow_layer(tree: Tree, layer: Layer) -> None:
    line = Text(printable(layer.name), style="cyan")
    if layer.problem:
        tree.add(line.append(f" {layer.problem}", style="red"))
        return
    line.append(f" [{layer.start}, {layer.end})", style="default")
    line.append(f" batch {layer.batch}, heads {layer.heads}, ", style="dim")
    widths = f"widths {layer.key_width} and {layer.value_width}"
    if layer.key_width == layer.value_width:
        widths = f"width {layer.key_width}"
    line.append(widths, style="dim")
    branch = tree.add(line.append(f"  {format_size(layer.nbytes)}", style="green"))
    for run in layer.runs:
        formats = run.key if run.key == run.value else f"key {run.key}, value {run.value}"
        pages = format_count(run.pages, "page")
        text = Text(f"[{run.start}, {run.end}) {pages} of {run.capacity}: {formats}")
        branch.add(text.append(f"  {format_size(run.nbytes)}", style="green"))
