"""Reads snapshot files by docs/snapshot_format.md alone, with protobuf, xxhash and numpy.

It shares no code with the library and trusts nothing: every rule of the page that a file can break
is an assertion. It goes through a file by its tags, where the library computes places.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import encoded_reader
import ml_dtypes
import numpy as np
import numpy.typing as npt
import xxhash

SCHEMA = Path(__file__).parents[2] / "proto" / "onnx_light.proto"
MAGIC = b"onnx_light.kvcache\r\n\x1a\n"
FORMATS: dict[str, tuple[int, npt.DTypeLike]] = {
    "float32": (1, np.float32),
    "float16": (10, np.float16),
    "bfloat16": (16, ml_dtypes.bfloat16),
    "float8_e4m3fn": (17, ml_dtypes.float8_e4m3fn),
    "float8_e5m2": (19, ml_dtypes.float8_e5m2),
}
LARGEST_RECORD = 1 << 30
HEAD, INDEX, FOOT, FILLER, CACHE = 1050, 1051, 1052, 1099, 1002


@functools.cache
def schema() -> ModuleType:
    """The classes of proto/onnx_light.proto."""
    with tempfile.TemporaryDirectory(prefix="schema-") as folder:
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{SCHEMA.parent}"]
            + [f"--python_out={folder}", SCHEMA.name],
            check=True,
        )
        spec = importlib.util.spec_from_file_location(
            "onnx_light_pb2", Path(folder) / "onnx_light_pb2.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def checksum(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data)


@dataclasses.dataclass
class Field:
    number: int
    wire_type: int
    begin: int  # of the tag
    content: int  # of the value, or of the bytes of a length-delimited field
    end: int
    length_size: int  # bytes of the length

    def bytes(self, data: bytes) -> bytes:
        return data[self.content : self.end]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes, at: int, end: int) -> list[Field]:
    found = []
    while at < end:
        begin = at
        tag, at = varint(data, at)
        wire_type, length_size = tag & 7, 0
        if wire_type == 0:
            content, (_, at) = at, varint(data, at)
        elif wire_type == 2:
            length_at = at
            length, content = varint(data, at)
            length_size, at = content - length_at, content + length
        else:
            assert wire_type in (1, 5)
            content, at = at, at + (8 if wire_type == 1 else 4)
        assert at <= end
        found.append(Field(tag >> 3, wire_type, begin, content, at, length_size))
    return found


def check_filler(data: bytes, field: Field) -> None:
    assert field.number == FILLER
    assert field.wire_type == 2
    assert 3 <= field.end - field.begin <= 66
    assert not any(field.bytes(data))


def split_filler(data: bytes, all_fields: list[Field]) -> list[Field]:
    """The fields that are no filler, after a check of those that are."""
    for field in all_fields:
        if field.number == FILLER:
            check_filler(data, field)
    return [field for field in all_fields if field.number != FILLER]


@dataclasses.dataclass
class Page:
    start: int
    key: npt.NDArray[Any]
    value: npt.NDArray[Any]

    @property
    def end(self) -> int:
        return self.start + self.key.shape[2]


@dataclasses.dataclass
class Cache:
    pages: list[Page]
    page_size: int = 0

    def arrays(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return (
            np.concatenate([page.key for page in self.pages], axis=2),
            np.concatenate([page.value for page in self.pages], axis=2),
        )


class RecordReader:
    """One record, all of whose bytes are looked at."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.rest = b""
        model = schema().ModelProto.FromString(data)
        self.head, self.index = model.snapshot_head, model.snapshot_index
        self.foot = model.snapshot_foot
        self.metadata = {entry.key: entry.value for entry in model.metadata_props}
        self.model = model
        self.extents = {extent.name: extent for extent in self.index.extents}
        assert len(self.extents) == len(self.index.extents)
        assert not self.index.required_features
        self.tokens: npt.NDArray[np.int64] | None = None
        self.caches: dict[str, list[Page]] = {}
        self._read_top()

    def _check_ends(self) -> None:
        data = self.data
        assert len(data) % 64 == 0
        assert len(data) <= LARGEST_RECORD
        assert data[:3] == b"\xd2\x41\x3d"
        assert self.head.magic == MAGIC
        assert self.head.version == 1
        assert self.head.byte_length == len(data)
        assert self.head.checksum == checksum(data[:56])
        assert data[-64:-61] == b"\xe2\x41\x3d"
        assert self.foot.magic == b"kvend"
        assert self.foot.byte_length == len(data)
        assert self.foot.checksum == checksum(data[-64:-8])

    def _check_extent(self, name: str, begin: int, end: int) -> None:
        extent = self.extents[name]
        assert (extent.offset, extent.offset + extent.length) == (begin, end)
        assert extent.checksum == checksum(self.data[begin:end])

    def _read_top(self) -> None:
        self._check_ends()
        top = fields(self.data, 0, len(self.data))
        numbers = [field.number for field in top]
        assert numbers[0] == HEAD
        assert numbers[-2:] == [INDEX, FOOT]
        at = numbers.index(7)
        graph, index, foot = top[at], top[-2], top[-1]
        self._check_extent("model", 64, graph.begin)
        assert set(numbers[1:at]) <= {1, 2, 8, 14, 1000}
        assert graph.length_size == 5
        self.rest += self.data[graph.begin : graph.content]
        self._read_graph(graph)
        for field in top[at + 1 : -2]:
            check_filler(self.data, field)
            self.rest += self.data[field.begin : field.end]
        assert index.end == foot.begin == len(self.data) - 64
        assert self.foot.index_length == index.end - index.begin
        assert self.foot.index_checksum == checksum(self.data[index.begin : index.end])
        assert self.foot.rest_checksum == checksum(self.rest)

    def _read_graph(self, graph: Field) -> None:
        inside = fields(self.data, graph.content, graph.end)
        at = next((i for i, field in enumerate(inside) if field.number in (5, CACHE)), len(inside))
        self._check_extent("catalogue", graph.content, inside[at - 1].end)
        if inside[at:] and inside[at].number == 5:
            self._read_tokens(inside[at])
            at += 1
        else:
            assert "tokens" not in self.extents
        assert [field.number for field in inside[at:]] == [CACHE] * len(self.index.caches)
        for field, entry in zip(inside[at:], self.index.caches, strict=True):
            self._read_cache(field, entry)

    def _read_tokens(self, field: Field) -> None:
        self._check_extent("tokens", field.begin, field.end)
        (tensor,) = self.model.graph.initializer
        assert tensor.name == "onnx_light.tokens"
        assert tensor.data_type == 7
        raw = split_filler(self.data, fields(self.data, field.content, field.end))[-1]
        assert raw.number == 9
        assert raw.content % 64 == 0
        self.tokens = np.frombuffer(tensor.raw_data, "<i8").reshape(tensor.dims)
        assert self.tokens.shape[-1] == self.foot.tokens_after - self.head.tokens_before

    def _read_cache(self, field: Field, entry: Any) -> None:
        assert field.length_size == 5
        inside = fields(self.data, field.content, field.end)
        blocks = [inner for inner in inside if inner.number == 1]
        named, *filler = inside[: len(inside) - len(blocks)]
        assert named.number == 2
        assert named.bytes(self.data).decode() == entry.name
        for inner in filler:
            check_filler(self.data, inner)
        first = blocks[0].begin if blocks else field.end
        assert first % 64 == 0
        self.rest += self.data[field.begin : first]
        places = [
            (run, i, run.start + i * run.length, run.offset + i * run.stride)
            for run in entry.runs
            for i in range(run.count)
        ]
        assert len(places) == len(blocks) == len(entry.page_checksums)
        pages = self.caches.setdefault(entry.name, [])
        if not blocks:
            shape = [entry.batch, entry.heads, entry.key_width, entry.value_width]
            assert shape == [0] * 4
        for block, place, expected in zip(blocks, places, entry.page_checksums, strict=True):
            run, _, start, offset = place
            assert (block.begin, block.end) == (offset, offset + run.stride)
            assert checksum(self.data[block.begin : block.end]) == expected
            pages.append(self._read_block(block, entry, run, start))

    def _read_block(self, block: Field, entry: Any, run: Any, start: int) -> Page:
        assert block.begin % 64 == 0
        assert block.end % 64 == 0
        assert block.length_size == 5
        data = self.data[block.content : block.end]
        inside = split_filler(data, fields(data, 0, len(data)))
        message = schema().PagedCacheBlockProto.FromString(data)
        assert (message.start, message.length) == (start, run.length)
        assert [field.number for field in inside[:2]] == [1, 2]
        assert all(field.end - field.content == 5 for field in inside[:2])
        key, value = inside[2:]
        shape = [entry.batch, entry.heads, run.capacity]
        encoded = {5: message.encoded_key, 6: message.encoded_value}
        dense = {3: message.key, 4: message.value}
        assert key.number in (3, 5)
        assert value.number in (4, 6)
        sides = []
        for field, width, text in (
            (key, entry.key_width, run.key_format),
            (value, entry.value_width, run.value_format),
        ):
            raw = split_filler(data, fields(data, field.content, field.end))[-1]
            assert (block.content + raw.content) % 64 == 0
            if field.number in dense:
                assert raw.number == 9
                array = self._dense(dense[field.number], text)
            else:
                assert raw.number == 4
                array = self._encoded(encoded[field.number], text)
            assert list(array.shape) == [*shape, width]
            assert not array[:, :, run.length :].any()  # rows that do not count are zeros
            sides.append(array[:, :, : run.length])
        if not {key.number, value.number} & {5, 6}:
            assert run.capacity == run.length
        return Page(start, *sides)

    def _dense(self, tensor: Any, text: str) -> npt.NDArray[Any]:
        number, dtype = FORMATS[text]
        assert tensor.data_type == number
        return np.frombuffer(tensor.raw_data, dtype).reshape(tensor.dims)

    def _encoded(self, message: Any, text: str) -> npt.NDArray[np.float32]:
        assert encoded_reader.format_text(message) == text
        return encoded_reader.values(message)


