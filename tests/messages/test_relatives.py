"""Copies between related messages, how long messages live, and very deep ones."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import weakref
from typing import Any

import pytest
from message_apis import Api

# ---------------------------------------------------------------------------------------------
# Copies between relatives. protobuf crashes at some of them.


def sequence(api: Api, levels: int, denotation: str = "end") -> Any:
    root = api.TypeProto()
    inner = root
    for _ in range(levels):
        inner = inner.sequence_type.elem_type
    inner.denotation = denotation
    return root


def test_copying_from_itself(api: Api) -> None:
    message = sequence(api, 2)
    data = message.SerializeToString()
    message.CopyFrom(message)
    assert message.SerializeToString() == data


def test_merging_with_itself(ours: Api) -> None:
    tensor = ours.TensorProto(dims=[1, 2], name="n", segment={"begin": 1})
    tensor.MergeFrom(tensor)
    assert tensor == ours.TensorProto(dims=[1, 2, 1, 2], name="n", segment={"begin": 1})
    graph = ours.GraphProto(node=[{"name": "a"}])
    graph.MergeFrom(graph)
    assert [n.name for n in graph.node] == ["a", "a"]


@pytest.mark.parametrize("method", ["CopyFrom", "MergeFrom", "assign"])
def test_copying_to_a_child(ours: Api, method: str) -> None:
    root = sequence(ours, 2)
    child = root.sequence_type.elem_type
    if method == "assign":
        root.sequence_type.elem_type = root
    else:
        getattr(child, method)(root)
    expected = ours.TypeProto(sequence_type={"elem_type": sequence(ours, 1)})
    expected.sequence_type.elem_type.MergeFrom(sequence(ours, 2))
    assert root == (expected if method == "MergeFrom" else sequence(ours, 3))
    assert root.sequence_type.elem_type is child


@pytest.mark.parametrize("method", ["CopyFrom", "MergeFrom"])
def test_copying_from_a_child(ours: Api, method: str) -> None:
    root = sequence(ours, 3)
    child = root.sequence_type.elem_type
    getattr(root, method)(child)
    if method == "MergeFrom":
        expected = sequence(ours, 3)
        expected.MergeFrom(sequence(ours, 2))
        assert root == expected
    else:
        assert root == child == sequence(ours, 2)  # the old child, detached


def test_assigning_from_the_other_side_of_a_oneof(ours: Api) -> None:
    value = ours.TypeProto()
    value.sequence_type.elem_type.tensor_type.elem_type = 5
    value.tensor_type = value.sequence_type.elem_type.tensor_type
    assert value == ours.TypeProto(tensor_type={"elem_type": 5})
    value = ours.TypeProto()
    value.optional_type.elem_type.sequence_type.elem_type.denotation = "d"
    value.sequence_type.CopyFrom(value.optional_type.elem_type.sequence_type)
    assert value == sequence(ours, 1, "d")


@pytest.mark.parametrize("method", ["CopyFrom", "MergeFrom", "assign"])
def test_copying_an_ancestor_into_an_unset_child(ours: Api, method: str) -> None:
    graph = ours.GraphProto(name="g", node=[{"name": "a", "attribute": [{"name": "x"}]}])
    before = ours.GraphProto(graph)
    attribute = graph.node[0].attribute[0]
    if method == "assign":
        attribute.g = graph
    else:
        getattr(attribute.g, method)(graph)
    assert attribute.g == before


def test_appending_a_list_owner_to_its_own_list(ours: Api) -> None:
    graph = ours.GraphProto(name="g", node=[{"name": "a", "attribute": [{"name": "x"}]}])
    graph.node.append(graph.node[0])
    graph.node[0].attribute[0].graphs.append(graph)
    graph.node[0].attribute[0].graphs.extend([graph, graph])
    graph.node[1].attribute.insert(0, graph.node[0].attribute[0])
    again = ours.GraphProto.FromString(graph.SerializeToString())
    assert again == graph


# ---------------------------------------------------------------------------------------------
# Life time


def test_weak_references(ours: Api) -> None:
    value = ours.PagedCacheBlockProto(key={"name": "k"})
    for get in (lambda: value.key, lambda: value.encoded_key, lambda: ours.TensorProto()):
        handle = get()
        reference = weakref.ref(handle)
        assert reference() is handle
        del handle
        assert reference() is None


def test_a_weak_reference_that_looks_again() -> None:
    """Runs apart: a mistake here is a crash."""
    run_apart(
        """
        import weakref
        for fields in ({"key": {"name": "k"}}, {}):
            value = X.PagedCacheBlockProto(**fields)
            for _ in range(3):
                got = []
                key = value.key
                reference = weakref.ref(key, lambda _: got.append(value.key))
                del key
                assert got[0] is value.key
                assert got[0].name == fields.get("key", {}).get("name", "")
                del got[:]
            value.key.name = "written"
            assert value.key.name == "written"
            graph = X.GraphProto(node=[{"name": "n"}])
            node = graph.node[0]
            got = []
            reference = weakref.ref(node, lambda _: got.append(graph.node.pop()))
            del node
            assert got[0].name == "n" and len(graph.node) == 0
        """
    )


def run_apart(code: str) -> None:
    head = "from onnx_light.onnx_py import _onnxpyprotoop as X\n"
    command = [sys.executable, "-X", "faulthandler", "-c", head + textwrap.dedent(code)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


DEEP = """
import copy, pickle
def chain(levels):
    root = inner = X.TypeProto()
    for _ in range(levels):
        inner = inner.optional_type.elem_type
    return root, inner
