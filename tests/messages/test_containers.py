"""Repeated fields as containers: the operations that protobuf's have, and those of a list."""

from __future__ import annotations

import collections.abc
import copy
import operator
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_apis import Api, outcome

# Class, field, and an element for a small number.
KINDS: dict[str, tuple[str, str, Callable[[Api, int], Any]]] = {
    "int64": ("TensorProto", "dims", lambda api, i: i),
    "float": ("TensorProto", "float_data", lambda api, i: i / 4),
    "string": ("NodeProto", "input", lambda api, i: "é" * i),
    "bytes": ("TensorProto", "string_data", lambda api, i: b"x" * 30 * i),
    "message": ("GraphProto", "node", lambda api, i: api.NodeProto(name=str(i))),
}
SCALAR_KINDS = [k for k in KINDS if k != "message"]


def container(api: Api, kind: str, numbers: list[int]) -> Any:
    cls, field, element = KINDS[kind]
    message = api.cls(cls)()
    getattr(message, field).extend(element(api, n) for n in numbers)
    return getattr(message, field)


Operation = Callable[[Any, Callable[[int], Any]], Any]
# On a container of the elements 3, 1, 4, 1, 5, 2; `e` makes elements.
COMMON: dict[str, Operation] = {
    "append": lambda c, e: c.append(e(9)),
    "append nothing": lambda c, e: c.append(None),
    "append two": lambda c, e: c.append(e(1), e(2)),
    "append wrong": lambda c, e: c.append(object()),
    "extend": lambda c, e: c.extend([e(7), e(8)]),
    "extend tuple": lambda c, e: c.extend((e(7),)),
    "extend empty": lambda c, e: c.extend([]),
    "extend generator": lambda c, e: c.extend(e(i) for i in range(3)),
    "extend itself": lambda c, e: c.extend(c[:]),
    "extend number": lambda c, e: c.extend(1),
    "extend None": lambda c, e: c.extend(None),
    "extend None inside": lambda c, e: c.extend([None]),
    "extend wrong at the end": lambda c, e: c.extend([e(1), object()]),
    "extend failing": lambda c, e: c.extend(failing(e, 2)),
    "extend and clear": lambda c, e: c.extend(clearing(c, e)),
    "extend and append": lambda c, e: c.extend(growing(c, e)),
    **{f"insert {i}": lambda c, e, i=i: c.insert(i, e(9)) for i in (0, 1, 5, 6, 7, 99)},
    **{f"insert {i}": lambda c, e, i=i: c.insert(i, e(9)) for i in (-1, -6, -7, -99)},
    "insert at text": lambda c, e: c.insert("x", e(9)),
    "insert at float": lambda c, e: c.insert(1.0, e(9)),
    "insert wrong": lambda c, e: c.insert(0, object()),
    "insert None": lambda c, e: c.insert(0, None),
    "pop": lambda c, e: c.pop(),
    **{f"pop {i}": lambda c, e, i=i: c.pop(i) for i in (0, 2, 5, -1, -6)},
    "pop until empty": lambda c, e: [c.pop() for _ in range(7)],
    "pop text": lambda c, e: c.pop("x"),
    "remove": lambda c, e: c.remove(e(1)),
    "remove missing": lambda c, e: c.remove(e(77)),
    "remove wrong": lambda c, e: c.remove(object()),
    "clear": lambda c, e: c.clear(),
    "reverse": lambda c, e: c.reverse(),
    "sort by key": lambda c, e: c.sort(key=lambda x: str(x)),
    "sort reverse": lambda c, e: c.sort(key=lambda x: str(x), reverse=True),
    "sort failing": lambda c, e: c.sort(key=lambda x: 1 / 0),
    "sort positional": lambda c, e: c.sort(str),
    "sort wrong keyword": lambda c, e: c.sort(nope=1),
    "len": lambda c, e: len(c),
    "bool": lambda c, e: bool(c),
    "iterate": lambda c, e: list(c),
    "reversed": lambda c, e: list(reversed(c)),
    "in": lambda c, e: [e(5) in c, e(77) in c, object() in c, None in c],
    "iterate and append": lambda c, e: [c.append(x) for x in c if len(c) < 20],
    "iterate and clear": lambda c, e: [c.clear() for _ in c],
    "iterate and pop": lambda c, e: [(x, c.pop())[0] for x in c],
    "MergeFrom": lambda c, e: c.MergeFrom(type_of(c)([e(7)], c)),
    "== list": lambda c, e: [c == [e(i) for i in n] for n in ((3, 1, 4, 1, 5, 2), (3,), ())],
    "!= list": lambda c, e: [c != [e(i) for i in n] for n in ((3, 1, 4, 1, 5, 2), (3,), ())],
    "list ==": lambda c, e: [[e(i) for i in (3, 1, 4, 1, 5, 2)] == c, c == []],
    "== others": lambda c, e: [c == 1, c == "x", c == None, c == (), c == {}],  # noqa: E711
    "== itself": lambda c, e: [c == c, c != c],
    "<": lambda c, e: c < c,
    "hash": lambda c, e: hash(c),
    "deepcopy": lambda c, e: copy.deepcopy(c),
    "repr": lambda c, e: repr(c),
    "str": lambda c, e: str(c),
    "plus": lambda c, e: c + c,
    "times": lambda c, e: c * 2,
    **{f"get {i}": lambda c, e, i=i: c[i] for i in (0, 5, -1, -6, 6, -7, 99)},
    "get huge": lambda c, e: outcome_kind(lambda: c[2**70]),
    "get text": lambda c, e: c["x"],
    "get float": lambda c, e: c[1.0],
    "get None": lambda c, e: c[None],
    "get numpy": lambda c, e: c[np.int64(2)],
    "get bool": lambda c, e: c[True],
    **{f"del {i}": lambda c, e, i=i: operator.delitem(c, i) for i in (0, 5, -1, -6, 6, -7)},
    "del text": lambda c, e: operator.delitem(c, "x"),
}
SLICES = [
    slice(*s)
    for s in (
        *((None,), (0,), (3,), (99,), (1, 4), (4, 1), (-2, None), (None, -2), (-99, 99)),
        *(
            (None, None, 2),
            (None, None, -1),
            (None, None, 3),
            (4, 0, -2),
            (1, 99, 2),
            (5, None, -9),
        ),
        *((3, 3), (6, 6), (2, 2, -1), (None, None, 100), (0, 6, 6), (-1, -99, -3)),
    )
]
for each in SLICES:
    text = f"[{each.start}:{each.stop}:{each.step}]"
    COMMON[f"get {text}"] = lambda c, e, s=each: c[s]
    COMMON[f"del {text}"] = lambda c, e, s=each: operator.delitem(c, s)
    for count in (0, 1, 2, 3, 6, 8):
        COMMON[f"set {text} of {count}"] = lambda c, e, s=each, n=count: operator.setitem(
            c, s, [e(10 + i) for i in range(n)]
        )
