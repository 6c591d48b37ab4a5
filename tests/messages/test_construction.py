"""Constructors: keywords, mappings, messages, iterables, and nothing half built."""

from __future__ import annotations

import collections
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from message_apis import Api, class_names, descriptor, outcome, plain, random_message


class Sequence:
    """Iterable by __getitem__ only."""

    def __getitem__(self, index: int) -> int:
        if index > 2:
            raise IndexError
        return index


class Items(dict[str, Any]):
    """A dict subclass."""


def counted(values: list[Any]) -> Iterator[Any]:
    yield from values


def failing(values: list[Any]) -> Iterator[Any]:
    yield from values
    raise LookupError("mine")


# Keywords of TensorProto, GraphProto and PagedCacheBlockProto: what both say must be the same.
TENSOR: dict[str, Callable[[Api], dict[str, Any]]] = {
    "nothing": lambda api: {},
    "scalars": lambda api: {"name": "n", "data_type": 1, "raw_data": b"x"},
    "all None": lambda api: {"name": None, "dims": None, "segment": None, "raw_data": None},
    "unknown": lambda api: {"nope": 1},
    "unknown None": lambda api: {"nope": None},
    "known and unknown": lambda api: {"name": "a", "nope": 1},
    "oneof name": lambda api: {"value": 1},
    "empty name": lambda api: {"": 1},
    "surrogate name": lambda api: {"\ud800": 1},
    "wrong scalar": lambda api: {"name": 1},
    "out of range": lambda api: {"data_type": 2**31},
    "list": lambda api: {"dims": [1, 2]},
    "tuple": lambda api: {"dims": (1, 2)},
    "set": lambda api: {"dims": {5}},
    "range": lambda api: {"dims": range(3)},
    "generator": lambda api: {"dims": counted([1, 2])},
    "iterator": lambda api: {"dims": iter([1])},
    "array": lambda api: {"dims": np.arange(3)},
    "float array": lambda api: {"float_data": np.arange(3) / 2},
    "float array into ints": lambda api: {"dims": np.arange(3.0)},
    "getitem": lambda api: {"dims": Sequence()},
    "dict keys": lambda api: {"dims": {1: 2, 3: 4}},
    "repeated field": lambda api: {"dims": api.TensorProto(dims=[1, 2]).dims},
    "no iterable": lambda api: {"dims": 1},
    "text": lambda api: {"dims": "ab"},
    "text as bytes": lambda api: {"string_data": "ab"},
    "bytes as list": lambda api: {"string_data": b"ab"},
    "bytes as ints": lambda api: {"dims": b"ab"},
    "bad element": lambda api: {"dims": [1, "x"]},
    "None element": lambda api: {"dims": [None]},
    "bool element": lambda api: {"dims": [True]},
    "failing": lambda api: {"dims": failing([1, 2])},
    "message": lambda api: {"segment": api.TensorProto.Segment(begin=1)},
    "empty message": lambda api: {"segment": api.TensorProto.Segment()},
    "dict": lambda api: {"segment": {"begin": 1}},
    "empty dict": lambda api: {"segment": {}},
    "dict subclass": lambda api: {"segment": Items(begin=1)},
    "ordered dict": lambda api: {"segment": collections.OrderedDict(begin=1)},
    "dict with None": lambda api: {"segment": {"begin": None}},
    "dict with unknown": lambda api: {"segment": {"nope": 1}},
    "dict with wrong": lambda api: {"segment": {"begin": "x"}},
    "dict with other key": lambda api: {"segment": {1: 1}},
    "other message": lambda api: {"segment": api.TensorProto()},
    "scalar for message": lambda api: {"segment": 1},
    "list for message": lambda api: {"segment": []},
    "text for message": lambda api: {"segment": "begin"},
    "enum name": lambda api: {"data_location": "EXTERNAL"},
    "enum number": lambda api: {"data_location": 1},
    "unlisted enum name": lambda api: {"data_location": "external"},
    "unlisted enum": lambda api: {"data_location": 7},
}
GRAPH: dict[str, Callable[[Api], dict[str, Any]]] = {
    "dicts": lambda api: {"node": [{"name": "a"}, {}]},
    "messages": lambda api: {"node": [api.NodeProto(name="a"), api.NodeProto()]},
    "mixed": lambda api: {"node": ({"name": "a"}, api.NodeProto(name="b"))},
    "generator": lambda api: {"node": counted([{"name": "a"}])},
    "list of a message": lambda api: {"node": api.GraphProto(node=[{"name": "a"}]).node},
    "list of another class": lambda api: {"node": api.GraphProto(input=[{"name": "a"}]).input},
    "one dict": lambda api: {"node": {"name": "x"}},
    "one message": lambda api: {"node": api.NodeProto()},
    "None element": lambda api: {"node": [None]},
    "scalar": lambda api: {"node": [1]},
    "text": lambda api: {"node": "ab"},
    "bad dict": lambda api: {"node": [{"name": "a"}, {"nope": 1}]},
    "bad dict value": lambda api: {"node": [{"name": 1}]},
    "nested": lambda api: {"node": [{"attribute": [{"g": {"node": [{"input": ["x", "y"]}]}}]}]},
    "failing": lambda api: {"node": failing([{"name": "a"}])},
    "empty": lambda api: {"node": []},
}
BLOCK: dict[str, Callable[[Api], dict[str, Any]]] = {
    "one member": lambda api: {"key": {"name": "a"}},
    "both members": lambda api: {"key": {"name": "a"}, "encoded_key": {"name": "b"}},
    "the other order": lambda api: {"encoded_key": {"name": "b"}, "key": {"name": "a"}},
    "second is None": lambda api: {"key": {}, "encoded_key": None},
}
ALL = [
    (cls, name, make)
    for cls, table in (
        ("TensorProto", TENSOR),
        ("GraphProto", GRAPH),
        ("PagedCacheBlockProto", BLOCK),
    )
    for name, make in table.items()
]


