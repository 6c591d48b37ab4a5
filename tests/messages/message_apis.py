"""What the tests of messages share: the two implementations, and outcomes to compare.

A test with the fixture `api` states what holds for protobuf and for us alike; one with `protobuf`
and `ours` does the same to both and compares what comes out.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

import oracle

# Categories of errors; the first that fits counts. A subclass of ours is what it stands for.
_ERRORS = (TypeError, AttributeError, IndexError, KeyError, OverflowError, ValueError, OSError)


@dataclass(frozen=True)
class Api:
    """The message classes of one implementation."""

    name: str
    module: Any
    parse_error: type[Exception]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def cls(self, dotted_name: str) -> Any:
        return operator.attrgetter(dotted_name)(self.module)

    @property
    def is_ours(self) -> bool:
        return self.name == "onnx_light"

    def error_kind(self, error: BaseException) -> str:
        if isinstance(error, self.parse_error):
            return "ParseError"
        return next((e.__name__ for e in _ERRORS if isinstance(error, e)), type(error).__name__)


@functools.cache
def protobuf_api() -> Api:
    return Api("protobuf", oracle.load(), DecodeError)


@functools.cache
def onnx_light_api() -> Api:
    module = importlib.import_module("onnx_light.onnx_py._onnxpyprotoop")
    return Api("onnx_light", module, module.ParseError)


@functools.cache
def class_names() -> list[str]:
    return [name for name, _ in oracle.classes(oracle.load())]


def descriptor(dotted_name: str) -> Any:
    return protobuf_api().cls(dotted_name).DESCRIPTOR


def plain(value: Any) -> Any:
    """A value as plain data that compares across implementations, NaN included."""
    if hasattr(value, "SerializeToString"):
        return type(value).__name__, value.SerializeToString()
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value.hex()
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    if isinstance(value, str | bytes | dict | type(None)):
        return value
    if isinstance(value, list) or hasattr(value, "MergeFrom"):
        return [plain(v) for v in value]
    return type(value).__name__, value


def outcome(api: Api, action: Callable[[Api], Any]) -> tuple[str, Any]:
    """What an action gives as plain data, or the kind of its error."""
    try:
        value = action(api)
    except Exception as error:
        return "error", api.error_kind(error)
    return "value", plain(value)


def parsed(api: Api, dotted_name: str, data: bytes) -> bytes | None:
    """The bytes of a message that was read from `data`; None for a ParseError."""
    try:
        message = api.cls(dotted_name).FromString(data)
    except api.parse_error:
        return None
    result = message.SerializeToString()
    assert isinstance(result, bytes)
    return result


def check_same_bytes(protobuf: Api, ours: Api, dotted_name: str, data: bytes) -> bytes | None:
    """Asserts protobuf's verdict and bytes for `data`, and gives them."""
    want = parsed(protobuf, dotted_name, data)
    got = parsed(ours, dotted_name, data)
    if got != want:  # an assert of its own: the text of long bytes is slow to make
        shown = data.hex() if len(data) < 400 else f"{len(data)} bytes"
        verdicts = ["refuses" if x is None else x[:40].hex() for x in (want, got)]
        raise AssertionError(f"{dotted_name} {shown}: protobuf {verdicts[0]}, ours {verdicts[1]}")
    return want


def random_message(dotted_name: str, rng: random.Random, maxdepth: int = 3) -> Any:
    """A random message of protobuf's."""
    return oracle.random_message(protobuf_api().cls(dotted_name), rng, maxdepth)


# ---------------------------------------------------------------------------------------------
# Wire format by hand


def varint(value: int, padding: int = 0) -> bytes:
    """`padding` more bytes than needed."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    if padding:
        out[-1] |= 128
        out += b"\x80" * (padding - 1) + b"\0"
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def lengthed(number: int, body: bytes) -> bytes:
    return tag(number, 2) + varint(len(body)) + body


def nested(number: int, levels: int, body: bytes = b"") -> bytes:
    for _ in range(levels):
        body = lengthed(number, body)
    return body


def group(number: int, body: bytes = b"") -> bytes:
    return tag(number, 3) + body + tag(number, 4)


def flips(data: bytes) -> Iterator[bytes]:
    """Every copy with one bit changed."""
    copy = bytearray(data)
    for i in range(len(data)):
        for bit in range(8):
            copy[i] ^= 1 << bit
            yield bytes(copy)
            copy[i] ^= 1 << bit
