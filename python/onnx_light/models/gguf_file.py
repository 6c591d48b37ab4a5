"""Reads the header of a GGUF file, and hands out its tensors as they lie in the mapped file.

Every length in the file is compared with what is left of it before anything is read or allocated,
so that a cut or damaged file is one `ModelError` with the byte offset. Values of weights are
decoded elsewhere (`weights.py`); this module knows bytes, types and dimensions.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Self

from onnx_light.models.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4

_SCALARS = {
    0: ("uint8", struct.Struct("<B")),
    1: ("int8", struct.Struct("<b")),
    2: ("uint16", struct.Struct("<H")),
    3: ("int16", struct.Struct("<h")),
    4: ("uint32", struct.Struct("<I")),
    5: ("int32", struct.Struct("<i")),
    6: ("float32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<?")),
    10: ("uint64", struct.Struct("<Q")),
    11: ("int64", struct.Struct("<q")),
    12: ("float64", struct.Struct("<d")),
}
_STRING = 8
_ARRAY = 9
_U32 = _SCALARS[4][1]
_U64 = _SCALARS[10][1]


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies. `dims` are in the file's order: the fastest one first."""

    name: str
    type_name: str
    dims: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class _Value:
    """A metadata value and the bytes of the file that hold it (its type is not among them)."""

    type_name: str
    content: Any
    start: int
    end: int


class _Cursor:
    """Walks the header; every step is checked against the end of the file."""

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self.data = data
        self.size = len(data)
        self.path = path
        self.offset = 0

    def fail(self, message: str, code: str = "models.malformed") -> ModelError:
        return ModelError(code, self.path, f"byte {self.offset}: {message}")

    def need(self, count: int, what: str) -> None:
        """Raises unless `count` more bytes are there."""
        left = self.size - self.offset
        if count > left:
            raise self.fail(f"{what} needs {count} bytes, the file has {left} left", "models.cut")

    def scalar(self, form: struct.Struct, what: str) -> Any:
        self.need(form.size, what)
        (value,) = form.unpack_from(self.data, self.offset)
        self.offset += form.size
        return value

    def text(self, what: str, what_length: str = "the length of a string") -> str:
        length = self.scalar(_U64, what_length)
        self.need(length, what)
        raw = self.data[self.offset : self.offset + length]
        try:
            value = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8 ({error.reason})") from None
        self.offset += length
        return value

    def count(self, smallest: int, what: str) -> int:
        """A number of things that take at least `smallest` bytes each."""
        count: int = self.scalar(_U64, f"the number of {what}")
        left = self.size - self.offset
        if count > left // smallest:
            raise self.fail(
                f"{count} {what} of at least {smallest} bytes do not fit into {left} bytes",
                "models.cut",
            )
        return count


def _read_array(cursor: _Cursor, key: str) -> tuple[str, list[Any]]:
    kind = cursor.scalar(_U32, f"the element type of {key}")
    if kind == _STRING:
        count = cursor.count(8, f"strings of {key}")
        what, what_length = f"a string of {key}", f"the length of a string of {key}"
        return "array of string", [cursor.text(what, what_length) for _ in range(count)]
    if kind not in _SCALARS:
        raise cursor.fail(f"{key} is an array of type {kind}; strings, numbers and bools are known")
    name, form = _SCALARS[kind]
    count = cursor.count(form.size, f"elements of {key}")
    end = cursor.offset + count * form.size
    elements = [value for (value,) in form.iter_unpack(cursor.data[cursor.offset : end])]
    cursor.offset = end
    return f"array of {name}", elements


def _read_value(cursor: _Cursor, key: str) -> _Value:
    kind = cursor.scalar(_U32, f"the type of {key}")
    start = cursor.offset
    content: Any
    if kind == _STRING:
        name, content = "string", cursor.text(key)
    elif kind == _ARRAY:
        name, content = _read_array(cursor, key)
    elif kind in _SCALARS:
        name, form = _SCALARS[kind]
        content = cursor.scalar(form, key)
    else:
        raise cursor.fail(f"{key} has type {kind}; the types 0 to 12 are known")
    return _Value(name, content, start, cursor.offset)


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, _Value]:
    values: dict[str, _Value] = {}
    for _ in range(count):
        key = cursor.text("a metadata key")
        if key in values:
            raise cursor.fail(f"the key {key} occurs twice")
        values[key] = _read_value(cursor, key)
    return values