@pytest.mark.parametrize(("cls", "case", "make"), ALL, ids=[f"{c}-{n}" for c, n, _ in ALL])
def test_keywords(
    protobuf: Api, ours: Api, cls: str, case: str, make: Callable[[Api], dict[str, Any]]
) -> None:
    def construct(api: Api) -> Any:
        message = api.cls(cls)(**make(api))
        return message, [(plain(v)) for _, v in message.ListFields()]

    assert outcome(ours, construct) == outcome(protobuf, construct), case

    if cls == "GraphProto":  # the same keywords reach a new element

        def add(api: Api) -> Any:
            function = api.FunctionProto(node=[{"name": "before"}])
            try:
                function.node.add(attribute=[{"g": make(api)}])
            except Exception:
                assert len(function.node) == 1  # nothing half built
                raise
            return function

        assert outcome(ours, add) == outcome(protobuf, add), case


@pytest.mark.parametrize("name", class_names())
def test_every_field_by_keyword(protobuf: Api, ours: Api, name: str) -> None:
    rng = random.Random(name)
    for _ in range(5):
        theirs = random_message(name, rng, 1)
        fields = [f.name for f, _ in theirs.ListFields()]
        mine = ours.cls(name).FromString(theirs.SerializeToString())
        built = ours.cls(name)(**{f: getattr(mine, f) for f in fields})
        assert built.SerializeToString() == theirs.SerializeToString()
        lists = {
            f.name: list(getattr(mine, f.name)) for f in descriptor(name).fields if f.is_repeated
        }
        rest = {f: getattr(mine, f) for f in fields if f not in lists}
        assert ours.cls(name)(**rest, **lists).SerializeToString() == theirs.SerializeToString()


def test_mappings_that_are_no_dict(ours: Api) -> None:
    proxy = types.MappingProxyType({"begin": 3})
    assert ours.TensorProto(segment=proxy).segment.begin == 3
    for wrong in ("begin", b"", [("begin", 1)], {"begin"}):
        with pytest.raises(TypeError):
            ours.TensorProto(segment=wrong)


