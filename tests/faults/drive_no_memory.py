"""Calls on messages in which memory runs out at every request. Runs with no_memory.c before libc.

    drive_no_memory.py FOLDER

What must hold: the error is a MemoryError, nothing is left over, the process goes on, and the
message is whole: unchanged, but for calls that go on step by step.
"""

from __future__ import annotations

import copy
import ctypes
import errno
import faulthandler
import gc
import io
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from onnx_light.onnx_py import _onnxpyprotoop as extension

from onnx_light import onnx

SHIM = ctypes.CDLL(None)
NODE: dict[str, Any] = {
    "name": "n" * 50,
    "input": ["a" * 40, "b"] * 3,
    "attribute": [{"name": "x", "ints": range(300)}],
}


def graph() -> Any:
    return extension.GraphProto(
        name="g",
        node=[NODE] * 3,
        initializer=[
            {"raw_data": b"w" * 9000, "dims": [9000], "data_type": 2},
            {"int64_data": range(1000), "data_type": 7, "dims": [1000]},
        ],
    )


OTHER = graph()
DATA = OTHER.SerializeToString() + b"\xfa\x3f\x7f" + b"u" * 127  # with an unknown field
MODEL = onnx.ModelProto(ir_version=10, graph=OTHER)
MAPPED = onnx.ParseOptions(no_copy=True, file_load_mode=onnx.FileLoadMode.MMAP)
DEV_NULL = os.open(os.devnull, os.O_WRONLY)

CALLS: dict[str, Callable[[Any], Any]] = {
    "parse": lambda m: m.ParseFromString(DATA),
    "parse, borrowing": lambda m: m.ParseFromString(DATA, onnx.ParseOptions(no_copy=True)),
    "parse on threads": lambda m: m.ParseFromString(DATA, onnx.ParseOptions(num_threads=3)),
    "parse below": lambda m: m.node[0].attribute.add().g.ParseFromString(DATA),
    "FromString": lambda m: extension.GraphProto.FromString(DATA),
    "merge": lambda m: m.MergeFrom(OTHER),
    "merge bytes": lambda m: m.MergeFromString(DATA),
    "merge itself": lambda m: m.MergeFrom(m),
    "copy": lambda m: m.CopyFrom(OTHER),
    "assign": lambda m: setattr(m.node[0].attribute[0], "g", OTHER),
    "construct": lambda m: extension.GraphProto(node=[NODE, NODE]),
    "copies": lambda m: (copy.copy(m), copy.deepcopy(m), copy.deepcopy(m.node)),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "add": lambda m: m.node.add(**NODE),
    "append": lambda m: m.node.append(OTHER.node[0]),
    "insert": lambda m: m.node.insert(0, OTHER.node[0]),
    "extend": lambda m: m.node.extend(OTHER.node),
    "extend numbers": lambda m: m.initializer[1].int64_data.extend(range(5000)),
    "extend texts": lambda m: m.node[0].input.extend(["y" * 100] * 50),
    "set a slice": lambda m: m.initializer[1].int64_data.__setitem__(slice(2, 5), range(500)),
    "set a text": lambda m: setattr(m, "name", "q" * 3000),
    "set a payload": lambda m: setattr(m.initializer[0], "raw_data", b"q" * 30_000),
    "delete": lambda m: m.node.__delitem__(slice(0, 2)),
    "pop": lambda m: m.node.pop(),
    "clear": lambda m: m.Clear(),
    "clear what is held": lambda m: (m.node[0], m.node, m.initializer[0].dims, m.Clear()),
    "clear a field": lambda m: m.ClearField("node"),
    "sort": lambda m: m.node.sort(key=str),
    "reverse": lambda m: m.node.reverse(),
    "stubs": lambda m: setattr(m.node[0].attribute.add().sparse_tensor.values, "name", "z" * 99),
    "unknown fields": lambda m: m.DiscardUnknownFields(),
    "text": lambda m: (str(m), repr(m.node)),
    "compare": lambda m: (m == OTHER, m.node == OTHER.node),
    "read": lambda m: (m.ListFields(), [n.name for n in m.node], m.node[::2], m.node[0].input[:]),
    "views": lambda m: [t.payload("raw_data") for t in m.initializer],
    "arrays": lambda m: [onnx.to_array(t) for t in m.initializer],
    "from an array": lambda m: onnx.from_array(onnx.to_array(m.initializer[0])),
    "write": lambda m: (m.ByteSize(), m.SerializeSize(), m.SerializeToString()),
    "write a stream": lambda m: m.SerializeToOstream(io.BytesIO()),
    "write a descriptor": lambda m: m.SerializeToFileDescriptor(DEV_NULL),
    "write a file": lambda m: m.SerializeToFile("new"),
    "write data": lambda m: m.SerializeToFile("new", external_data_file="new.data"),
    "read a file": lambda m: m.ParseFromFile("graph"),
    "read a mapped file": lambda m: m.ParseFromFile("graph", MAPPED),
    "read data": lambda m: extension.ModelProto().ParseFromFile("model", None, "model.data"),
    "load": lambda m: onnx.load("model"),
    "an error": lambda m: extension.GraphProto.FromString(b"\x0a\x05"),
}
STEP_BY_STEP = {"parse below", "merge", "merge bytes", "merge itself", "extend", "stubs"}


def attempt(name: str, nth: int, forever: bool) -> tuple[int, bool]:
    """How many requests for memory there were, and whether the call failed."""
    message = graph()
    before = message.SerializeToString()
    failed = False
    SHIM.memory_arm(nth, forever)
    try:
        CALLS[name](message)
    except MemoryError:
        failed = True
    except OSError as error:
        failed = error.errno == errno.ENOMEM
        assert failed
    except extension.ParseError:
        assert name == "an error"
    seen = SHIM.memory_disarm()
    after = message.SerializeToString()
    assert message.ByteSize() == len(after)
    assert extension.GraphProto.FromString(after).SerializeToString() == after
    if failed and name not in STEP_BY_STEP:
        assert after == before, (name, nth)
    return seen, failed


def live() -> Any:
    gc.collect()
    return extension._live_objects(), sorted(os.listdir("/proc/self/fd")), sorted(os.listdir("."))


def drive(name: str) -> int:
    """How often the call failed."""
    attempt(name, 10**6, False)  # what is made once is made
    before = live()
    failures = 0
    for forever in (False, True):
        for nth in range(1, 10_000):
            seen, failed = attempt(name, nth, forever)
            failures += failed
            if seen < nth:
                break
        else:
            raise AssertionError(f"{name} asks for memory without end")
    assert live() == before, (name, before, live())
    return failures


def main() -> None:
    faulthandler.enable()
    os.chdir(sys.argv[1])
    OTHER.SerializeToFile("graph")
    MODEL.SerializeToFile("model", external_data_file="model.data")
    failures = {name: drive(name) for name in CALLS}
    # Giving memory back takes none.
    assert {failures[name] for name in ("clear", "clear a field", "pop", "delete")} == {0}, failures
    print(sum(failures.values()), "failures")


if __name__ == "__main__":
    main()