@dataclasses.dataclass
class File:
    records: list[RecordReader]
    caches: dict[str, Cache]
    tokens: npt.NDArray[np.int64] | None
    metadata: dict[str, str]
    end: int


def cut(page: Page, end: int) -> Page:
    keep = min(page.end, end) - page.start
    return Page(page.start, page.key[:, :, :keep], page.value[:, :, :keep])


def read(data: bytes) -> File:
    """All records of a file, from the last to the first, folded."""
    records: list[RecordReader] = []
    while data:
        size = int.from_bytes(data[-60:-52], "little")
        assert 0 < size <= len(data)
        records.insert(0, RecordReader(data[-size:]))
        data = data[:-size]
    caches = {entry.name: Cache([]) for entry in records[0].index.caches}
    tokens, metadata, end = None, {}, 0
    for number, record in enumerate(records):
        before, after = record.head.tokens_before, record.foot.tokens_after
        assert record.head.record_number == number
        assert before <= end
        assert before <= after
        assert [entry.name for entry in record.index.caches] == list(caches)
        for entry in record.index.caches:
            new, cache = record.caches[entry.name], caches[entry.name]
            first = min([before, *(page.start for page in new[:1])])
            cache.pages = [cut(page, first) for page in cache.pages if page.start < first] + new
            cache.pages = [page for page in cache.pages if page.end > entry.start]
            cache.page_size = entry.page_size
            for left, right in zip(cache.pages, cache.pages[1:], strict=False):
                assert left.end == right.start
            assert not cache.pages or cache.pages[-1].end == after
        if record.tokens is None:
            tokens = None
        else:
            old = record.tokens[..., :0] if tokens is None else tokens[..., :before]
            assert old.shape[-1] == before
            tokens = np.concatenate([old, record.tokens], axis=-1)
        metadata |= record.metadata
        end = after
    return File(records, caches, tokens, metadata, end)