def test_one_positional_message_is_copied(ours: Api) -> None:
    tensor = ours.TensorProto(name="t", dims=[1], raw_data=b"x" * 100)
    copy = ours.TensorProto(tensor)
    tensor.dims.append(2)
    assert list(copy.dims) == [1]
    both = ours.TensorProto(tensor, name="other", dims=[7])
    assert both.name == "other"
    assert list(both.dims) == [1, 2, 7]  # as a merge
    for wrong in ((None,), (1,), ({},), (ours.NodeProto(),), (tensor, tensor), (b"",)):
        with pytest.raises(TypeError):
            ours.TensorProto(*wrong)
    with pytest.raises(TypeError):
        ours.TensorProto.Segment(tensor)


def test_positional_arguments_are_refused_by_protobuf(protobuf: Api) -> None:
    """The difference that the contract names."""
    with pytest.raises(TypeError):
        protobuf.TensorProto(protobuf.TensorProto())


def test_a_message_given_to_a_constructor_is_copied(api: Api) -> None:
    segment = api.TensorProto.Segment(begin=1)
    tensor = api.TensorProto(segment=segment)
    segment.begin = 2
    assert tensor.segment.begin == 1
    assert tensor.segment is not segment
    node = api.NodeProto(name="a")
    graph = api.GraphProto(node=[node, node])
    node.name = "b"
    assert [n.name for n in graph.node] == ["a", "a"]
    assert graph.node[0] is not graph.node[1]


def test_an_iterator_that_looks_around(api: Api) -> None:
    """Values made while a constructor runs may use other messages, and fail at any point."""
    other = api.GraphProto()

    def nodes() -> Iterator[Any]:
        for i in range(50):
            other.node.add(name=str(i))
            yield other.node[-1]
            other.node[-1].name = "changed"

    graph = api.GraphProto(node=nodes(), name="g")
    assert [n.name for n in graph.node] == [str(i) for i in range(50)]
    for count in range(5):
        with pytest.raises(LookupError):
            api.GraphProto(node=failing([other.node[0]] * count))


def test_set_in_parent(api: Api) -> None:
    block = api.PagedCacheBlockProto()
    block.key.SetInParent()
    assert block.SerializeToString() == b"\x1a\x00"
    block.encoded_key.affine.scale.SetInParent()
    assert block.SerializeToString() == b"\x2a\x04\x0a\x02\x12\x00"
    block.SetInParent()  # nothing above it
    block.key.SetInParent()
    assert block.WhichOneof("key_payload") == "key"


def test_discard_unknown_fields(api: Api) -> None:
    unknown = b"\xf8\x01\x05"
    inner = b"\x10\x01" + unknown
    data = b"\x08\x01\x1a" + bytes([len(inner)]) + inner + unknown
    block = api.PagedCacheBlockProto.FromString(data)
    key = block.key
    assert block.SerializeToString() == data
    block.DiscardUnknownFields()
    assert block.SerializeToString() == b"\x08\x01\x1a\x02\x10\x01"
    assert block.key is key
    graph = api.GraphProto.FromString(b"\x0a\x03" + unknown + b"\x0a\x00")
    graph.DiscardUnknownFields()
    assert graph.SerializeToString() == b"\x0a\x00\x0a\x00"
    api.PagedCacheBlockProto().key.DiscardUnknownFields()  # an unset one


def test_is_initialized(api: Api) -> None:
    assert api.ModelProto().IsInitialized() is True
    assert api.ModelProto(graph={}).graph.IsInitialized() is True


def test_list_fields(protobuf: Api, ours: Api) -> None:
    def listed(api: Api) -> Any:
        block = api.PagedCacheBlockProto(value={"name": "v"}, start=0, encoded_key={})
        block.value.dims.extend([])
        names = [f if api.is_ours else f.name for f, _ in block.ListFields()]
        assert block.ListFields()[1][1] is block.value  # the handles themselves
        return names, [v for _, v in block.ListFields()]

    assert outcome(ours, listed) == outcome(protobuf, listed)