COMMON |= {
    "get step 0": lambda c, e: c[::0],
    "set step 0": lambda c, e: operator.setitem(c, slice(None, None, 0), []),
    "get slice of text": lambda c, e: c["a":"b"],
    "set slice of wrong": lambda c, e: operator.setitem(c, slice(1, 3), [e(1), object()]),
    "set slice of number": lambda c, e: operator.setitem(c, slice(1, 3), 5),
    "set slice failing": lambda c, e: operator.setitem(c, slice(1, 3), failing(e, 2)),
    "set slice of generator": lambda c, e: operator.setitem(c, slice(1, 3), (e(i) for i in (7, 8))),
    **{f"set {i}": lambda c, e, i=i: operator.setitem(c, i, e(9)) for i in (0, 5, -1, -6, 6, -7)},
    "set wrong": lambda c, e: operator.setitem(c, 0, object()),
    "set at text": lambda c, e: operator.setitem(c, "x", e(1)),
}


def outcome_kind(function: Callable[[], Any]) -> str:
    """protobuf has a TypeError for an index over 64 bits, a list an IndexError: either will do."""
    with pytest.raises((IndexError, TypeError)):
        function()
    return "refused"


def failing(e: Callable[[int], Any], count: int) -> Iterator[Any]:
    for i in range(count):
        yield e(20 + i)
    raise LookupError("mine")


def clearing(c: Any, e: Callable[[int], Any]) -> Iterator[Any]:
    yield e(20)
    c.clear()
    yield e(21)
    del c[:]
    yield e(22)


def growing(c: Any, e: Callable[[int], Any]) -> Iterator[Any]:
    for i in range(10):
        c.append(e(30 + i))
        c.insert(0, e(40 + i))
        yield e(50 + i)


def type_of(c: Any) -> Callable[[list[Any], Any], Any]:
    """Makes a container of the same type as `c` with other elements."""

    def make(elements: list[Any], like: Any) -> Any:
        made = copy.deepcopy(like)
        made.clear()
        made.extend(elements)
        return made

    return make


