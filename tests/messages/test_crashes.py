"""Ways to break a process through what Python lets anybody do, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import gc, weakref
import numpy as np
from onnx_light.onnx_py import _onnxpyprotoop as X

def refused(call):
    try:
        call()
    except TypeError:
        return
    raise AssertionError("no TypeError")
"""

CASES = {
    "derive from Message": """
refused(lambda: type("S", (X.Message,), {}))
for cls in (X.Message, X.ModelProto, X.RepeatedScalar, X.RepeatedMessage):
    refused(lambda: type("S", (cls,), {}))
    refused(lambda: setattr(cls, "new", 1))
""",
    "another class": """
message = X.ModelProto(graph={"name": "g"})
refused(lambda: setattr(message, "__class__", X.GraphProto))
refused(lambda: setattr(X.TensorProto().dims, "__class__", X.RepeatedMessage))
refused(lambda: setattr(X.ParseOptions(), "__class__", X.SerializeOptions))
assert type(message) is X.ModelProto
""",
    "constructors of options": """
classes = X.TensorBufferOptions, X.ParseOptions, X.SerializeOptions, X.SerializeSizeResult
for cls in classes:
    for wrong in (5, None, cls, X.ModelProto(), X.EnumTypeWrapper, *(c() for c in classes)):
        if not isinstance(wrong, cls):
            refused(lambda: cls.__init__(wrong))
options = X.ParseOptions(num_threads=3)
options.__init__()
assert options.num_threads == 1
refused(lambda: X.TensorProto().ParseFromString(b"", X.ParseOptions.__new__(X.ParseOptions)))
""",
    "methods of other classes": """
refused(lambda: X.ModelProto.has_graph(X.GraphProto()))
refused(lambda: X.ModelProto.has_graph.__get__(5, int)())
refused(lambda: X.ModelProto.graph.__get__(X.GraphProto()))
refused(lambda: X.ModelProto.SerializeToString(X.TensorProto().dims))
refused(lambda: X.RepeatedScalar.append(X.GraphProto().node, 1))
refused(lambda: X.ModelProto.__new__(X.GraphProto))
for cls in (X.ModelProto, X.RepeatedScalar, X.Message, type(X.ModelProto.has_graph)):
    refused(lambda: object.__new__(cls))
refused(lambda: X.Message.FromString(b""))
""",
    "callbacks of weak references end the message": """
graph = X.GraphProto()
changes = [
    lambda: graph.node.__delitem__(0),
    lambda: graph.node.pop(0) and None,
    lambda: graph.Clear(),
    lambda: graph.node.__getitem__(0) and None,
    lambda: graph.ParseFromString(b"\\x0a\\x00"),
]
held = []
for change in changes * 40:
    graph.node.add(name="z" * 30, input=["y" * 40] * 3)
    node = graph.node[0]
    held.append(weakref.ref(node, lambda _: change()))
    del node
    graph.node.extend([X.NodeProto(name="w" * 30)] * 3)
    assert X.GraphProto.FromString(graph.SerializeToString()) == graph
assert all(ref() is None for ref in held)
""",
    "a stream keeps what it gets": """
message = X.TensorProto(raw_data=b"x" * 300_000, name="n" * 3000)
expected = message.SerializeToString()
pieces, arrays = [], []
class Stream:
    def write(self, piece):
        pieces.append(piece)
        arrays.append(np.frombuffer(piece, np.uint8))
message.SerializeToOstream(Stream())
del message
filled = [bytearray(b"!" * 300_000) for _ in range(20)]
assert b"".join(pieces) == expected
del pieces
assert b"".join(arrays) == expected
""",
    "collections of garbage": """
message = X.TensorProto()
graph = X.GraphProto()
class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        message.string_data.clear()
        graph.node.clear()
gc.set_threshold(1)
for _ in range(300):
    message.string_data.extend([b"a" * 50] * 200)
    graph.node.extend([X.NodeProto(name="n")] * 20)
    for _ in range(5):
        Cycle()
    assert all(text == b"a" * 50 for text in message.string_data[:])
    assert all(node.name == "n" for node in graph.node[::-1])
    for name, value in graph.ListFields() + message.ListFields():
        list(value)
    repr(graph.node), message.string_data == [], graph.node.index(graph.node.add(name="x"))
""",
    "the end of an input runs code": """
data = X.TensorProto(raw_data=b"z" * 9000, name="n").SerializeToString()
graph = X.GraphProto()
class Input(bytes):
    def __del__(self):
        graph.node.add(name="q" * 50)
        graph.Clear()
options = X.ParseOptions(no_copy=True)
for _ in range(50):
    for _ in range(100):
        graph.initializer.add().ParseFromString(Input(data), options)
    graph.Clear()
    assert len(graph.initializer) == 0
    graph.name = "x"
    assert X.GraphProto.FromString(graph.SerializeToString()) == graph
""",
    "an input that changes": """
import threading
data = X.TensorProto(int64_data=range(300_000), raw_data=bytes(100_000)).SerializeToString()
mutable = bytearray(data)
views = memoryview(mutable).toreadonly(), np.frombuffer(memoryview(mutable).toreadonly(), "u1")
done = threading.Event()
def change():
    while not done.is_set():
        mutable[:] = data.replace(bytes([0x90]), bytes([0x10]))
        mutable[:] = data
threads = [threading.Thread(target=change) for _ in range(2)]
for thread in threads:
    thread.start()
for view in views * 30:
    for options in (X.ParseOptions(), X.ParseOptions(no_copy=True, num_threads=2)):
        try:
            message = X.TensorProto()
            message.ParseFromString(view, options)
            str(message.ByteSize()), message.SerializeToString()
        except X.ParseError:
            pass
done.set()
for thread in threads:
    thread.join()
""",
    "a very deep tree": """
root = message = X.TypeProto()
for _ in range(100_000):
    message = message.sequence_type.elem_type
message.denotation = "end"
for call in (
    root.SerializeToString,
    root.ByteSize,
    root.__str__,
    lambda: root == X.TypeProto(root),
    lambda: root.sequence_type.CopyFrom(root.sequence_type),
    lambda: X.TypeProto().MergeFrom(root),
):
    try:
        call()
    except ValueError as error:
        assert "1000 levels" in str(error), error
root.DiscardUnknownFields()
root.Clear()
assert message.denotation == "end"
""",
}


@pytest.mark.parametrize("name", CASES)
def test_no_crash(name: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", HEAD + CASES[name]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
