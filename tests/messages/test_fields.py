"""Fields of messages: what may be assigned, presence, defaults, oneofs, names, construction."""

from __future__ import annotations

import enum
import fractions
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from message_apis import Api, class_names, descriptor, outcome, plain

# One field of every scalar kind.
SCALARS = {
    "int64": ("PagedCacheBlockProto", "start"),
    "int32": ("TensorProto", "data_type"),
    "uint64": ("AffineLayoutProto", "block_size"),
    "uint32": ("StructTypeProto.BitPacking.Component", "bit_width"),
    "bool": ("AffineLayoutProto", "signed_storage"),
    "enum": ("AttributeProto", "type"),
    "float": ("AttributeProto", "f"),
    "string": ("NodeProto", "name"),
    "bytes": ("TensorProto", "raw_data"),
    "oneof uint64": ("StructTypeProto", "type_ref"),
    "oneof string": ("TensorShapeProto.Dimension", "dim_param"),
}
LISTS = {
    "int64": ("TensorProto", "dims"),
    "int32": ("TensorProto", "int32_data"),
    "uint64": ("TensorProto", "uint64_data"),
    "float": ("AttributeProto", "floats"),
    "double": ("TensorProto", "double_data"),
    "string": ("NodeProto", "input"),
    "bytes": ("TensorProto", "string_data"),
}


class Number(enum.IntEnum):
    ONE = 1


class Index:
    """An integer by protocol only."""

    def __index__(self) -> int:
        return 3


class Float:
    def __float__(self) -> float:
        return 2.5


class Raises:
    def __index__(self) -> int:
        raise KeyError("mine")

    def __float__(self) -> float:
        raise KeyError("mine")


class Text(str):
    pass


class Octets(bytes):
    pass


VALUES: dict[str, Any] = {
    str(value): value
    for value in (
        *(0, 1, -1, 2, 5, 7, 15, 16, 99, 127, -128),
        *(s * 2**n + d for n in (31, 32, 40, 63, 64) for s in (1, -1) for d in (-1, 0, 1)),
    )
}
VALUES |= {
    "True": True,
    "False": False,
    "None": None,
    "0.0": 0.0,
    "-0.0": -0.0,
    "1.0": 1.0,
    "3.5": 3.5,
    "0.1": 0.1,
    "1e300": 1e300,
    "-1e39": -1e39,
    "3.4028235e38": 3.4028235e38,
    "3.40282357e38": 3.40282357e38,
    "1e-50": 1e-50,
    "inf": float("inf"),
    "nan": float("nan"),
    "1j": 1j,
    "fraction": fractions.Fraction(1, 2),
    "2**1024": 2**1024,
    "IntEnum": Number.ONE,
    "__index__": Index(),
    "__float__": Float(),
    "raises": Raises(),
    **{t.__name__: t(1) for t in (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64)},
    "np.uint64": np.uint64(2**64 - 1),
    "np.int64 min": np.int64(-(2**63)),
    "np.bool_": np.bool_(True),
    "np.float16": np.float16(1),
    "np.float32": np.float32(0.1),
    "np.float64": np.float64(0.1),
    "array()": np.array(3),
    "array() float": np.array(3.5),
    "array([3])": np.array([3]),
    "array([3, 4])": np.array([3, 4]),
    "''": "",
    "text": "text",
    "1 as text": "1",
    "FLOAT": "FLOAT",
    "float in small": "float",
    "umlauts": "äöü",
    "astral": "\U0001d11e",
    "NUL": "a\0b",
    "surrogate": "\ud800",
    "surrogate pair": "\ud834\udd1e",
    "str subclass": Text("sub"),
    "np.str_": np.str_("numpy"),
    "b''": b"",
    "bytes": b"bytes",
    "UTF-8": "äöü".encode(),
    "invalid UTF-8": b"\xff\xfe",
    "overlong UTF-8": b"\xc0\x80",
    "UTF-8 of a surrogate": b"\xed\xa0\x80",
    "bytes subclass": Octets(b"sub"),
    "np.bytes_": np.bytes_(b"numpy"),
    "list": [1],
    "tuple": (),
    "dict": {},
    "object": object(),
    "type": int,
}
# protobuf has an OverflowError for numbers beyond 64 bits into a bool and beyond a double into a
# float; the contract makes every number out of range a ValueError. Either will do.
RANGE = {"OverflowError", "ValueError"}


