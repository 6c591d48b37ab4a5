"""Arrays that go in and come out: types, strides, DLPack, views, errors."""

from __future__ import annotations

import gc
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cache_model import DTYPES, Tensor, raises, random_bits, same

from onnx_light import PagedCache
from onnx_light.errors import CodedError

SHAPE = (2, 3, 20, 8)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def pair(array: Any, **kwargs: Any) -> PagedCache:
    return PagedCache.from_arrays(array, array, **kwargs)


@pytest.mark.parametrize("value", DTYPES)
@pytest.mark.parametrize("key", DTYPES)
def test_keys_and_values_keep_their_type_and_bits(
    rng: np.random.Generator, key: str, value: str
) -> None:
    k, v = random_bits(rng, SHAPE, key), random_bits(rng, (2, 3, 20, 5), value)
    cache = PagedCache(page_size=16).append(k, v)
    assert (cache.batch, cache.heads, cache.key_width, cache.value_width) == (2, 3, 8, 5)
    assert [(str(p.key.format), str(p.value.format)) for p in cache.pages] == [(key, value)] * 2
    got = cache.to_arrays()
    assert same(got[0], k)
    assert same(got[1], v)
    bits = (8 * k.dtype.itemsize * 8 + 8 * v.dtype.itemsize * 5) / 13
    assert cache.bits_per_value == pytest.approx(bits)


