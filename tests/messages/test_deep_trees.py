"""Trees of many levels: whatever walks them refuses them, and they go without a deep stack."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEAD = """
import copy, faulthandler, io, os, pickle, sys, tempfile, threading
from onnx_light import onnx as o
from onnx_light.onnx_py import _onnxpyprotoop as X

def refused(action):
    try:
        action()
    except ValueError as error:
        assert "depth" in error.code, (error.code, str(error))
        assert "1000" in str(error), str(error)
    else:
        raise AssertionError("accepted")

def types(levels):
    root = inner = X.TypeProto()
    for _ in range(levels // 2):
        inner = inner.optional_type.elem_type
    inner.denotation = "end"
    return root

def model(levels):
    made = X.ModelProto(ir_version=10, opset_import=[{"version": 21}])
    graph = made.graph
    for _ in range(levels // 3):
        graph.name = "g"
        graph = graph.node.add(op_type="If").attribute.add(name="b", type=5).g
    graph.name = "end"
    return made

os.chdir(tempfile.mkdtemp())
"""


@pytest.fixture(params=[40_000, pytest.param(400_000, marks=pytest.mark.long)])
def levels(request: pytest.FixtureRequest) -> int:
    """A frame of 4 bytes for each would be over the stack of 128 KiB that a test uses."""
    assert isinstance(request.param, int)
    return request.param


def run_apart(levels: int, code: str) -> None:
    """In a process of its own: a mistake here is a crash."""
    code = HEAD + f"LEVELS = {levels}\n" + textwrap.dedent(code)
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


def test_single_fields(levels: int) -> None:
    run_apart(
        levels,
        """
        root, other = types(LEVELS), types(LEVELS)
        kept = X.TypeProto(denotation="kept")
        for action in (
            lambda: root.SerializeToString(), lambda: root.SerializePartialToString(),
            lambda: root.SerializeToString(X.SerializeOptions(skip_raw_data=True)),
            lambda: root.SerializeToOstream(io.BytesIO()), lambda: root.SerializeToFile("x"),
            lambda: root.SerializeToFileDescriptor(1), lambda: o.save(root, "x"),
            lambda: root.ByteSize(), lambda: root.SerializeSize(), lambda: root.to_onnx(),
            lambda: str(root), lambda: repr(root), lambda: f"{root}", lambda: root == other,
            lambda: root != other, lambda: copy.copy(root), lambda: copy.deepcopy(root),
            lambda: pickle.dumps(root), lambda: X.TypeProto(root), lambda: kept.CopyFrom(root),
            lambda: kept.MergeFrom(root), lambda: X.ValueInfoProto(type=root),
            lambda: setattr(X.ValueInfoProto(), "type", root),
        ):
            refused(action)
        assert kept == X.TypeProto(denotation="kept")
        assert os.listdir() == []
        assert root.IsInitialized() and root.ListFields()
        root.DiscardUnknownFields()
    """,
    )


def test_lists(levels: int) -> None:
    run_apart(
        levels,
        """
        root, empty = model(LEVELS), X.GraphProto()
        nodes, other = root.graph.node, model(LEVELS).graph.node
        for action in (
            lambda: str(root), lambda: copy.copy(root), lambda: root.SerializeToString(),
            lambda: root.SerializeToFile("x", external_data_file="d"),
            lambda: o.save(root, "x", save_as_external_data=True), lambda: o.check_model(root),
            lambda: empty.node.append(nodes[0]), lambda: empty.node.extend(nodes),
            lambda: empty.node.insert(0, nodes[0]), lambda: nodes.index(X.NodeProto()),
            lambda: nodes.remove(X.NodeProto()), lambda: nodes.sort(key=str),
            lambda: repr(nodes), lambda: copy.deepcopy(nodes), lambda: nodes == list(other),
            lambda: nodes.count(X.NodeProto()), lambda: X.NodeProto() in nodes,
            lambda: X.GraphProto(node=nodes), lambda: X.GraphProto(node=[nodes[0]]),
            lambda: empty.node.MergeFrom(nodes), lambda: o.save(root, "x.json"),
        ):
            refused(action)
        assert len(empty.node) == 0 and len(nodes) == 1 and os.listdir() == []
        root.DiscardUnknownFields()
    """,
    )


def test_the_end_of_a_tree_needs_no_deep_stack(levels: int) -> None:
    run_apart(
        levels,
        """
        ends = [
            (types, lambda root: None),
            (types, lambda root: root.Clear()),
            (types, lambda root: root.ClearField("optional_type")),
            (types, lambda root: root.tensor_type.SetInParent()),
            (types, lambda root: root.ParseFromString(b"")),
            (types, lambda root: setattr(root, "optional_type", X.TypeProto.Optional())),
            (model, lambda root: None),
            (model, lambda root: root.graph.node.pop()),
            (model, lambda root: root.graph.node.clear()),
            (model, lambda root: root.CopyFrom(X.ModelProto())),
        ]
        threading.stack_size(128 << 10)
        for make, end in ends:
            held = [make(LEVELS)]
            thread = threading.Thread(target=lambda: (end(held[0]), held.clear()))
            thread.start()
            thread.join()
            assert held == []
        assert X._live_objects()["arenas"] == 0
    """,
    )