@pytest.mark.filterwarnings("ignore:pop index out of range:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COMMON)
def test_as_protobuf(protobuf: Api, ours: Api, kind: str, name: str) -> None:
    def run(api: Api) -> Any:
        c = container(api, kind, [3, 1, 4, 1, 5, 2])
        element = KINDS[kind][2]
        result = outcome(api, lambda a: COMMON[name](c, lambda i: element(a, i)))
        return result, c

    got, want = outcome(ours, run), outcome(protobuf, run)
    if kind == "message" and name.startswith("set "):
        # Refused whatever the index is; protobuf looks at that first.
        assert got[1][0] == ("error", "TypeError")
        assert want[1][0][0] == "error"
        got, want = got[1][1], want[1][1]
    assert got == want


# ---------------------------------------------------------------------------------------------
# What a list has and protobuf's containers lack


@pytest.mark.parametrize("kind", KINDS)
def test_pop_out_of_range(ours: Api, kind: str) -> None:
    """protobuf pops the last element and warns that this will change."""
    c = container(ours, kind, [1, 2])
    for index in (2, -3, 99, 2**70):
        with pytest.raises(IndexError):
            c.pop(index)
    assert len(c) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_index_and_count(ours: Api, kind: str) -> None:
    numbers = [3, 1, 4, 1, 5]
    c = container(ours, kind, numbers)
    element = KINDS[kind][2]
    for n in (3, 1, 4, 5, 9):
        assert c.count(element(ours, n)) == numbers.count(n)
        for bounds in ((), (1,), (2,), (-2,), (0, 2), (2, -1), (-99, 99), (5,)):
            try:
                want = numbers.index(n, *bounds)
            except ValueError:
                with pytest.raises(ValueError, match="not in"):
                    c.index(element(ours, n), *bounds)
            else:
                assert c.index(element(ours, n), *bounds) == want
    assert c.count(object()) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_in_place_addition(api: Api, kind: str) -> None:
    """It would change the list, and then fail to assign it to the field."""
    cls, field, element = KINDS[kind]
    message = api.cls(cls)()
    c = getattr(message, field)
    with pytest.raises(TypeError):
        c += [element(api, 1)]
    assert len(getattr(message, field)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_extending_with_itself(ours: Api, kind: str) -> None:
    """With a list of messages protobuf does not end."""
    element = KINDS[kind][2]
    for grow in (lambda c: c.extend(c), lambda c: c.MergeFrom(c), lambda c: c.extend(iter(c[:]))):
        c = container(ours, kind, [1, 2])
        grow(c)
        assert c == [element(ours, n) for n in (1, 2, 1, 2)]


@pytest.mark.parametrize("kind", SCALAR_KINDS)
@pytest.mark.parametrize("where", SLICES, ids=str)
def test_assigning_a_list_to_its_own_slice(ours: Api, kind: str, where: slice) -> None:
    """As a list does; protobuf reads what it has just written."""
    numbers = [3, 1, 4, 1, 5, 2]
    c, model = container(ours, kind, numbers), list(numbers)
    try:
        model[where] = model
    except ValueError:
        with pytest.raises(ValueError, match="size"):
            c[where] = c
    else:
        c[where] = c
    assert c == [KINDS[kind][2](ours, n) for n in model]


@pytest.mark.parametrize("kind", KINDS)
def test_registered_as_a_sequence(api: Api, kind: str) -> None:
    assert isinstance(container(api, kind, []), collections.abc.MutableSequence)


@pytest.mark.parametrize("kind", KINDS)
def test_copies(ours: Api, kind: str) -> None:
    c = container(ours, kind, [1, 2])
    made = copy.deepcopy(c)
    assert made == c
    assert type(made) is type(c)
    made.pop()
    assert len(c) == 2
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(c)


def test_a_container_cannot_be_made(api: Api) -> None:
    for c in (api.TensorProto().dims, api.GraphProto().node):
        with pytest.raises((TypeError, RuntimeError)):
            type(c)()


@given(
    st.lists(st.integers(0, 9), max_size=8),
    st.slices(8),
    st.lists(st.integers(10, 19), max_size=8),
    st.sampled_from(sorted(KINDS)),
)
@settings(max_examples=400, deadline=None)
def test_slices_as_a_list(
    ours: Api, numbers: list[int], where: slice, new: list[int], kind: str
) -> None:
    element = KINDS[kind][2]
    c, model = container(ours, kind, numbers), list(numbers)
    assert c[where] == [element(ours, n) for n in model[where]]
    if kind != "message":
        try:
            model[where] = new
        except ValueError:
            with pytest.raises(ValueError, match="size"):
                c[where] = [element(ours, n) for n in new]
        else:
            c[where] = [element(ours, n) for n in new]
        assert c == [element(ours, n) for n in model]
    del model[where], c[where]
    assert c == [element(ours, n) for n in model]
