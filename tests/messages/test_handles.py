"""Handles of messages: identity, stubs, detachment, and copies between relatives."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from message_apis import Api

from onnx_light import PagedCache, _core
from onnx_light.onnx import (
    AttributeProto,
    ModelProto,
    PagedCacheBlockProto,
    check_model,
    to_array,
)


def block(api: Api, **fields: Any) -> Any:
    return api.PagedCacheBlockProto(**fields)


# ---------------------------------------------------------------------------------------------
# Identity and stubs


def test_one_handle_while_it_is_held(api: Api) -> None:
    graph = api.GraphProto(node=[{"name": "a"}], input=[{"type": {"tensor_type": {}}}])
    value = block(api)
    pairs: list[Callable[[], Any]] = [
        lambda: value.key,
        lambda: value.key.segment,
        lambda: value.key.dims,
        lambda: graph.node,
        lambda: graph.node[0],
        lambda: graph.input[0].type.tensor_type,
    ]
    for get in pairs:
        held = get()
        assert get() is held
    held = value.key
    value.length = 3
    assert value.key is held
    held.name = "x"
    assert value.key is held
    assert value.add_key() is value.key if api.is_ours else True
    again = api.PagedCacheBlockProto.FromString(value.SerializeToString())
    assert again.key is not value.key


def test_reading_never_sets(api: Api) -> None:
    model = api.ModelProto()
    assert model.graph.name == ""
    assert list(model.graph.node) == []
    assert not model.graph.HasField("name")
    assert model.graph.ByteSize() == 0
    assert str(model.graph) == ""
    assert model.graph == api.GraphProto()
    assert model.graph.ListFields() == []
    assert model.graph.IsInitialized()
    assert model.SerializeToString() == b""
    assert not model.HasField("graph")


READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "to_array": ("t", to_array),
    "from_proto": ("t", PagedCache.from_proto),
    "check_model": ("g", check_model),
    "tensor_layout": ("t", _core.tensor_layout),
    "read_cache_type": ("tp", lambda m: _core.read_cache_type(m, ModelProto(), "")),
    "payload": ("t", lambda m: m.payload("raw_data")),
    "copy": ("g", copy.deepcopy),
    "pickle": ("g", pickle.dumps),
    "to_onnx": ("t", lambda m: m.to_onnx()),
    "SerializeToOstream": ("g", lambda m: m.SerializeToOstream(io.BytesIO())),
}


@pytest.mark.parametrize("name", READERS)
def test_functions_that_read_never_set(name: str) -> None:
    field, read = READERS[name]
    attribute = AttributeProto()
    with contextlib.suppress(TypeError, ValueError):
        read(getattr(attribute, field))
    assert attribute.SerializeToString() == b""
    block_ = PagedCacheBlockProto(encoded_key={"name": "kept"})
    with contextlib.suppress(TypeError, ValueError):
        read(block_.key)
    assert block_.encoded_key.name == "kept"


WRITES: dict[str, Callable[[Any], Any]] = {
    "scalar": lambda m: setattr(m, "denotation", "d"),
    "default": lambda m: setattr(m, "denotation", ""),
    "SetInParent": lambda m: m.SetInParent(),
    "add": lambda m: m.tensor_type.shape.dim.add(),
    "add with a wrong keyword": lambda m: refused(m.tensor_type.shape.dim.add, nope=1),
    "merge nothing": lambda m: m.MergeFrom(type(m)()),
    "merge": lambda m: m.MergeFrom(type(m)(denotation="d")),
    "merge bytes": lambda m: m.MergeFromString(b"\x32\x01d"),
    "merge no bytes": lambda m: m.MergeFromString(b""),
    "parse": lambda m: m.ParseFromString(b"\x32\x01d"),
    "parse nothing": lambda m: m.ParseFromString(b""),
    "copy": lambda m: m.CopyFrom(type(m)(denotation="d")),
    "copy nothing": lambda m: m.CopyFrom(type(m)()),
    "copy itself": lambda m: m.CopyFrom(m),
    "wrong copy": lambda m: refused(m.CopyFrom, 1),
    "Clear": lambda m: m.Clear(),
    "ClearField": lambda m: m.ClearField("denotation"),
    "ClearField of a oneof": lambda m: m.ClearField("value"),
    "DiscardUnknownFields": lambda m: m.DiscardUnknownFields(),
}


def refused(function: Callable[..., Any], *args: Any, **keywords: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        function(*args, **keywords)


@pytest.mark.parametrize("name", WRITES)
def test_writing_sets_all_parents(protobuf: Api, ours: Api, name: str) -> None:
    def run(api: Api) -> Any:
        root = api.TypeProto()
        WRITES[name](root.optional_type.elem_type.sequence_type.elem_type)
        return root.SerializeToString()

    assert run(ours) == run(protobuf)


def test_a_refused_value_sets_no_parents(ours: Api) -> None:
    """protobuf sets them before it looks at the value."""
    for value in (1, b"\xff", "\ud800", None):
        root = ours.TypeProto()
        refused(setattr, root.optional_type.elem_type, "denotation", value)
        assert root.SerializeToString() == b""


def test_stubs_stay_the_handles_of_what_they_become(api: Api) -> None:
    root = api.TypeProto()
    chain = [root]
    for _ in range(20):
        chain.append(chain[-1].optional_type.elem_type)
    chain[-1].denotation = "deep"
    for outer, inner in itertools.pairwise(chain):
        assert outer.HasField("optional_type")
        assert outer.optional_type.HasField("elem_type")
        assert outer.optional_type.elem_type is inner
    assert chain[-1].denotation == "deep"


def test_two_branches_of_stubs(api: Api) -> None:
    model = api.ModelProto()
    graph, function = model.graph, model.training_info.add()
    names, nodes = graph.name, graph.node
    first = graph.node
    assert names == ""
    nodes.add(name="a")
    assert model.HasField("graph")
    assert graph.node is first
    function.initialization.node.add(name="b")
    assert model.training_info[0].HasField("initialization")


def test_a_stub_switches_the_oneof(api: Api) -> None:
    value = block(api)
    key, encoded = value.key, value.encoded_key
    key.name = "k"
    assert value.WhichOneof("key_payload") == "key"
    encoded.name = "e"
    assert value.WhichOneof("key_payload") == "encoded_key"
    assert value.encoded_key is encoded
    assert not value.HasField("key")
    assert value.key is not key
    assert key.name == "k"  # detached with its content
    key.name = "free"
    assert value.WhichOneof("key_payload") == "encoded_key"
    value.key.SetInParent()
    assert encoded.name == "e"
    assert value.key.name == ""


def test_a_list_below_a_stub_switches_the_oneof(api: Api) -> None:
    value = block(api, encoded_key={"name": "e"})
    dims = value.key.dims
    assert value.WhichOneof("key_payload") == "encoded_key"
    dims.append(3)
    assert value.WhichOneof("key_payload") == "key"
    assert list(value.key.dims) == [3]


def test_a_scalar_member_switches_the_oneof(api: Api) -> None:
    struct = api.StructTypeProto(array={"dimension": 3})
    array = struct.array
    struct.type_ref = 0
    assert struct.WhichOneof("kind") == "type_ref"
    assert array.dimension == 3
    assert not struct.HasField("array")
    struct.array.dimension = 4
    assert not struct.HasField("type_ref")
    assert struct.type_ref == 0
    assert array.dimension == 3


# ---------------------------------------------------------------------------------------------
# Detachment

DETACHERS: dict[str, Callable[[Any], Any]] = {
    "Clear": lambda m: m.Clear(),
    "ClearField": lambda m: m.ClearField("key"),
    "ClearField of the oneof": lambda m: m.ClearField("key_payload"),
    "ParseFromString": lambda m: m.ParseFromString(b"\x1a\x04\x42\x02ot"),
    "ParseFromString empty": lambda m: m.ParseFromString(b""),
    "CopyFrom": lambda m: m.CopyFrom(type(m)(key={"name": "other"})),
    "CopyFrom empty": lambda m: m.CopyFrom(type(m)(start=1)),
    "CopyFrom another member": lambda m: m.CopyFrom(type(m)(encoded_key={})),
    "oneof switch": lambda m: m.encoded_key.SetInParent(),
    "oneof switch by parse": lambda m: m.MergeFromString(b"\x2a\x00"),
    "oneof switch by merge": lambda m: m.MergeFrom(type(m)(encoded_key={})),
}


@pytest.mark.parametrize("name", DETACHERS)
def test_old_handles_keep_their_content(api: Api, name: str) -> None:
    value = block(api, key={"name": "k", "segment": {"begin": 1}, "dims": [1, 2]})
    key, segment, dims = value.key, value.key.segment, value.key.dims
    DETACHERS[name](value)
    after = value.SerializeToString()
    assert value.key is not key
    assert key.name == "k"
    assert key.segment is segment
    assert key.dims is dims
    key.name = "changed"
    segment.begin = 5
    dims.append(3)
    key.string_data.append(b"new")
    assert value.SerializeToString() == after
    del value
    assert list(key.dims) == [1, 2, 3]
    assert key.segment.begin == 5
    again = type(key).FromString(key.SerializeToString())
    assert again == key


@pytest.mark.parametrize("name", DETACHERS)
def test_old_stubs_are_detached_or_bound(protobuf: Api, ours: Api, name: str) -> None:
    """A stub of what was not set: what happens to it is protobuf's choice."""

    def run(api: Api) -> Any:
        value = block(api)
        key, dims = value.key, value.key.dims
        DETACHERS[name](value)
        same = value.key is key
        before = value.SerializeToString()
        dims.append(7)
        key.name = "stub"
        return same, before, value.SerializeToString(), key.SerializeToString()

    assert run(ours) == run(protobuf)