"""


def test_long_chains_of_stubs_go() -> None:
    run_apart(
        DEEP
        + textwrap.dedent("""
        root, inner = chain(100_000)
        del root
        del inner
        root, inner = chain(100_000)
        handles = [inner.optional_type, inner.denotation, inner.tensor_type.shape.dim]
        del inner, root, handles
        root, inner = chain(100_000)
        inner.denotation = "x"
        del inner
        root.Clear()
        root, inner = chain(100_000)
        inner.SetInParent()
        del root
        inner.denotation = "still here"
        assert inner.denotation == "still here"
        """)
    )


def test_very_deep_messages_are_refused_by_what_walks_them() -> None:
    run_apart(
        DEEP
        + textwrap.dedent("""
        root, inner = chain(200_000)  # 400,000 levels of messages
        inner.denotation = "x"
        other, end = chain(200_000)
        end.denotation = "y"
        target = X.TypeProto(denotation="kept")
        for action in (
            lambda: root.SerializeToString(), lambda: root.ByteSize(), lambda: str(root),
            lambda: repr(root), lambda: root == other, lambda: root != other,
            lambda: root.SerializeSize(), lambda: target.CopyFrom(root),
            lambda: target.MergeFrom(root), lambda: X.TypeProto(root), lambda: copy.copy(root),
            lambda: copy.deepcopy(root), lambda: pickle.dumps(root),
            lambda: setattr(X.TypeProto.Optional(), "elem_type", root),
            lambda: X.ValueInfoProto(type=root), lambda: root.SerializeToFile("/nowhere/x"),
            lambda: X.GraphProto(input=[{"type": root}]),
        ):
            try:
                action()
            except ValueError as error:
                assert error.code.endswith("depth"), error.code
                assert "1000" in str(error), error
            else:
                raise AssertionError("accepted")
        assert target == X.TypeProto(denotation="kept")
        root.DiscardUnknownFields()
        root.ClearField("optional_type")
        assert root.SerializeToString() == b""
        del inner, other, end
        """)
    )


def test_depth_of_messages_made_by_python(ours: Api) -> None:
    """1,000 levels are fine; a parser with its default accepts 100 of them."""
    deep = sequence(ours, 499)  # two messages per level, and the root
    data = deep.SerializeToString()
    assert ours.TypeProto(deep) == deep
    assert str(deep).count("{") == 998
    with pytest.raises(ours.ParseError):
        ours.TypeProto.FromString(data)
    read = ours.TypeProto()
    read.ParseFromString(data, ours.ParseOptions(max_recursion_depth=1000))
    assert read == deep
    with pytest.raises(ValueError, match="1000"):
        sequence(ours, 501).SerializeToString()
