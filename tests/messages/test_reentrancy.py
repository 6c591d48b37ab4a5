"""Python code that runs in the middle of a call and changes the very message: no crash, no damage.

Every pair of a call that runs code and a change that the code makes, in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from onnx_light.onnx_py import _onnxpyprotoop as X

CHANGES = {
    "clear": lambda s: s.m.Clear(),
    "clear list": lambda s: s.m.dims.clear(),
    "delete": lambda s: s.m.dims.__delitem__(slice(0, 2)),
    "grow": lambda s: len(s.m.dims) < 300 and s.m.dims.extend(range(100)),
    "clear field": lambda s: (s.m.ClearField("dims"), s.m.ClearField("string_data")),
    "parse": lambda s: s.m.ParseFromString(b"\\x08\\x01\\x08\\x02"),
    "bad parse": lambda s: attempt(lambda: s.m.ParseFromString(b"\\x08")),
    "copy": lambda s: s.m.CopyFrom(X.TensorProto(dims=[7], string_data=[b"q" * 50])),
    "merge": lambda s: len(s.m.dims) < 300 and s.m.MergeFrom(s.m),
    "switch": lambda s: s.owner.add_encoded_key(),
    "replace": lambda s: s.owner.add_key(),
    "owner clear": lambda s: s.owner.Clear(),
    "nodes clear": lambda s: s.g.node.clear(),
    "nodes grow": lambda s: len(s.g.node) < 99 and [s.g.node.add(name=str(i)) for i in range(30)],
    "nodes reverse": lambda s: s.g.node.reverse(),
    "nodes of parent": lambda s: s.g.Clear(),
    "drop all": lambda s: s.drop(),
}


def attempt(call):
    try:
        return call()
    except Exception as error:
        return error


class Situation:
    def __init__(self, attached):
        self.owner = X.PagedCacheBlockProto()
        self.m = self.owner.key if attached != "root" else X.TensorProto()
        if attached != "stub":
            self.m.dims.extend([1, 2, 3])
            self.m.string_data.extend([b"a" * 40, b"b", b"c" * 100])
            self.m.raw_data = b"r" * 200
        self.g = X.GraphProto(node=[{"name": c, "input": [c * 30]} for c in "bca"])
        self.dims, self.texts, self.nodes = self.m.dims, self.m.string_data, self.g.node

    def drop(self):
        self.owner = X.PagedCacheBlockProto()
        self.m = X.TensorProto()
        self.g = X.GraphProto()


class Evil:
    def __init__(self, situation, change, value=1):
        self.situation, self.change, self.value = situation, change, value
    def run(self):
        CHANGES[self.change](self.situation)
    def __index__(self):
        self.run()
        return self.value
    def __float__(self):
        self.run()
        return 1.5
    def __eq__(self, other):
        self.run()
        return False
    def __lt__(self, other):
        self.run()
        return True
    def __iter__(self):
        for i in range(5):
            self.run()
            yield i
    def texts(self):
        for i in range(5):
            self.run()
            yield b"t" * i * 20
    def nodes(self):
        for i in range(5):
            self.run()
            yield X.NodeProto(name=str(i))
            if len(self.situation.g.node):
                yield self.situation.g.node[0]
    def keys(self):
        self.run()
        return ["name"]
    def __getitem__(self, key):
        self.run()
        return "n"
    def items(self):
        self.run()
        return [("name", "n")]
    def key(self, value):
        self.run()
        return 0


CALLS = {
    "set int": lambda s, e: setattr(s.m, "data_type", e),
    "set double": lambda s, e: s.m.double_data.append(e),
    "append": lambda s, e: s.dims.append(e),
    "insert": lambda s, e: s.dims.insert(e, e),
    "insert text": lambda s, e: s.texts.insert(e, b"x" * 30),
    "set item": lambda s, e: s.dims.__setitem__(0, e),
    "set at": lambda s, e: s.dims.__setitem__(e, e),
    "set text at": lambda s, e: s.texts.__setitem__(e, b"y" * 99),
    "get at": lambda s, e: s.texts[e],
    "get slice": lambda s, e: s.texts[e:],
    "get slice end": lambda s, e: s.dims[:e],
    "get step": lambda s, e: s.dims[::e],
    "get nodes": lambda s, e: s.nodes[e:],
    "del at": lambda s, e: s.texts.__delitem__(e),
    "del slice": lambda s, e: s.texts.__delitem__(slice(e, None)),
    "del nodes": lambda s, e: s.nodes.__delitem__(slice(None, None, e)),
    "set slice": lambda s, e: s.dims.__setitem__(slice(0, e), [1, 2]),
    "set slice to": lambda s, e: s.dims.__setitem__(slice(0, 2), e),
    "set slice of texts": lambda s, e: s.texts.__setitem__(slice(0, 2), e.texts()),
    "set step": lambda s, e: s.dims.__setitem__(slice(None, None, -1), e),
    "pop": lambda s, e: s.texts.pop(e),
    "pop node": lambda s, e: s.nodes.pop(e),
    "extend": lambda s, e: s.dims.extend(e),
    "extend texts": lambda s, e: s.texts.extend(e.texts()),
    "extend nodes": lambda s, e: s.nodes.extend(e.nodes()),
    "merge nodes": lambda s, e: s.nodes.MergeFrom(e.nodes()),
    "add texts": lambda s, e: s.texts.__iadd__(e.texts()),
    "insert node": lambda s, e: s.nodes.insert(e, s.nodes[0]),
    "remove": lambda s, e: s.dims.remove(e),
    "remove node": lambda s, e: s.nodes.remove(e),
    "index": lambda s, e: s.texts.index(e),
    "index from": lambda s, e: s.texts.index(b"b", e, e),
    "count": lambda s, e: s.nodes.count(e),
    "in": lambda s, e: e in s.texts,
    "compare": lambda s, e: s.texts == [e, e],
    "compare nodes": lambda s, e: s.nodes == [e],
    "sort": lambda s, e: s.dims.sort(key=e.key),
    "sort texts": lambda s, e: s.texts.sort(key=e.key),
    "sort nodes": lambda s, e: s.nodes.sort(key=e.key),
    "sort by evil": lambda s, e: s.nodes.sort(key=lambda n: e),
    "iterate": lambda s, e: [e.run() for _ in zip(s.nodes, range(9))],
    "iterate texts": lambda s, e: [(x, e.run()) for x, _ in zip(s.texts, range(9))],
    "add node": lambda s, e: s.nodes.add(attribute=[{"ints": e}], input=["x"]),
    "add node of mapping": lambda s, e: s.nodes.add(attribute=[e]),
    "add block": lambda s, e: s.owner.add_value().dims.extend(e),
    "construct": lambda s, e: X.TensorProto(s.m, dims=e, string_data=s.texts),
    "construct nodes": lambda s, e: X.GraphProto(s.g, node=e.nodes()),
    "construct from list": lambda s, e: X.GraphProto(node=[s.nodes[0], e, s.nodes[-1]]),
    "construct dict": lambda s, e: X.GraphProto(node=[{"name": "x", "attribute": [{"i": e}]}]),
    "stream": lambda s, e: s.m.SerializeToOstream(type("S", (), {"write": lambda _, p: e.run()})()),
    "stream owner": lambda s, e: s.owner.SerializeToOstream(
        type("S", (), {"write": lambda _, p: e.run()})()
    ),
    "enum name": lambda s, e: X.TensorProto.DataType.Name(e),
}


def check(message):
    data = message.SerializeToString()
    assert message.ByteSize() == len(data)
    assert type(message).FromString(data) == message
    assert str(type(message).FromString(data)) == str(message)


count = 0
for attached in ("root", "field", "stub"):
    for change in CHANGES:
        for name, call in CALLS.items():
            for value in (0, 1, -1, 99):
                print(attached, change, name, value, file=sys.stderr)
                s = Situation(attached)
                kept = s.m, s.owner, s.g, s.dims, s.texts, s.nodes
                result = attempt(lambda: call(s, Evil(s, change, value)))
                # Errors of the call are fine, breakdowns are not.
                assert not isinstance(result, (SystemError, MemoryError)), result
                for message in (*kept[:3], s.m, s.owner, s.g):
                    check(message)
                assert len(list(kept[3])) == len(kept[3]) and len(list(kept[4])) == len(kept[4])
                assert all(isinstance(t, bytes) for t in kept[4])
                for node in kept[5]:
                    check(node)
                repr(result)
                count += 1
assert count == 3 * len(CHANGES) * len(CALLS) * 4
"""


@pytest.mark.parametrize("allocator", ["default", "debug"])
def test_changes_in_the_middle_of_a_call(allocator: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", CODE]
    environment = {**os.environ, "PYTHONMALLOC": allocator}
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
