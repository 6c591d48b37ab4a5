"""quantize_paged_cache() against numpy."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from onnx_light import PagedCache
from onnx_light.cache import quantize_paged_cache
from onnx_light.errors import CodedError

Array = NDArray[Any]
PAGE = (2, 3, 16, 10)
SHAPES = ((), (1, 1, 1, 1), (1, 1, 1, 10), (2, 3, 16, 1), (1, 1, 4, 1), (1, 3, 3, 5))
SCALES = (np.float32, np.float16, ml_dtypes.bfloat16)
# What each code type holds, and what it is called.
CODES: dict[str, tuple[int, int]] = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int2": (-2, 1),
    "uint2": (0, 3),
}


def make(tokens: int = 40) -> tuple[PagedCache, Array, Array]:
    random = np.random.default_rng(1)
    key, value = random.standard_normal((2, 2, 3, tokens, 10)).astype(np.float32)
    return PagedCache.from_arrays(key, value, page_size=16), key, value


def decoded(rows: Array, scale: Array, zero_point: Array) -> Array:
    """What the codes of a page stand for."""
    low, high = CODES[zero_point.dtype.name]
    factor, zero = scale.astype(np.float32), zero_point.astype(np.float32)
    for axis, dim in enumerate(rows.shape if scale.ndim else ()):
        block = -(-dim // scale.shape[axis])
        factor = np.repeat(factor, block, axis).take(range(dim), axis)
        zero = np.repeat(zero, block, axis).take(range(dim), axis)
    codes = np.clip(np.rint(rows / factor) + zero, low, high)
    return ((codes - zero) * factor).astype(np.float32)


@pytest.mark.parametrize("scale_type", ["f4", "f2"])
def test_any_byte_order(scale_type: str) -> None:
    cache, *_ = make()
    scale = np.array(0.25, scale_type)
    for zero in (np.array(3, np.int8), np.array(0, np.float32)):
        expected = quantize_paged_cache(cache, [0], scale, zero, scale, zero)
        swapped = [item.astype(item.dtype.newbyteorder()) for item in (scale, zero)]
        assert quantize_paged_cache(cache, [0], *swapped, *swapped) == expected


@pytest.mark.parametrize("codes", list(CODES))
def test_values_are_those_of_the_codes(codes: str) -> None:
    cache, key, value = make()
    dtype = np.dtype(codes) if codes.endswith("8") else np.dtype(getattr(ml_dtypes, codes))
    low, high = CODES[codes]
    random = np.random.default_rng(2)
    for shape, scale_type in itertools.product(SHAPES, SCALES):
        scale = np.asarray(random.uniform(0.1, 0.5, shape)).astype(scale_type)
        zero = np.asarray(random.integers(low, high + 1, shape)).astype(dtype)
        other = (np.float32(0.02), np.int8(7))
        quantized = quantize_paged_cache(cache, [1, 0], scale, zero, *other)
        assert str(quantized.pages[0].key.format).startswith(codes + "/")
        for begin, end in ((0, 16), (16, 32)):
            rows = np.s_[:, :, begin:end]
            np.testing.assert_array_equal(
                quantized.key_array("float32")[rows], decoded(key[rows], scale, zero)
            )
            np.testing.assert_array_equal(
                quantized.value_array("float32")[rows],
                decoded(value[rows], *(np.asarray(x) for x in other)),
            )
        np.testing.assert_array_equal(quantized.key_array("float32")[:, :, 32:], key[:, :, 32:])
        assert len(quantized) == 40


def test_float_zero_points_mean_plain_numbers() -> None:
    cache, key, _ = make(32)
    one, none = np.float32(1), np.float32(0)
    quantized = cache.quantize("int8")
    back = quantize_paged_cache(quantized, [0], one, none, np.float32(0.1), np.int8(0))
    assert str(back.pages[0].key.format) == "float32"
    np.testing.assert_array_equal(back.key_array("float32"), quantized.key_array("float32"))
    assert not np.array_equal(back.key_array("float32"), key)


def test_arrays_may_lie_in_any_order() -> None:
    cache, *_ = make(16)
    scale = np.linspace(0.1, 0.9, 10, dtype=np.float32).reshape(1, 1, 1, 10)
    zero = np.arange(10, dtype=np.int8).reshape(1, 1, 1, 10)
    expected = quantize_paged_cache(cache, [0], scale, zero, scale, zero)
    wide = np.repeat(scale, 2, axis=3)[..., ::2]
    assert quantize_paged_cache(cache, [0], wide, zero, scale, zero) == expected


@pytest.mark.parametrize(
    ("code", "path", "indices", "scale", "zero"),
    [
        ("cache.page_index", "pages[1]", [0, 0], np.float32(1), np.int8(0)),
        ("cache.page_index", "pages[0]", [-1], np.float32(1), np.int8(0)),
        ("cache.page_index", "pages[0]", [3], np.float32(1), np.int8(0)),
        ("quant.scale", "key_scale", [0], np.float64(1), np.int8(0)),
        ("quant.scale", "key_scale", [0], np.int8(1), np.int8(0)),
        ("quant.zero_point", "key_zero_point", [0], np.float32(1), np.int32(0)),
        ("quant.zero_point", "key_zero_point", [0], np.float32(1), np.zeros(1, np.int8)),
    ],
)
def test_bad_input(code: str, path: str, indices: list[int], scale: Any, zero: Any) -> None:
    cache, *_ = make()
    before = cache.to_proto().SerializeToString()
    with pytest.raises(CodedError) as error:
        quantize_paged_cache(cache, indices, scale, zero, np.float32(1), np.int8(0))
    assert (error.value.code, error.value.path) == (code, path)
    assert cache.to_proto().SerializeToString() == before


def test_scales_must_fit_and_be_numbers() -> None:
    cache, *_ = make()
    for scale in (
        np.float32(-1),
        np.float32("nan"),
        np.ones(3, np.float32),
        np.ones((1, 1, 1, 11), np.float32),
    ):
        with pytest.raises(CodedError) as error:
            quantize_paged_cache(
                cache, [0], scale, np.zeros(scale.shape, np.int8), np.float32(1), np.int8(0)
            )
        assert error.value.code == "quant.scale"
    for wrong in (None, object()):
        with pytest.raises(TypeError):
            quantize_paged_cache(cache, [0], wrong, np.int8(0), np.float32(1), np.int8(0))
