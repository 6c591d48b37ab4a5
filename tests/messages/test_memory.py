"""Loops that change messages in place stay bounded, also where calls fail.

Design: a string slot is reused when the new value fits, removed elements and payloads are let go.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from message_apis import Api

ROUNDS = 6000
ALLOWED = 4 << 20  # bytes; what is wrong below grows by far more
TEXT = "x" * 1000
ITEM = {"name": TEXT, "input": [TEXT] * 3}
numbers = itertools.count()


def resident() -> int:
    """Bytes of memory that the process has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def tensor(api: Api) -> Any:
    return api.TensorProto(name=TEXT, dims=range(100), raw_data=TEXT.encode())


def graph_bytes(api: Api) -> bytes:
    data = api.GraphProto(node=[ITEM] * 3, initializer=[tensor(api)]).SerializeToString()
    assert isinstance(data, bytes)
    return data


def failing(call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        call()


# The class of the message, and what is done to it again and again.
STEPS: dict[str, tuple[str, Callable[[Api, Any], Any]]] = {
    "text": ("TensorProto", lambda api, m: setattr(m, "name", TEXT)),
    "texts of all lengths": (
        "TensorProto",
        lambda api, m: setattr(m, "name", "y" * (next(numbers) * 37 % 3000)),
    ),
    "bytes": ("TensorProto", lambda api, m: setattr(m, "raw_data", bytes(10_000))),
    "message": ("PagedCacheBlockProto", lambda api, m: setattr(m, "key", tensor(api))),
    "CopyFrom": ("PagedCacheBlockProto", lambda api, m: m.key.CopyFrom(tensor(api))),
    "add": ("PagedCacheBlockProto", lambda api, m: setattr(m.add_key(), "name", TEXT)),
    "oneof": (
        "PagedCacheBlockProto",
        lambda api, m: (
            setattr(m.add_key(), "name", TEXT),
            setattr(m.add_encoded_key(), "name", TEXT),
        ),
    ),
    "Clear": ("TensorProto", lambda api, m: (m.dims.extend(range(500)), m.Clear())),
    "ClearField": ("TensorProto", lambda api, m: (m.dims.extend(range(500)), m.ClearField("dims"))),
    "append and pop": ("NodeProto", lambda api, m: (m.input.append(TEXT), m.input.pop())),
    "add and delete": ("GraphProto", lambda api, m: (m.node.add(**ITEM), m.node.pop())),
    "slices": ("TensorProto", lambda api, m: m.string_data.__setitem__(slice(None), [b"z" * 500])),
    "parse": ("GraphProto", lambda api, m: m.ParseFromString(graph_bytes(api))),
    "parse below": ("ModelProto", lambda api, m: m.graph.ParseFromString(graph_bytes(api))),
    "merge scalars": ("TensorProto", lambda api, m: m.MergeFrom(api.TensorProto(name=TEXT))),
    "merge bytes": ("TensorProto", lambda api, m: m.MergeFromString(b"\x42\x03abc")),
    "unknown fields": (
        "TensorProto",
        lambda api, m: (m.MergeFromString(b"\xfa\x07\x7f" + b"u" * 127), m.DiscardUnknownFields()),
    ),
    "stubs": ("PagedCacheBlockProto", lambda api, m: m.key.segment.begin),
    "views": (
        "TensorProto",
        lambda api, m: (setattr(m, "raw_data", TEXT.encode()), m.payload("raw_data")),
    ),
    "copies of lists": ("TensorProto", lambda api, m: copy.deepcopy(tensor(api).dims)),
    "failed add": ("GraphProto", lambda api, m: failing(lambda: m.node.add(**ITEM, nope=1))),
    "failed extend": (
        "GraphProto",
        lambda api, m: (failing(lambda: m.node.extend([api.NodeProto(**ITEM), 1])), m.Clear()),
    ),
    "failed parse": (
        "GraphProto",
        lambda api, m: failing(lambda: m.ParseFromString(graph_bytes(api)[:-1])),
    ),
    "failed merge": (
        "GraphProto",
        lambda api, m: failing(lambda: m.MergeFromString(graph_bytes(api)[:-1])),
    ),
    "failed construction": (
        "GraphProto",
        lambda api, m: failing(lambda: api.GraphProto(node=[ITEM, ITEM, 1])),
    ),
    "failed write": (
        "TensorProto",
        lambda api, m: failing(
            lambda: tensor(api).SerializeToString(api.SerializeOptions(max_serialized_size_bytes=9))
        ),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_bounded(ours: Api, name: str) -> None:
    cls, step = STEPS[name]
    message = ours.cls(cls)()
    for _ in range(500):
        step(ours, message)

    def growth() -> int:
        before = resident()
        for _ in range(ROUNDS):
            step(ours, message)
        return resident() - before

    # What leaks grows each time; the system may give a process large pages once.
    assert any(growth() < ALLOWED for _ in range(3))