def _tensor_size(cursor: _Cursor, name: str, kind: int, dims: tuple[int, ...]) -> tuple[str, int]:
    """The name of the type and the size in bytes."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if any(dim < 1 for dim in dims):
        raise cursor.fail(f"tensor {name} has dimensions {list(dims)}; all must be positive")
    try:
        known = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[known]
    except (ValueError, KeyError):
        message = f"tensor {name} has type number {kind}, which is not known here"
        raise cursor.fail(message, "models.tensor_type") from None
    if dims[0] % block:
        raise cursor.fail(
            f"tensor {name} of type {known.name} has rows of {dims[0]} values;"
            f" a multiple of {block} is needed"
        )
    return known.name, math.prod(dims) // block * block_bytes


def _read_tensors(cursor: _Cursor, count: int) -> list[GgufTensor]:
    """Tensors with offsets that still count from the begin of the payloads."""
    tensors: dict[str, GgufTensor] = {}
    for _ in range(count):
        name = cursor.text("a tensor's name")
        if name in tensors:
            raise cursor.fail(f"tensor {name} occurs twice")
        rank = cursor.scalar(_U32, f"the rank of {name}")
        if not 1 <= rank <= _MAX_DIMENSIONS:
            raise cursor.fail(
                f"tensor {name} has {rank} dimensions; 1 to {_MAX_DIMENSIONS} are known"
            )
        dims = tuple(cursor.scalar(_U64, f"a dimension of {name}") for _ in range(rank))
        kind = cursor.scalar(_U32, f"the type of {name}")
        type_name, nbytes = _tensor_size(cursor, name, kind, dims)
        offset = cursor.scalar(_U64, f"the offset of {name}")
        tensors[name] = GgufTensor(name, type_name, dims, offset, nbytes)
    return list(tensors.values())


def _alignment(cursor: _Cursor, values: Mapping[str, _Value]) -> int:
    value = values.get("general.alignment")
    if value is None:
        return _DEFAULT_ALIGNMENT
    alignment: int = value.content if value.type_name == "uint32" else 0
    if alignment < 1 or alignment & (alignment - 1):
        raise cursor.fail(
            f"general.alignment is {value.content!r}; a uint32 power of two is needed"
        )
    return alignment


def _place(cursor: _Cursor, tensors: list[GgufTensor], alignment: int) -> dict[str, GgufTensor]:
    """Makes the offsets count from the begin of the file, all payloads inside it."""
    base = -(-cursor.offset // alignment) * alignment
    placed: dict[str, GgufTensor] = {}
    for tensor in tensors:
        if tensor.offset % alignment:
            raise cursor.fail(
                f"tensor {tensor.name} lies at {tensor.offset}, no multiple of {alignment}"
            )
        end = base + tensor.offset + tensor.nbytes
        if end > cursor.size:
            raise cursor.fail(
                f"tensor {tensor.name} ends at byte {end}, the file at byte {cursor.size}",
                "models.cut",
            )
        placed[tensor.name] = GgufTensor(
            tensor.name, tensor.type_name, tensor.dims, base + tensor.offset, tensor.nbytes
        )
    return placed


class GgufFile:
    """An open GGUF file, mapped read-only; a context manager.

    Attributes:
        path: the file's name.
        metadata: the key/value pairs, as str, int, float, bool or lists of these.
        tensors: name -> GgufTensor, in the file's order.

    Raises:
        ModelError: no GGUF file of version 2 or 3 in little-endian order, or cut or damaged.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(24)
            self._check_head(head)
            self._data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        try:
            self._read_header()
        except BaseException:
            self._data.close()
            raise

    def _check_head(self, head: bytes) -> None:
        if not _MAGIC.startswith(head[:4]):
            raise ModelError(
                "models.not_gguf", self.path, f"no GGUF file: it begins with {head[:4]!r}"
            )
        if len(head) < 24:
            raise ModelError(
                "models.cut", self.path, f"a GGUF head takes 24 bytes, the file has {len(head)}"
            )
        (version,) = _U32.unpack_from(head, 4)
        if version not in _VERSIONS:
            order = " (or big-endian)" if version & 0xFFFF == 0 else ""
            raise ModelError(
                "models.version",
                self.path,
                f"GGUF version {version}{order}; little-endian files of version 2 and 3 are read",
            )

    def _read_header(self) -> None:
        cursor = _Cursor(self._data, self.path)
        cursor.offset = 8
        tensor_count = cursor.scalar(_U64, "the number of tensors")
        value_count = cursor.count(13, "metadata values")
        self._values = _read_metadata(cursor, value_count)
        if tensor_count > (cursor.size - cursor.offset) // 32:
            left = cursor.size - cursor.offset
            raise cursor.fail(f"{tensor_count} tensors do not fit into {left} bytes", "models.cut")
        tensors = _read_tensors(cursor, tensor_count)
        self._header_end = cursor.offset
        self.metadata: Mapping[str, Any] = MappingProxyType(
            {key: value.content for key, value in self._values.items()}
        )
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(
            _place(cursor, tensors, _alignment(cursor, self._values))
        )

    def payload(self, tensor: GgufTensor) -> memoryview:
        """The tensor's bytes as they lie in the mapping; release it before `close`."""
        return memoryview(self._data)[tensor.offset : tensor.offset + tensor.nbytes]

    def header_digest(self) -> str:
        """SHA-256 in hex over everything before the payloads."""
        with memoryview(self._data) as view:
            return hashlib.sha256(view[: self._header_end]).hexdigest()

    def tokenizer_digest(self) -> str:
        """``sha256:`` and SHA-256 in hex of what says how text becomes tokens.

        The digest is over the UTF-8 lines ``key<tab>type<tab>sha256 of the value's bytes<newline>``
        of the metadata below ``tokenizer.ggml.``, sorted by key. Chat templates do not count.
        """
        digest = hashlib.sha256()
        for key, value in sorted(self._values.items()):
            if key.startswith("tokenizer.ggml."):
                content = hashlib.sha256(self._data[value.start : value.end]).hexdigest()
                digest.update(f"{key}\t{value.type_name}\t{content}\n".encode())
        return f"sha256:{digest.hexdigest()}"

    def close(self) -> None:
        self._data.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