ELEMENT_DETACHERS: dict[str, Callable[[Any], Any]] = {
    "del": lambda g: g.node.__delitem__(0),
    "del slice": lambda g: g.node.__delitem__(slice(None)),
    "pop": lambda g: g.node.pop(0),
    "remove": lambda g: g.node.remove(g.node[0]),
    "clear": lambda g: g.node.clear(),
    "ClearField": lambda g: g.ClearField("node"),
    "Clear": lambda g: g.Clear(),
    "parse": lambda g: g.ParseFromString(b""),
    "CopyFrom": lambda g: g.CopyFrom(type(g)(name="other")),
}


@pytest.mark.parametrize("name", ELEMENT_DETACHERS)
def test_elements_that_are_taken_out(api: Api, name: str) -> None:
    graph = api.GraphProto(node=[{"name": "a", "attribute": [{"t": {"dims": [1]}}]}, {"name": "b"}])
    node, tensor = graph.node[0], graph.node[0].attribute[0].t
    ELEMENT_DETACHERS[name](graph)
    after = graph.SerializeToString()
    assert node not in list(graph.node)
    node.name = "free"
    tensor.dims.append(2)
    node.attribute.add(name="x")
    assert graph.SerializeToString() == after
    del graph
    assert list(node.attribute[0].t.dims) == [1, 2]
    assert node.attribute[0].t is tensor
    assert node.attribute[1].name == "x"