def same(protobuf: Api, ours: Api, action: Callable[[Api], Any]) -> None:
    want, got = outcome(protobuf, action), outcome(ours, action)
    if want != got and want[0] == got[0] == "error" and want[1] == "OverflowError":
        assert {want[1], got[1]} <= RANGE
        return
    assert got == want


def state(message: Any, field: str) -> Any:
    return getattr(message, field), message.HasField(field), message


def cases(kinds: dict[str, Any]) -> list[tuple[str, str]]:
    """Kinds and values; bytes fields without numpy's, which are buffers and taken only by ours."""
    return [
        (kind, name)
        for kind in kinds
        for name, value in VALUES.items()
        if kind != "bytes" or isinstance(value, bytes | str) or type(value).__module__ != "numpy"
    ]


@pytest.mark.parametrize(("kind", "value"), cases(SCALARS))
def test_assigning(protobuf: Api, ours: Api, kind: str, value: str) -> None:
    name, field = SCALARS[kind]

    def assign(api: Api) -> Any:
        message = api.cls(name)()
        setattr(message, field, VALUES[value])
        return state(message, field)

    same(protobuf, ours, assign)

    def construct(api: Api) -> Any:
        return state(api.cls(name)(**{field: VALUES[value]}), field)

    same(protobuf, ours, construct)


@pytest.mark.parametrize("kind", SCALARS)
def test_a_refused_value_changes_nothing(api: Api, kind: str) -> None:
    name, field = SCALARS[kind]
    message = api.cls(name)()
    for value in (object(), None, 2**64, -(2**64), "\ud800", b"\xff", 3.5):
        before = message.SerializeToString()
        try:
            setattr(message, field, value)
        except (TypeError, ValueError, OverflowError):
            assert message.SerializeToString() == before
    if kind.startswith("oneof"):
        other = "structure" if kind == "oneof uint64" else "dim_value"
        message = api.cls(name)(**{other: {} if other == "structure" else 5})
        with pytest.raises(TypeError):
            setattr(message, field, object())
        assert message.HasField(other)


@pytest.mark.parametrize(("kind", "value"), cases(LISTS))
def test_list_elements(protobuf: Api, ours: Api, kind: str, value: str) -> None:
    name, field = LISTS[kind]

    def append(api: Api) -> Any:
        message = api.cls(name)()
        getattr(message, field).append(VALUES[value])
        return getattr(message, field), message

    same(protobuf, ours, append)

    def assign(api: Api) -> Any:
        message = api.cls(name)()
        filler = {"string": "x", "bytes": b"x"}.get(kind, 1)
        getattr(message, field).extend([filler, filler])
        getattr(message, field)[1] = VALUES[value]
        return getattr(message, field), message

    same(protobuf, ours, assign)


@pytest.mark.parametrize(
    "value",
    [
        bytearray(b"abc"),
        memoryview(b"abc"),
        memoryview(b"abcdef")[:3],
        np.frombuffer(b"abc", np.uint8),
        np.array([1.5, 2.5], np.float32),
        np.zeros((2, 3), np.int64),
    ],
)
def test_bytes_fields_take_contiguous_buffers(ours: Api, value: Any) -> None:
    data = memoryview(value).tobytes()
    message = ours.TensorProto(raw_data=value)
    assert message.raw_data == data
    message = ours.TensorProto()
    message.raw_data = value
    assert message.raw_data == data
    message.string_data.append(value)
    message.string_data.extend([value])
    message.string_data[0] = value
    assert list(message.string_data) == [data, data]
    with pytest.raises(TypeError):
        ours.NodeProto().name = value


def test_bytes_fields_refuse_strided_buffers(ours: Api) -> None:
    message = ours.TensorProto(raw_data=b"kept")
    for value in (memoryview(b"abcdef")[::2], np.arange(6)[::2], np.zeros((2, 3)).T):
        with pytest.raises((BufferError, TypeError, ValueError)):
            message.raw_data = value
        with pytest.raises((BufferError, TypeError, ValueError)):
            message.string_data.append(value)
    assert message.SerializeToString() == ours.TensorProto(raw_data=b"kept").SerializeToString()


def test_a_later_change_of_a_buffer_does_not_show(ours: Api) -> None:
    for size in (3, 5000):
        buffer = bytearray(b"a" * size)
        message = ours.TensorProto(raw_data=buffer)
        message.string_data.append(buffer)
        buffer[0] = 0
        buffer.clear()  # nothing is exported any more
        assert message.raw_data == message.string_data[0] == b"a" * size