def strided(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The same numbers with other strides."""
    wide = np.zeros((*array.shape[:3], 2 * array.shape[3]), array.dtype)
    wide[..., ::2] = array
    padded = np.zeros((*array.shape[:2], array.shape[2] + 3, array.shape[3]), array.dtype)
    padded[:, :, 1:-2] = array
    record = np.zeros(array.shape, [("tag", "u1"), ("number", array.dtype)])
    record["number"] = array
    return {
        "fortran": np.asfortranarray(array),
        "tokens first": np.ascontiguousarray(array.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3),
        "width first": np.ascontiguousarray(array.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0),
        "backwards": np.ascontiguousarray(array[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1],
        "every second": wide[..., ::2],
        "a window": padded[:, :, 1:-2],
        "not aligned": record["number"],
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(rng: np.random.Generator, dtype: str) -> None:
    array = random_bits(rng, SHAPE, dtype)
    for name, view in strided(array).items():
        assert same(np.ascontiguousarray(view), array), name
        cache = pair(view, page_size=7)
        assert same(cache.key_array(), array), name
        assert same(cache.value_array(), array), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_arrays(rng: np.random.Generator, dtype: str) -> None:
    row = random_bits(rng, (1, 1, 1, 8), dtype)
    spread = np.broadcast_to(row, SHAPE)
    assert same(pair(spread).key_array(), np.ascontiguousarray(spread))


def test_input_is_copied(rng: np.random.Generator) -> None:
    array = random_bits(rng, SHAPE)
    cache, before = pair(array), array.copy()
    array[:] = 0
    assert same(cache.key_array(), before)


def test_read_only_input(rng: np.random.Generator) -> None:
    for dtype in DTYPES:
        array = random_bits(rng, SHAPE, dtype)
        array.flags.writeable = False
        assert same(pair(array).key_array(), array)


def test_buffer_protocol(rng: np.random.Generator) -> None:
    array = random_bits(rng, SHAPE)
    assert same(pair(memoryview(array)).key_array(), array)
    cast = memoryview(array.tobytes()).cast("B").cast("f", SHAPE)
    assert same(pair(cast).key_array(), array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack(rng: np.random.Generator, dtype: str) -> None:
    array = random_bits(rng, SHAPE, dtype)
    for view in (array, array.transpose(1, 0, 2, 3), array[:, ::-1, ::2], array[..., 1:-1]):
        tensor = Tensor(view, offset=view.dtype.itemsize)
        references = sys.getrefcount(tensor)
        cache = PagedCache(page_size=6).append(tensor, tensor)
        assert tensor.released == 2
        assert sys.getrefcount(tensor) == references
        assert same(cache.key_array(), np.ascontiguousarray(view))
        assert same(cache.value_array(), np.ascontiguousarray(view))


def test_torch_tensors(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(random_bits(rng, SHAPE)).to(torch.bfloat16).transpose(1, 2)
    bits = tensor.contiguous().view(torch.uint16).numpy()
    assert (pair(tensor).key_array().view(np.uint16) == bits).all()


def test_arguments_are_let_go(rng: np.random.Generator) -> None:
    for dtype in ("float32", "bfloat16"):
        array = random_bits(rng, SHAPE, dtype)
        references = sys.getrefcount(array)
        cache = pair(array)
        for bad in (array[0], array[:1], array[..., :1]):
            with pytest.raises(CodedError):
                cache.append(array, bad)
        del bad
        assert sys.getrefcount(array) == references
        assert len(cache) == SHAPE[2]


class RaisingTensor:
    def __dlpack__(self, **kwargs: object) -> object:
        raise BufferError("needs a gradient")


class StrangeTensor:
    def __dlpack__(self, **kwargs: object) -> object:
        return 3


def test_what_is_no_array() -> None:
    good = np.zeros((1, 1, 1, 4), "f4")
    cache = PagedCache()
    for bad in (None, 3, [[[[1.0]]]], "text", object(), StrangeTensor()):
        with pytest.raises(TypeError, match="key"):
            cache.append(bad, good)
        with pytest.raises(TypeError, match="value"):
            cache.append(good, bad)
    with pytest.raises(BufferError, match="needs a gradient"):
        cache.append(RaisingTensor(), good)


@pytest.mark.parametrize("dtype", ["f8", ">f4", "i4", "u2", "?", "c8", "O", "U1", "M8[s]"])
def test_other_types(dtype: str) -> None:
    bad = np.zeros((1, 1, 1, 4), dtype)
    good = np.zeros((1, 1, 1, 4), "f4")
    error = raises("cache.dtype", "key", PagedCache().append, bad, good)
    assert str(bad.dtype) in error.message
    assert "bfloat16" in error.message
    raises("cache.dtype", "value", PagedCache().append, good, bad)


def test_other_types_of_packages_and_tensors() -> None:
    for other in (ml_dtypes.float8_e4m3, ml_dtypes.int4, ml_dtypes.float8_e4m3fnuz):
        raises("cache.dtype", "key", pair, np.zeros((1, 1, 1, 4), other))
    array = np.zeros((1, 1, 1, 4), "f4")
    raises("cache.dtype", "key", pair, Tensor(array, code=0))
    raises("cache.device", "key", pair, Tensor(array, device=2))
    raises("cache.dtype", "key", pair, memoryview(bytes(4)).cast("B", (1, 1, 1, 4)))
    raises("cache.shape", "key", pair, bytes(4))


def test_shapes() -> None:
    def zeros(*shape: int) -> Any:
        return np.zeros(shape, "f4")

    cache = PagedCache().append(zeros(2, 3, 4, 5), zeros(2, 3, 4, 6))
    for bad in (zeros(2, 4, 5), zeros(5), zeros(1, 2, 3, 1, 5), zeros()):
        raises("cache.shape", "key", cache.append, bad, zeros(2, 3, 1, 6))
        raises("cache.shape", "value", cache.append, zeros(2, 3, 1, 5), bad)
        raises("cache.shape", "key", cache.append, Tensor(bad), zeros(2, 3, 1, 6))
    for bad in (zeros(1, 3, 1, 5), zeros(2, 2, 1, 5), zeros(2, 3, 1, 4), zeros(2, 3, 1, 0)):
        with pytest.raises(CodedError):
            cache.append(bad, zeros(*bad.shape[:3], 6))
    raises("cache.shape", "value", cache.append, zeros(2, 3, 1, 5), zeros(2, 3, 2, 6))
    raises("cache.shape", "value", cache.append, zeros(2, 3, 1, 5), zeros(2, 3, 1, 5))
    assert len(cache) == 4


def test_huge_broadcast_is_refused() -> None:
    # 2^62 bytes and a bit, for which a page would have to grow to 2^63.
    shape = (1 << 15, 1 << 15, (1 << 16) + 1, 1 << 14)
    huge = np.broadcast_to(np.zeros((1, 1, 1, 1), "f4"), shape)
    raises("cache.too_large", "key", PagedCache(page_size=1 << 40).append, huge, huge)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_conversion_is_that_of_ml_dtypes(
    rng: np.random.Generator, source: str, target: str
) -> None:
    numbers = rng.standard_normal(SHAPE) * np.exp2(rng.integers(-12, 12, SHAPE))
    array = numbers.astype("f4").astype(DTYPES[source])
    with np.errstate(over="ignore"):
        expected = array.astype("f4").astype(DTYPES[target])
    cache = pair(array, page_size=7)
    arrays = [cache.key_array(t) for t in (target, DTYPES[target], np.dtype(DTYPES[target]))]
    for got in (*arrays, cache.to_arrays(dtype=target)[1]):
        # ml_dtypes drops the sign of a NaN, and so do some processors.
        numbers = ~np.isnan(expected)
        assert (np.isnan(got) == ~numbers).all()
        assert same(got[numbers], expected[numbers])


def test_type_of_arrays_follows_the_pages(rng: np.random.Generator) -> None:
    half, single = random_bits(rng, SHAPE, "float16"), random_bits(rng, SHAPE)
    mixed = PagedCache().append(half, single).append(single, single)
    assert mixed.key_array().dtype == np.float32
    assert same(mixed.value_array(), np.concatenate([single, single], 2))
    for bad in ("f8", "int8", "nonsense", np.int32, object()):
        raises("cache.dtype", "dtype", mixed.key_array, bad)
    with pytest.raises(TypeError):
        mixed.key_array(1, 2)  # type: ignore[call-arg]


def test_arrays_of_an_empty_cache() -> None:
    key, value = PagedCache().to_arrays()
    assert key.shape == value.shape == (0, 0, 0, 0)
    assert key.dtype == np.float32
    assert PagedCache().key_array("bfloat16").dtype == ml_dtypes.bfloat16


def test_views_of_pages_cannot_be_written_but_copies_can(rng: np.random.Generator) -> None:
    for dtype in DTYPES:
        cache = pair(random_bits(rng, SHAPE, dtype), page_size=16)
        page = cache.pages[0]
        for array in (page.key.array, page.value.array):
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                array.flags.writeable = True
        before = cache.to_arrays()
        for array in cache.to_arrays():
            array[:] = 0
        for array, kept in zip(cache.to_arrays(), before, strict=True):
            assert array.tobytes() == kept.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_page_arrays_are_views(rng: np.random.Generator, dtype: str) -> None:
    array = random_bits(rng, SHAPE, dtype)
    page = pair(array, page_size=64).pages[0]
    assert (len(page), page.capacity) == (20, 32)
    first, second = page.key.array, page.key.array
    assert np.shares_memory(first.view("u1"), second.view("u1"))
    assert same(first, array)
    assert first.strides[2] == 8 * array.dtype.itemsize


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_outlive_everything(rng: np.random.Generator, dtype: str) -> None:
    views, arrays = [], []
    cache = PagedCache(page_size=16)
    for _ in range(20):
        array = random_bits(rng, (1, 2, 10, 16), dtype)
        arrays.append(array)
        cache = cache.append(array, array)
        views.append(cache.pages[-1].key.array)
    whole = np.concatenate([p.key.array for p in cache.pages], 2)
    last = [array[:, :, -1] for array in views]
    del cache
    gc.collect()
    junk = [pair(random_bits(rng, (1, 2, 16, 16), dtype)) for _ in range(50)]
    assert len(junk) == 50
    for view, array in zip(last, arrays, strict=True):
        assert same(view, array[:, :, -1])
    assert same(whole, np.concatenate(arrays, 2))
