"""Lists of numbers and numpy: arrays of lists, and lists from arrays, as protobuf has them.

Arrays go in and out in one piece; what an iterator would give, one by one, is what must come out.
"""

from __future__ import annotations

import array
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from message_apis import Api, outcome

FIELDS = {
    "dims": np.int64,
    "int32_data": np.int32,
    "int64_data": np.int64,
    "uint64_data": np.uint64,
    "float_data": np.float32,
    "double_data": np.float64,
}
LIMITS = [0, 1, -1, 127, 128, 255, 2**15, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1]
LIMITS += [2**63 - 1, -(2**63), 2**63, 2**64 - 1]
DTYPES = [np.dtype(c) for c in "bBhHiIlLqQfdegFD?SUOmM"]
DTYPES += [np.dtype(">i4"), np.dtype(">f8"), np.dtype(ml_dtypes.bfloat16), np.dtype("i4,i4")]


def inputs() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    numbers = rng.integers(-100, 100, 50)
    made: dict[str, Any] = {f"{d}": numbers.astype(d) for d in DTYPES[:16] if d.kind != "?"}
    made |= {f"{d} empty": np.empty(0, d) for d in DTYPES}
    made |= {f"{d} one": np.ones(1, d) for d in DTYPES if d.kind not in "mMV"}
    for dtype in (np.int64, np.uint64, np.int32, np.uint32):
        fit = [n for n in LIMITS if np.iinfo(dtype).min <= n <= np.iinfo(dtype).max]
        made |= {f"{dtype.__name__} {n}": np.array([1, n], dtype) for n in fit}
    floats = np.array([0.1, -0.0, np.inf, -np.inf, 1e308, 5e-324, 3.0], np.float64)
    unaligned = np.frombuffer(b"!" + numbers.tobytes(), np.int64, offset=1)
    masked = np.ma.MaskedArray([1, 2, 3], [False, True, False])
    return made | {
        "floats": floats,
        "small floats": floats[[0, 1, 2, 3, 6]].astype(np.float32),
        "reversed": numbers[::-1],
        "every third": numbers[::3],
        "broadcast": np.broadcast_to(np.int64(7), 5),
        "unaligned": unaligned,
        "records": np.zeros(3, [("a", "i1"), ("b", "<i8")])["b"],
        "a matrix": np.ones((2, 3), np.int64),
        "an empty matrix": np.ones((0, 3), np.int64),
        "no axis": np.array(5),
        "masked": masked,
        "read-only": np.frombuffer(b"abcdefgh", np.int64),
        "bytes": b"\x00\x7f\xff",
        "bytearray": bytearray(b"\x00\x7f\xff"),
        "memoryview": memoryview(np.arange(4))[1:],
        "memoryview of chars": memoryview(b"ab").cast("c"),
        "memoryview of nothing": memoryview(b""),
        **{f"array.array {c}": array.array(c, [1, 2, 3]) for c in "bBhHiIlLqQfd"},
        "array.array of text": array.array("u", "ab"),
        "range": range(3),
        "text": "12",
    }