@pytest.mark.parametrize("name", class_names())
def test_defaults_and_presence_of_every_field(protobuf: Api, ours: Api, name: str) -> None:
    theirs, mine = protobuf.cls(name)(), ours.cls(name)()
    for field in descriptor(name).fields:
        value = getattr(mine, field.name)
        assert plain(value) == plain(getattr(theirs, field.name))
        if field.message_type is None and not field.is_repeated:
            assert type(value) is type(getattr(theirs, field.name))
        assert outcome(ours, lambda api, f=field: api.cls(name)().HasField(f.name)) == outcome(
            protobuf, lambda api, f=field: api.cls(name)().HasField(f.name)
        )
    assert mine.SerializeToString() == b""  # reading set nothing
    for field in descriptor(name).fields:
        if field.message_type is None and not field.is_repeated:
            for message in (theirs, mine):
                setattr(message, field.name, getattr(message, field.name))
            assert mine.HasField(field.name)
        assert mine.SerializeToString() == theirs.SerializeToString()
    for oneof in descriptor(name).oneofs:
        assert mine.WhichOneof(oneof.name) == theirs.WhichOneof(oneof.name)
    listed = [(f.name, plain(v)) for f, v in theirs.ListFields()]
    assert [(n, plain(v)) for n, v in mine.ListFields()] == listed


def test_assigning_a_message_copies_it(ours: Api) -> None:
    tensor = ours.TensorProto(name="t")
    block = ours.PagedCacheBlockProto()
    block.key = tensor
    tensor.name = "changed"
    assert block.key.name == "t"
    assert block.key is not tensor
    for wrong in (None, {}, 1, ours.NodeProto(), ours.TensorProto.Segment()):
        with pytest.raises(TypeError):
            block.key = wrong
        with pytest.raises(TypeError):
            block.encoded_key = wrong
    assert block.WhichOneof("key_payload") == "key"
    assert block.key.name == "t"


NAMES: list[Any] = ["name", "dims", "segment", "nope", "", "key_payload", "name\0x", "\ud800"]
NAMES += [b"name", b"nope", None, 1, ["name"], "DESCRIPTOR", "has_name"]


@pytest.mark.parametrize("method", ["HasField", "ClearField", "WhichOneof"])
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_of_fields(protobuf: Api, ours: Api, method: str, name: Any) -> None:
    for cls in ("TensorProto", "PagedCacheBlockProto"):
        same(protobuf, ours, lambda api, c=cls: getattr(api.cls(c)(), method)(name))


@pytest.mark.parametrize("name", ["nope", "", "Name", "NAME", "key_payload", "dim", "__nope__"])
def test_attributes_that_do_not_exist(api: Api, name: str) -> None:
    message = api.PagedCacheBlockProto()
    with pytest.raises(AttributeError):
        getattr(message, name)
    with pytest.raises(AttributeError):
        setattr(message, name, 1)
    with pytest.raises(AttributeError):
        delattr(message, name)
    assert message.SerializeToString() == b""


@pytest.mark.parametrize("name", ["start", "key", "encoded_key"])
def test_fields_cannot_be_deleted(api: Api, name: str) -> None:
    message = api.PagedCacheBlockProto(start=1, encoded_key={})
    before = message.SerializeToString()
    with pytest.raises(AttributeError):
        delattr(message, name)
    with pytest.raises(AttributeError):
        del api.TensorProto().dims
    assert message.SerializeToString() == before


def test_methods_and_constants_cannot_be_assigned(api: Api) -> None:
    message = api.TensorProto()
    for name in ("HasField", "FLOAT", "NAME_FIELD_NUMBER", "DataType"):
        with pytest.raises(AttributeError):
            setattr(message, name, 1)


@pytest.mark.parametrize("value", [[], [1], (), None, 1, {}], ids=repr)
def test_lists_cannot_be_assigned(api: Api, value: Any) -> None:
    for cls, field in (("TensorProto", "dims"), ("GraphProto", "node"), ("NodeProto", "input")):
        message = api.cls(cls)()
        with pytest.raises(AttributeError):
            setattr(message, field, value)
    message = api.TensorProto(dims=[1])
    with pytest.raises(AttributeError):
        message.dims = message.dims
    assert list(message.dims) == [1]
