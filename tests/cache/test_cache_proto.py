"""Caches from and to messages, against the real protobuf classes and the rules of the format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from cache_model import DTYPES, Model, raises, random_bits, same

import onnx_light.onnx as ours
import oracle
from onnx_light import PagedCache

# The numbers of TensorProto.DataType, as ONNX's schema has them.
DATA_TYPES = {
    "float32": 1,
    "float16": 10,
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e5m2": 19,
}
REAL: Any = oracle.load()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def real(proto: Any) -> Any:
    """The same message as protobuf reads it."""
    return REAL.PagedCacheProto.FromString(proto.SerializeToString())


def to_ours(proto: Any) -> Any:
    return ours.PagedCacheProto.FromString(proto.SerializeToString())


def tensor_array(tensor: Any) -> Any:
    """What raw data means."""
    names = {number: name for name, number in DATA_TYPES.items()}
    dtype = np.dtype(DTYPES[names[tensor.data_type]])
    return np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))


# --------------------------------------------------------------------------------------------------
# To messages


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [4, 300])  # payloads below and above the size that is shared
def test_to_proto(rng: np.random.Generator, dtype: str, width: int) -> None:
    k = random_bits(rng, (2, 3, 50, width), dtype)
    v = random_bits(rng, (2, 3, 50, 7))
    cache = PagedCache.from_arrays(k, v, page_size=16).drop_before(20)
    proto = real(cache.to_proto("layer"))
    assert proto.name == "layer"
    assert [(b.start, b.length) for b in proto.blocks] == [(16, 16), (32, 16), (48, 2)]
    for block in proto.blocks:
        end = block.start + block.length
        assert same(tensor_array(block.key), k[:, :, block.start : end])
        assert same(tensor_array(block.value), v[:, :, block.start : end])
        names = [field.name for field, _ in block.key.ListFields()]
        assert names == ["dims", "data_type", "raw_data"]
    assert not real(cache.to_proto()).HasField("name")
    assert real(PagedCache().to_proto()) == REAL.PagedCacheProto()


def test_rows_past_the_end_stay_out(rng: np.random.Generator) -> None:
    mark = b"\x11\x22\x33\x44"
    for width in (8, 2048):
        k = np.zeros((1, 2, 16, width), "f4")
        k[:, :, 5:] = np.frombuffer(mark, "f4")[0]
        full = PagedCache.from_arrays(k, k, page_size=16)
        assert mark in full.to_proto().SerializeToString()
        for cut in (full.truncate(5), full.slice(2, 5)):
            proto = real(cut.to_proto())
            assert [list(b.key.dims) for b in proto.blocks] == [[1, 2, len(cut), width]]
            assert mark not in proto.SerializeToString()


def test_a_message_stays_what_it_is(rng: np.random.Generator) -> None:
    k = random_bits(rng, (1, 2, 20, 512))
    cache = PagedCache.from_arrays(k, k, page_size=64)
    proto = cache.to_proto()
    before = proto.SerializeToString()
    grown = cache.append(k, k)
    assert proto.SerializeToString() == before
    proto.blocks[0].key.raw_data = b""
    proto.blocks[0].length = 3
    del proto.blocks[:]
    assert same(grown.key_array(), np.concatenate([k, k], 2))
    assert same(cache.key_array(), k)


def test_large_payloads_are_not_copied(rng: np.random.Generator) -> None:
    k = random_bits(rng, (1, 2, 64, 512))
    cache = PagedCache.from_arrays(k, k)
    proto = cache.to_proto()
    again = PagedCache.from_proto(proto)
    views = [
        cache.pages[0].key.array.reshape(-1).view("u1"),
        np.frombuffer(proto.blocks[0].key.payload("raw_data"), "u1"),
        again.pages[0].key.array.reshape(-1).view("u1"),
    ]
    assert len({view.__array_interface__["data"][0] for view in views}) == 1
    del cache, proto, again
    assert views[2].tobytes() == k.tobytes()


def test_messages_of_input_that_is_borrowed(rng: np.random.Generator) -> None:
    k = random_bits(rng, (1, 2, 64, 512))
    for padding in range(4):  # any alignment
        proto = PagedCache.from_arrays(k, k).to_proto("x" * padding)
        data = proto.SerializeToString()
        parsed = ours.PagedCacheProto()
        parsed.ParseFromString(data, ours.ParseOptions(no_copy=True))
        cache = PagedCache.from_proto(parsed)
        view = cache.pages[0].value.array
        del proto, parsed
        more = cache.append(k, k)
        del cache, data
        assert same(view, k)
        assert same(more.value_array(), np.concatenate([k, k], 2))


# --------------------------------------------------------------------------------------------------
# From messages


def put(tensor: Any, array: Any, typed: bool = False) -> None:
    tensor.data_type = DATA_TYPES[array.dtype.name]
    tensor.dims.extend(array.shape)
    if not typed:
        tensor.raw_data = array.tobytes()
    elif array.dtype == np.float32:
        tensor.float_data.extend(float(number) for number in array.reshape(-1))
    else:
        bits = array.view("u2" if array.dtype.itemsize == 2 else "u1")
        tensor.int32_data.extend(int(number) for number in bits.reshape(-1))


def good() -> Any:
    """Three blocks of 4 tokens [1, 1, 4, 8]."""
    rng = np.random.default_rng(9)
    proto = REAL.PagedCacheProto(name="good")
    for i in range(3):
        block = proto.blocks.add(start=4 * i, length=4)
        for tensor in (block.key, block.value):
            put(tensor, rng.standard_normal((1, 1, 4, 8)).astype("f4"))
    return proto


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("typed", [False, True])
def test_from_proto(rng: np.random.Generator, dtype: str, typed: bool) -> None:
    proto = REAL.PagedCacheProto()
    model = Model(7, [])
    for capacity, length in ((4, 4), (9, 2), (500, 500)):
        block = proto.blocks.add(start=model.end, length=length)
        k = rng.standard_normal((2, 1, capacity, 5)).astype("f4").astype(DTYPES[dtype])
        v = rng.standard_normal((2, 1, capacity, 3)).astype("f4")
        put(block.key, k, typed)
        put(block.value, v, typed)
        model = model.append(k[:, :, :length], v[:, :, :length])
    cache = PagedCache.from_proto(to_ours(proto), page_size=8)
    model.check(cache)
    assert [page.capacity for page in cache.pages] == [4, 9, 500]
    assert cache.page_size == 8
    assert PagedCache.from_proto(to_ours(proto)).page_size == 64
    k, v = random_bits(rng, (2, 1, 3, 5), dtype), random_bits(rng, (2, 1, 3, 3))
    model.append(k, v).check(cache.append(k, v))


def test_rows_past_the_length_do_not_count() -> None:
    first, second = good(), good()
    for name in ("key", "value"):
        tensor = getattr(second.blocks[2], name)
        tensor.dims[2] = 9
        tensor.raw_data += b"\x7f" * (5 * 8 * 4)
    a, b = (PagedCache.from_proto(to_ours(proto)) for proto in (first, second))
    assert a == b
    assert b"\x7f" * 32 not in b.to_proto().SerializeToString()


def test_a_later_change_of_the_message_does_not_show() -> None:
    for scale in (1, 1000):
        proto = REAL.PagedCacheProto()
        block = proto.blocks.add(start=0, length=2)
        k = np.arange(16 * scale, dtype="f4").reshape(1, 1, 2, 8 * scale)
        put(block.key, k)
        put(block.value, k)
        message = to_ours(proto)
        cache = PagedCache.from_proto(message)
        message.blocks[0].key.raw_data = bytes(k.nbytes)
        message.Clear()
        assert same(cache.key_array(), k)


def test_model_argument() -> None:
    cache = PagedCache.from_proto(to_ours(good()), model=ours.ModelProto())
    assert len(cache) == 12
    for wrong in (None, b"", "x", 3, ours.TensorProto(), ours.PagedCacheBlockProto(), good()):
        with pytest.raises(TypeError, match="PagedCacheProto"):
            PagedCache.from_proto(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ModelProto"):
        PagedCache.from_proto(to_ours(good()), model=ours.GraphProto())  # type: ignore[arg-type]
    raises("cache.page_size", "page_size", PagedCache.from_proto, to_ours(good()), page_size=0)


def reshape(
    block: Any, dims: Iterable[int], names: Iterable[str] = ("key", "value"), length: int = 0
) -> None:
    """Gives payloads other dims and as much data, so that nothing else is wrong."""
    shape = tuple(dims)
    for name in names:
        block.ClearField(name)
        put(getattr(block, name), np.zeros(shape, "f4"))
    block.length = length or block.length


Change = Callable[[Any], object]
BAD: dict[str, tuple[str, str, Change]] = {
    "no start": ("cache.missing", "blocks[2]", lambda p: p.blocks[2].ClearField("start")),
    "no length": ("cache.missing", "blocks[2]", lambda p: p.blocks[2].ClearField("length")),
    "no key": ("cache.missing", "blocks[2]", lambda p: p.blocks[2].ClearField("key")),
    "no value": ("cache.missing", "blocks[2]", lambda p: p.blocks[2].ClearField("value")),
    "no data type": (
        "cache.missing",
        "blocks[1].key",
        lambda p: p.blocks[1].key.ClearField("data_type"),
    ),
    "no data": (
        "cache.missing",
        "blocks[1].value",
        lambda p: p.blocks[1].value.ClearField("raw_data"),
    ),
    "length over capacity": (
        "cache.length",
        "blocks[2].length",
        lambda p: setattr(p.blocks[2], "length", 5),
    ),
    "huge length": (
        "cache.length",
        "blocks[2].length",
        lambda p: setattr(p.blocks[2], "length", 2**63 - 1),
    ),
    "length zero": (
        "cache.length",
        "blocks[2].length",
        lambda p: setattr(p.blocks[2], "length", 0),
    ),
    "negative length": (
        "cache.length",
        "blocks[2].length",
        lambda p: setattr(p.blocks[2], "length", -1),
    ),
    "gap": ("cache.start", "blocks[2].start", lambda p: setattr(p.blocks[2], "start", 9)),
    "overlap": ("cache.start", "blocks[2].start", lambda p: setattr(p.blocks[2], "start", 7)),
    "negative start": (
        "cache.start",
        "blocks[0].start",
        lambda p: [setattr(b, "start", b.start - 12) for b in p.blocks],
    ),
    "positions overflow": (
        "cache.too_large",
        "blocks[0].start",
        lambda p: setattr(p.blocks[0], "start", 2**63 - 4),
    ),
    "capacity of K and V": (
        "cache.shape",
        "blocks[2].value",
        lambda p: reshape(p.blocks[2], (1, 1, 5, 8), ["value"]),
    ),
    "heads of K and V": (
        "cache.shape",
        "blocks[2].value",
        lambda p: reshape(p.blocks[2], (1, 2, 4, 8), ["value"]),
    ),
    "batch of K and V": (
        "cache.shape",
        "blocks[2].value",
        lambda p: reshape(p.blocks[2], (2, 1, 4, 8), ["value"]),
    ),
    "other heads": ("cache.shape", "blocks[2]", lambda p: reshape(p.blocks[2], (1, 2, 4, 8))),
    "other batch": ("cache.shape", "blocks[2]", lambda p: reshape(p.blocks[2], (2, 1, 4, 8))),
    "other width": (
        "cache.shape",
        "blocks[2]",
        lambda p: reshape(p.blocks[2], (1, 1, 4, 9), ["value"]),
    ),
    "no heads": ("cache.shape", "blocks[0]", lambda p: reshape(p.blocks[0], (1, 0, 4, 8))),
    "no batch": ("cache.shape", "blocks[0]", lambda p: reshape(p.blocks[0], (0, 1, 4, 8))),
    "no width": ("cache.shape", "blocks[0]", lambda p: reshape(p.blocks[0], (1, 1, 4, 0))),
    "no capacity": ("cache.shape", "blocks[0]", lambda p: reshape(p.blocks[0], (1, 1, 0, 8))),
    "rank 3": ("cache.shape", "blocks[1].key", lambda p: reshape(p.blocks[1], (1, 4, 8))),
    "rank 5": ("cache.shape", "blocks[1].key", lambda p: reshape(p.blocks[1], (1, 1, 1, 4, 8))),
    "rank 0": ("cache.shape", "blocks[1].key", lambda p: p.blocks[1].key.ClearField("dims")),
    "short payload": (
        "cache.payload_size",
        "blocks[1].key",
        lambda p: setattr(p.blocks[1].key, "raw_data", p.blocks[1].key.raw_data[:-1]),
    ),
    "long payload": (
        "cache.payload_size",
        "blocks[1].value",
        lambda p: setattr(p.blocks[1].value, "raw_data", p.blocks[1].value.raw_data + b"x"),
    ),
    "empty payload": (
        "cache.payload_size",
        "blocks[1].key",
        lambda p: setattr(p.blocks[1].key, "raw_data", b""),
    ),
    "negative dims": (
        "cache.shape",
        "blocks[1]",
        lambda p: [t.dims.__setitem__(i, -1) for t in kv(p.blocks[1]) for i in (0, 1)],
    ),
    "huge dims": (
        "cache.too_large",
        "blocks[1].key",
        lambda p: [t.dims.__setitem__(2, 1 << 62) for t in kv(p.blocks[1])],
    ),
    "dims that overflow to the right size": (
        "cache.too_large",
        "blocks[1].key",
        lambda p: [t.dims.__setitem__(2, 4 + (1 << 59)) for t in kv(p.blocks[1])],
    ),
    "int32": (
        "cache.data_type",
        "blocks[1].key",
        lambda p: setattr(p.blocks[1].key, "data_type", 6),
    ),
    "double": (
        "cache.data_type",
        "blocks[1].value",
        lambda p: setattr(p.blocks[1].value, "data_type", 11),
    ),
    "data type of the future": (
        "cache.data_type",
        "blocks[1].key",
        lambda p: setattr(p.blocks[1].key, "data_type", 1000),
    ),
    "external data": (
        "cache.external",
        "blocks[1].key",
        lambda p: setattr(p.blocks[1].key, "data_location", 1),
    ),
    "raw and typed data": (
        "cache.data",
        "blocks[1].key",
        lambda p: p.blocks[1].key.float_data.append(1),
    ),
    "a tensor in pieces": (
        "cache.unsupported",
        "blocks[1].value",
        lambda p: p.blocks[1].value.segment.SetInParent(),
    ),
    "encoded key": (
        "cache.missing",
        "blocks[1].encoded_key",
        lambda p: p.blocks[1].encoded_key.SetInParent(),
    ),
    "encoded value": (
        "cache.missing",
        "blocks[1].encoded_value",
        lambda p: p.blocks[1].encoded_value.SetInParent(),
    ),
}


def kv(block: Any) -> tuple[Any, Any]:
    return block.key, block.value


def test_good() -> None:
    assert len(PagedCache.from_proto(to_ours(good()))) == 12


@pytest.mark.parametrize("name", BAD)
def test_bad_messages(name: str) -> None:
    code, path, change = BAD[name]
    proto = good()
    change(proto)
    message = to_ours(proto)
    raises(code, path, PagedCache.from_proto, message)
    assert message == to_ours(proto)


def typed(dtype: str, numbers: list[int]) -> Any:
    proto = good()
    tensor = proto.blocks[1].key
    tensor.ClearField("raw_data")
    tensor.data_type = DATA_TYPES[dtype]
    tensor.int32_data.extend(numbers)
    return to_ours(proto)


def test_bad_typed_data() -> None:
    read = PagedCache.from_proto
    for dtype, least_bad in (("float16", 1 << 16), ("bfloat16", 1 << 16), ("float8_e5m2", 256)):
        assert len(read(typed(dtype, [least_bad - 1] * 32))) == 12
        for bad in (least_bad, -1, 2**31 - 1, -(2**31)):
            where = "blocks[1].key.int32_data[31]"
            raises("cache.data", where, read, typed(dtype, [0] * 31 + [bad]))
        for count in (31, 33):
            raises("cache.payload_size", "blocks[1].key", read, typed(dtype, [0] * count))
    raises("cache.missing", "blocks[1].key", read, typed("float32", [0] * 32))
    raises("cache.missing", "blocks[1].key", read, typed("float16", []))


def test_bits_of_typed_floats() -> None:
    bits = np.array([0x7F800001, 0xFFC12345, 0x80000000, 1] * 8, "u4")  # NaNs with a payload
    proto = ours.PagedCacheProto()
    block = proto.blocks.add(start=0, length=4)
    for tensor in kv(block):
        tensor.data_type = 1
        tensor.dims.extend([1, 1, 4, 8])
    wire = b"\x22\x80\x01" + bits.tobytes()  # float_data, packed
    block.key.MergeFromString(wire)
    block.value.raw_data = bits.tobytes()
    cache = PagedCache.from_proto(proto)
    assert (cache.key_array().view("u4").reshape(-1) == bits).all()
    assert (cache.value_array().view("u4").reshape(-1) == bits).all()