INPUTS = inputs()
WAYS = {
    "extend": lambda m, field, values: getattr(m, field).extend(values),
    "MergeFrom": lambda m, field, values: getattr(m, field).MergeFrom(values),
    "slice": lambda m, field, values: getattr(m, field).__setitem__(slice(1, 2), values),
    "every second": lambda m, field, values: getattr(m, field).__setitem__(
        slice(None, None, 2), values
    ),
    "construct": lambda m, field, values: m.CopyFrom(type(m)(**{field: values})),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")  # numpy warns of casts that change values
def test_arrays_into_lists(protobuf: Api, ours: Api, field: str, way: str) -> None:
    for name, values in INPUTS.items():
        compare(protobuf, ours, way, field, name, lambda message, values=values: values)


def compare(protobuf: Api, ours: Api, way: str, field: str, name: str, values: Any) -> None:
    """Both after one way of putting `values(message)` into a field; ours changes all or nothing."""

    def do(api: Api) -> tuple[tuple[str, Any], bytes]:
        message = api.TensorProto(**{field: [1, 2, 3]})
        done = outcome(api, lambda _: WAYS[way](message, field, values(message)))
        return done, message.SerializeToString()

    (want, bytes_wanted), (got, bytes_got) = do(protobuf), do(ours)
    if way == "MergeFrom" and want[0] == "error":
        return  # protobuf takes lists of its own only
    if way == "every second" and want[0] == "error":
        assert got[0] == "error", name  # of wrong types and lengths, either may come first
    else:
        assert got == want, name
    if want[0] == "error":
        bytes_wanted = protobuf.TensorProto(**{field: [1, 2, 3]}).SerializeToString()
    assert bytes_got == bytes_wanted, name


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.filterwarnings("ignore")
def test_errors_are_those_of_single_values(ours: Api, field: str) -> None:
    """An array is refused as the list of its elements is, and nothing is changed."""
    for name, values in INPUTS.items():
        message = ours.TensorProto(**{field: [1]})
        texts = []
        for each in (values, iter(values) if np.ndim(values) else values):
            try:
                getattr(message, field).extend(each)
                break
            except (TypeError, ValueError) as error:
                texts.append(f"{type(error)} {error}")
                assert list(getattr(message, field)) == [1], name
        assert len(set(texts)) <= 1, name
        assert len(texts) != 1, name


@pytest.mark.parametrize("field", FIELDS)
def test_lists_into_lists(ours: Api, protobuf: Api, field: str) -> None:
    for other in FIELDS:
        for way in WAYS:

            def values(message: Any, other: str = other) -> Any:
                return getattr(type(message)(**{other: [4, 5]}), other)

            compare(protobuf, ours, way, field, other, values)


def test_a_list_into_itself(ours: Api) -> None:
    message = ours.TensorProto(dims=range(1000))
    for _ in range(4):
        message.dims.extend(message.dims)
    assert list(message.dims) == [*range(1000)] * 16
    message.dims[2:-2] = message.dims
    assert list(message.dims) == [0, 1] + [*range(1000)] * 16 + [998, 999]
    message.dims[:] = np.asarray(message.dims)[::-1]
    assert message.dims[0] == 999


def test_bits_survive(ours: Api) -> None:
    bits = np.array([0x7FC00001, 0x7F800001, 0xFFFFFFFF, 0x80000000], np.uint32)
    message = ours.TensorProto(float_data=bits.view(np.float32))
    assert message.SerializeToString() == b"\x22\x10" + bits.tobytes()
    assert np.asarray(message.float_data).tobytes() == bits.tobytes()


@pytest.mark.parametrize("size", [0, 1, 7, 1000])
@pytest.mark.parametrize("field", FIELDS)
def test_lists_as_arrays(api: Api, field: str, size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.integers(0, 2**31, size).astype(FIELDS[field])
    message = api.TensorProto()
    getattr(message, field).extend(values)
    data = getattr(message, field)
    made = np.asarray(data)
    assert made.dtype == FIELDS[field]
    assert made.shape == (size,)
    assert np.array_equal(made, values)
    for dtype, copy in itertools.product((np.float64, ">i8", object, "i1"), (None, True, False)):
        expected = values.astype(dtype)
        for array_ in (data.__array__(dtype, copy), np.array(data, dtype)):
            assert array_.dtype == expected.dtype
            assert np.array_equal(array_, expected)
    made[:] = 0  # an array of its own
    assert np.array_equal(np.asarray(data), values)
    getattr(message, field).clear()
    assert np.asarray(data).size == 0
    with pytest.raises(TypeError):
        data.__array__("no such dtype")
    with pytest.raises(TypeError):
        data.__array__(None, None, None)


@pytest.mark.parametrize("texts", [[], [b"a"], [b"abc", b"", b"d\0"]])
def test_texts_as_arrays(protobuf: Api, ours: Api, texts: list[bytes]) -> None:
    for dtype in (None, object, "S2", "U5"):
        made = []
        for api in (protobuf, ours):
            for data in (
                api.TensorProto(string_data=texts).string_data,
                api.NodeProto(input=[t.decode() for t in texts]).input,
            ):
                made.append(np.array(data, dtype))
        for theirs, mine in zip(made[:2], made[2:], strict=True):
            assert (mine.dtype, mine.tolist()) == (theirs.dtype, theirs.tolist())


def test_what_counts_as_bytes(ours: Api, protobuf: Api) -> None:
    arrays: list[Any] = [np.arange(3), np.array(5), np.ones((2, 2)), np.empty(0, np.float16)]
    arrays += [np.ones(3, ml_dtypes.bfloat16), np.array(1, ml_dtypes.int4)]
    arrays += [array.array("d", [1, 2]), bytearray(b"ab"), memoryview(b"abc"), np.bytes_(b"x")]
    message = ours.TensorProto()
    for values in arrays:
        message.raw_data = values
        expected = values.tobytes() if hasattr(values, "tobytes") else bytes(values)
        assert message.raw_data == expected
        message.string_data[:] = [values]
        assert message.string_data == [expected]
    numbers: list[Any] = [t(5) for t in (np.int8, np.int64, np.float32, np.bool_, np.complex64)]
    numbers += [np.void(b"abc"), np.datetime64(5, "s"), ml_dtypes.bfloat16(1)]
    numbers += [np.arange(10)[::2], 5, 1.5, None, "text", [1, 2], np.str_("x")]
    before = message.SerializeToString()
    for value in numbers:
        for api in (ours, protobuf):
            other = api.TensorProto()
            with pytest.raises((TypeError, ValueError, BufferError)) as caught:
                other.raw_data = value
            assert api is protobuf or isinstance(value, np.ndarray) or caught.type is TypeError
            with pytest.raises((TypeError, ValueError, BufferError)):
                other.string_data.append(value)
            assert other.SerializeToString() == b""
        with pytest.raises((TypeError, ValueError, BufferError)):
            message.MergeFromString(value)
    assert message.SerializeToString() == before
    assert ours.TensorProto.FromString(np.bytes_(before)) == message
