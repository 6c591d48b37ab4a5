"""What is let go is gone: handles, arenas, payloads, descriptors; views outlive their messages."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from message_apis import Api, random_message

MEGABYTE = 1 << 20
ALLOWED = 24 * MEGABYTE


def live(ours: Api) -> dict[str, int]:
    gc.collect()
    return dict(ours._live_objects())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


@pytest.fixture(autouse=True)
def _nothing_stays(ours: Api) -> Iterator[None]:
    """After each test there are as many objects and descriptors as before."""
    before = live(ours), sorted(os.listdir("/proc/self/fd"))
    yield
    assert (live(ours), sorted(os.listdir("/proc/self/fd"))) == before


def exercise(ours: Api, name: str, rng: random.Random) -> None:
    """Handles, stubs, lists, copies and errors of a message of this class."""
    data = random_message(name, rng, 3).SerializeToString()
    message = ours.cls(name).FromString(data)
    held = []
    for field, value in message.ListFields():
        held.append(value)
        if hasattr(value, "__len__") and len(value) and not isinstance(value, str | bytes):
            held += [value[0], value[-1], iter(value), value[:]]
        held.append(getattr(message, str(field)))
    held += [copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))]
    other = ours.cls(name)(message)
    other.MergeFrom(message)
    with pytest.raises(ours.ParseError):
        other.ParseFromString(b"\x07")
    message.Clear()
    cycle = [message, other, held]
    cycle.append(cycle)  # type: ignore[arg-type]


def test_the_counters_count(ours: Api) -> None:
    before = live(ours)
    block = ours.PagedCacheBlockProto(key={"dims": [1]})
    held = [block.key, block.key.dims, block.value, block.value.dims]
    after = ours._live_objects()
    gained = {key: after[key] - before[key] for key in after}
    assert gained == {"arenas": 1, "messages": 3, "lists": 2, "stubs": 2}
    del held, block


COUNTERS = """
import gc, pickle
from onnx_light import onnx as o
from onnx_light.onnx_py import _onnxpyprotoop as X

def use():
    model = X.ModelProto(graph={"node": [{"name": "n"}] * 3})
    model.graph.initializer.add(raw_data=b"r" * 9000, dims=[9000], data_type=2)
    data = model.SerializeToString()
    held = [model.graph.node, model.graph.node[1], model.graph.input, model.training_info.add()]
    held += [pickle.loads(pickle.dumps(model)), X.ModelProto.FromString(data), model]
    held += [o.from_array(o.to_array(model.graph.initializer[0])), X.PagedCacheBlockProto().key]
    model.graph.node.pop()
    model.ParseFromString(data, X.ParseOptions(no_copy=True))
    held.append(held)
    assert min(X._live_objects().values()) > 0

for _ in range(50):
    use()
