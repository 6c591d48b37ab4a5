"""Lists in messages: of unset ones, of ones that are gone, and their elements."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from message_apis import Api
from test_containers import COMMON, KINDS, container


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "string"])
def test_of_an_unset_message(api: Api, kind: str) -> None:
    """A list below an unset message: reading does not set it, writing does."""
    cls, field, element = KINDS[kind]
    outer, path = {
        "TensorProto": ("SparseTensorProto", "values"),
        "GraphProto": ("ModelProto", "graph"),
    }[cls]
    message = api.cls(outer)()
    c = getattr(getattr(message, path), field)
    assert len(c) == 0
    assert list(c) == []
    assert c == []
    assert not c
    with pytest.raises(IndexError):
        c[0]
    assert not message.HasField(path)
    c.append(element(api, 3))
    assert message.HasField(path)
    assert getattr(getattr(message, path), field) is c
    assert getattr(getattr(message, path), field)[0] == element(api, 3)


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("clear", False),
        ("sort by key", False),
        ("reverse", True),
        ("extend empty", True),
        ("append", True),
        ("insert 0", True),
        ("del [None:None:None]", True),
        ("set [None:None:None] of 0", True),
    ],
)
def test_writing_to_a_list_of_an_unset_message(api: Api, name: str, sets: bool) -> None:
    message = api.SparseTensorProto()
    COMMON[name](message.values.dims, lambda i: i)
    assert message.HasField("values") == sets


@pytest.mark.parametrize("kind", KINDS)
def test_outlives_its_message(api: Api, kind: str) -> None:
    cls, field, element = KINDS[kind]
    for forget in (
        lambda m: m.Clear(),
        lambda m: m.ClearField(field),
        lambda m: m.ParseFromString(b""),
        lambda m: m.CopyFrom(type(m)()),
        lambda m: None,
    ):
        message = api.cls(cls)()
        c = getattr(message, field)
        c.extend(element(api, n) for n in (1, 2))
        forget(message)
        fresh = getattr(message, field)
        if message.ByteSize() == 0:
            assert fresh is not c
            assert len(fresh) == 0
        del message, fresh
        assert c == [element(api, 1), element(api, 2)]
        c.append(element(api, 3))
        del c[0]
        assert c == [element(api, 2), element(api, 3)]


def test_elements_keep_their_identity(api: Api) -> None:
    graph = api.GraphProto(node=[{"name": c} for c in "cab"])
    held = list(graph.node)
    assert all(a is b for a, b in zip(held, graph.node, strict=True))
    graph.node.sort(key=lambda n: n.name)
    assert [n.name for n in held] == ["c", "a", "b"]
    assert graph.node[0] is held[1]
    graph.node.reverse()
    assert graph.node[0] is held[0]
    graph.node.insert(0, api.NodeProto(name="new"))
    assert graph.node[1] is held[0]
    taken = graph.node.pop(1)
    assert taken is held[0]
    taken.name = "free"
    assert [n.name for n in graph.node] == ["new", "b", "a"]
    del graph.node[1:]
    assert [n.name for n in held] == ["free", "a", "b"]
    graph.node.append(held[1])
    assert graph.node[-1] is not held[1]
    element = graph.node.add(name="added", input=["x"])
    assert element is graph.node[-1]


@pytest.mark.parametrize("positional", [(None,), (1,), ({},)])
def test_add_takes_keywords_only(api: Api, positional: tuple[Any, ...]) -> None:
    graph = api.GraphProto()
    with pytest.raises(TypeError):
        graph.node.add(*positional)
    assert len(graph.node) == 0
    assert not hasattr(api.TensorProto().dims, "add")


def test_sort_that_changes_the_list(ours: Api) -> None:
    for kind in KINDS:
        for change in (lambda c: c.clear(), lambda c: c.append(c[0]), lambda c: c.pop()):
            c = container(ours, kind, [3, 1, 2])

            def key(x: Any, c: Any = c, change: Any = change) -> int:
                if len(c) in (1, 2, 3):
                    change(c)
                return 0

            with contextlib.suppress(ValueError, IndexError):
                c.sort(key=key)
            assert len(list(c)) == len(c) <= 4