def test_add_on_a_set_field_makes_a_new_value(ours: Api) -> None:
    value = block(ours, key={"name": "old"})
    old = value.key
    new = value.add_key()
    assert new is value.key
    assert new is not old
    assert (old.name, new.name) == ("old", "")
    assert value.has_key()
    old.name = "free"
    assert value.SerializeToString() == b"\x1a\x00"
    stub = value.encoded_key
    added = value.add_encoded_key()
    assert value.encoded_key is added
    assert not value.has_key()
    stub.name = "whatever"  # bound to the new value or detached, but alive
    assert value.add_value() is value.value


def test_assigning_replaces_the_content_of_a_handle(ours: Api) -> None:
    value = block(ours, key={"name": "k", "dims": [1]})
    held, dims = value.key, value.key.dims
    value.key = ours.TensorProto(name="new")
    assert value.key.SerializeToString() == b"\x42\x03new"
    assert list(dims) == [1]
    value.encoded_key = ours.EncodedValueProto(name="e")
    assert value.WhichOneof("key_payload") == "encoded_key"
    value.key = value.key
    assert value.WhichOneof("key_payload") == "key"
    assert held is not None


def test_merging_binds_stubs(api: Api) -> None:
    for merge in (
        lambda m: m.MergeFromString(b"\x1a\x05\x42\x01k\x08\x01"),
        lambda m: m.MergeFrom(type(m)(key={"name": "k", "dims": [1]})),
    ):
        value = block(api)
        key, dims = value.key, value.key.dims
        merge(value)
        assert value.key is key
        assert value.key.dims is dims
        assert key.name == "k"
        dims.append(2)
        assert list(value.key.dims) == [1, 2]


def test_handles_outlive_everything(api: Api) -> None:
    def inner() -> list[Any]:
        model = api.ModelProto()
        node = model.graph.node.add(name="n")
        attribute = node.attribute.add(name="a")
        attribute.t.raw_data = b"r" * 10_000
        return [attribute.t, attribute.ints, node.input, model.metadata_props, attribute.g.node]

    tensor, ints, inputs, props, nodes = inner()
    gc.collect()
    ints.extend(range(1000))
    inputs.append("x")
    props.add(key="k")
    nodes.add(name="below")
    assert tensor.raw_data == b"r" * 10_000
    assert (len(ints), list(inputs), props[0].key, nodes[0].name) == (1000, ["x"], "k", "below")