gc.collect()
assert set(X._live_objects().values()) == {0}, X._live_objects()
"""


def test_counters_are_zero_in_the_end() -> None:
    command = [sys.executable, "-c", COUNTERS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr


def test_every_class(ours: Api) -> None:
    rng = random.Random(5)
    for name in ("ModelProto", "GraphProto", "NodeProto", "TypeProto", "PagedCacheProto"):
        for _ in range(20):
            exercise(ours, name, rng)


def test_errors_in_the_middle(ours: Api, tmp_path: Path) -> None:
    from onnx_light.onnx import save

    class FullError(Exception):
        pass

    class Fails:
        def __init__(self, result: Any) -> None:
            self.result = result

        def write(self, data: Any) -> Any:
            if isinstance(self.result, type):
                raise self.result
            return self.result

    def evil() -> Iterator[Any]:
        yield ours.NodeProto(name="n")
        raise FullError

    graph = ours.GraphProto(initializer=[{"raw_data": b"x" * 100_000}])
    actions: list[tuple[type[BaseException], Callable[[], Any]]] = [
        (FullError, lambda: graph.SerializeToOstream(Fails(FullError))),
        (KeyboardInterrupt, lambda: graph.SerializeToOstream(Fails(KeyboardInterrupt))),
        (KeyboardInterrupt, lambda: save(graph, Fails(KeyboardInterrupt))),
        (OSError, lambda: graph.SerializeToOstream(Fails(0))),
        (TypeError, lambda: graph.SerializeToOstream(Fails("x"))),
        (FullError, lambda: graph.node.extend(evil())),
        (TypeError, lambda: ours.GraphProto(node=[{"name": "n"}, 5])),
        (ValueError, lambda: ours.GraphProto(nope=1)),
        (OSError, lambda: graph.SerializeToFile(tmp_path)),
        (OSError, lambda: graph.SerializeToFile(tmp_path / "no/where")),
        (OSError, lambda: graph.ParseFromFile(tmp_path / "missing")),
        (OSError, lambda: graph.SerializeToFileDescriptor(10**6)),
    ]
    for error, action in actions:
        for _ in range(50):
            with pytest.raises(error):
                action()


def full_disk(action: Callable[[], Any]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            action()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(ours: Api, tmp_path: Path) -> None:
    """As the system does it, and with memory counted: 300 failures of 1 MB."""
    model = ours.ModelProto(graph={"initializer": [{"raw_data": b"x" * MEGABYTE}]})
    path = tmp_path / "m"
    path.write_bytes(b"old")
    before = resident()
    for _ in range(150):
        full_disk(lambda: model.SerializeToFile(path))
        full_disk(lambda: model.SerializeToFile(path, external_data_file=tmp_path / "d"))
    assert resident() - before < ALLOWED
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    model.SerializeToFile(path)
    assert ours.ModelProto.FromString(path.read_bytes()) == model


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_megabytes_in_one_field(ours: Api, count: int) -> None:
    message = ours.TensorProto()
    payloads = [bytes([i]) * MEGABYTE for i in range(4)]
    message.raw_data = payloads[0]
    before = resident()
    for i in range(count):
        message.raw_data = payloads[i % 4]
    assert resident() - before < ALLOWED
    assert message.raw_data == payloads[(count - 1) % 4]


BIG = b"b" * MEGABYTE
LOOPS: dict[str, Callable[[Api, Any], Any]] = {
    "add and delete": lambda api, g: (g.initializer.add(raw_data=BIG), g.initializer.pop()),
    "insert and slice": lambda api, g: (
        g.initializer.insert(0, api.TensorProto(raw_data=BIG)),
        g.initializer.__delitem__(slice(0, 1)),
    ),
    "parse": lambda api, g: g.ParseFromString(DATA[0]),
    "parse without a copy": lambda api, g: g.ParseFromString(
        DATA[0], api.ParseOptions(no_copy=True)
    ),
    "merge and clear": lambda api, g: (g.MergeFromString(DATA[0]), g.Clear()),
    "copy": lambda api, g: g.CopyFrom(api.GraphProto.FromString(DATA[0])),
    "views": lambda api, g: (
        g.ParseFromString(DATA[0]),
        np.frombuffer(g.initializer[0].payload("raw_data"), np.uint8),
    ),
    "stream": lambda api, g: (g.ParseFromString(DATA[0]), g.SerializeToOstream(io.BytesIO())),
}
DATA = [b"\x2a\x84\x80\x40\x4a\x80\x80\x40" + BIG]  # initializer { raw_data }


@pytest.mark.parametrize("name", LOOPS)
def test_loops_with_megabytes(ours: Api, name: str) -> None:
    graph = ours.GraphProto()
    LOOPS[name](ours, graph)
    before = resident()
    for _ in range(300):
        LOOPS[name](ours, graph)
    assert resident() - before < ALLOWED


def test_views_outlive_all_that_made_them(ours: Api, tmp_path: Path) -> None:
    """payload() and arrays of payloads copied, borrowed, mapped and assigned."""
    from onnx_light.onnx import to_array

    content = np.random.default_rng(2).bytes(100_000)
    tensor = ours.TensorProto(data_type=2, dims=[100_000], raw_data=content)
    data = tensor.SerializeToString()
    path = tmp_path / "t"
    tensor.SerializeToFile(path)
    mapped = ours.ParseOptions(no_copy=True, file_load_mode=ours.FileLoadMode.MMAP)
    read = [ours.TensorProto.FromString(data) for _ in range(3)]
    read[1].ParseFromString(bytes(bytearray(data)), ours.ParseOptions(no_copy=True))
    read[2].ParseFromFile(path, mapped)
    views: list[Any] = []
    for message in [tensor, *read]:
        graph = ours.GraphProto()
        graph.initializer.append(message)
        views += [message.payload("raw_data"), to_array(message)]
        views += [graph.initializer[0].payload("raw_data"), to_array(graph.initializer[0])]
        message.raw_data = b"other"
        message.Clear()
        graph.initializer.pop()
    path.unlink()
    del tensor, read, message, graph, data
    gc.collect()
    garbage = [bytearray(b"!" * 100_000) for _ in range(50)]
    assert all(bytes(view) == content for view in views)
    del garbage
    slices = [memoryview(view)[50_000:] for view in views]
    del views
    gc.collect()
    assert all(bytes(part) == content[50_000:] for part in slices)
