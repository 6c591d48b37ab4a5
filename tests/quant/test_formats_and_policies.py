"""PageFormat and CachePolicy as values, and policies of plain numbers."""

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnx_light import CachePolicy, PagedCache, PageFormat
from onnx_light.errors import CodedError

FORMATS = ("float16", "int8/channel", "uint4/token:32", "int2/tensor/float32", "q8_0")
TEXTS = ("key=int8/channel value=uint4/token:64 sink_tokens=4 recent_tokens=128", "value=q4_0")


def raises(code: str, path: str, call: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(CodedError) as error:
        call(*args, **kwargs)
    assert (error.value.code, error.value.path) == (code, path)


@pytest.mark.parametrize("text", FORMATS)
def test_formats_are_values(text: str) -> None:
    value = PageFormat(text)
    assert str(value) == text
    assert repr(value) == f"PageFormat('{text}')"
    for same in (PageFormat.parse(text), PageFormat(value), copy.deepcopy(value)):
        assert same == value
        assert hash(same) == hash(value)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert value != text
    assert value != PageFormat("float32")


@pytest.mark.parametrize(
    ("name", "short", "dtype"),
    [
        ("float32", "f32", np.float32),
        ("float16", "f16", np.dtype("e")),
        ("bfloat16", "bf16", ml_dtypes.bfloat16),
        ("float8_e4m3fn", "f8e4m3", ml_dtypes.float8_e4m3fn),
        ("float8_e5m2", "f8e5m2", ml_dtypes.float8_e5m2),
        ("int8", "i8", np.int8),
        ("uint8", "u8", np.uint8),
        ("int4", "i4", ml_dtypes.int4),
        ("uint4", "u4", ml_dtypes.uint4),
        ("int2", "i2", ml_dtypes.int2),
        ("uint2", "u2", ml_dtypes.uint2),
    ],
)
def test_names_and_dtypes(name: str, short: str, dtype: Any) -> None:
    assert PageFormat(short) == PageFormat(dtype) == PageFormat(np.dtype(dtype)) == PageFormat(name)
    assert PageFormat(name).name == name
    assert PageFormat(name).is_dense == ("float" in name)


def test_parts_of_a_format() -> None:
    value = PageFormat("uint4", "channel", 32, "bfloat16")
    assert str(value) == "uint4/channel:32/bfloat16"
    assert (value.scale, value.group, value.scale_type) == ("channel", 32, "bfloat16")
    assert PageFormat("int8", scale="tensor", scale_type=np.float32) == PageFormat(
        "int8/tensor/float32"
    )
    assert PageFormat("int8") == PageFormat("int8", scale="token")
    dense = PageFormat("float16")
    assert (dense.scale, dense.group, dense.scale_type) == (None, None, None)


def test_wrong_formats() -> None:
    for arguments, path in (
        (("int9",), "format"),
        (("float64",), "format"),
        ((np.int32,), "format"),
        (("int8", "row"), "scale"),
        (("float16", "token"), "scale"),
        (("q8_0", "token"), "scale"),
        (("int8", "token", 0), "group"),
        (("int8", "tensor", 4), "group"),
        (("int8", "token", 4, "int8"), "scale_type"),
        (("int8", "token", 4, "float8_e5m2"), "scale_type"),
        (("int8/token", "token"), "format"),
    ):
        raises("quant.format", path, PageFormat, *arguments)
    for wrong in (None, 3.5, object()):
        with pytest.raises(TypeError):
            PageFormat(wrong)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        PageFormat("int8").group = 3  # type: ignore[misc]


@pytest.mark.parametrize("text", TEXTS)
def test_policies_are_values(text: str) -> None:
    value = CachePolicy.parse(text)
    assert str(value) == text
    assert repr(value) == f"CachePolicy('{text}')"
    again = CachePolicy(value.key, value.value, value.open, value.sink_tokens, value.recent_tokens)
    for same in (again, copy.copy(value), CachePolicy.parse(str(value))):
        assert same == value
        assert hash(same) == hash(value)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert value != CachePolicy()
    assert value != text


def test_parts_of_a_policy() -> None:
    value = CachePolicy(np.float16, "int8/token", open="f32", recent_tokens=7)
    assert str(value) == "key=float16 value=int8/token open=float32 recent_tokens=7"
    assert (value.key, value.open) == (PageFormat("float16"), "float32")
    assert (CachePolicy().key, CachePolicy().open) == (None, "auto")
    assert CachePolicy.parse(str(CachePolicy())) == CachePolicy()
    assert CachePolicy.presets["int8"] == CachePolicy("int8/channel", "int8/token")
    for name, preset in CachePolicy.presets.items():
        assert CachePolicy.parse(name) == preset
    with pytest.raises(TypeError):
        CachePolicy.presets["x"] = value  # type: ignore[index]


def test_wrong_policies() -> None:
    raises("quant.format", "key", CachePolicy, "int9")
    raises("quant.format", "value", CachePolicy, None, "")
    raises("quant.policy", "open", CachePolicy, open="int8")
    raises("quant.policy", "sink_tokens", CachePolicy, sink_tokens=-1)
    raises("quant.policy", "recent_tokens", CachePolicy, recent_tokens=-1)
    raises("quant.policy", "policy", CachePolicy.parse, " ")
    raises("quant.policy", "nope", CachePolicy.parse, "key=int8 nope=1")
    with pytest.raises(TypeError):
        PagedCache(policy=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dense_policies_convert_what_is_appended(name: str, source: str) -> None:
    rng = np.random.default_rng(1)
    array = rng.standard_normal((2, 20, 3, 5)).astype(source).transpose(0, 2, 1, 3)[..., ::-1]
    dtype = PageFormat(name)
    wanted = array.astype("f4").astype(name)
    cache = PagedCache(page_size=16, policy=CachePolicy(key=dtype)).append(array, array)
    assert [str(page.key.format) for page in cache.pages] == [name] * 2
    assert [str(page.value.format) for page in cache.pages] == [source] * 2
    assert cache.key_array().tobytes() == wanted.tobytes()
    assert cache.policy == CachePolicy(key=dtype)
    grown = cache.truncate(0)
    for i in range(20):
        grown = grown.append(array[:, :, i : i + 1], array[:, :, i : i + 1])
    assert grown == cache


def test_open_is_the_type_of_what_has_no_dense_format() -> None:
    array = np.float32([[[[1.5, 2.5]]]])
    cache = PagedCache(policy="key=bfloat16 open=float16").append(array, array)
    assert [str(cache.pages[0].key.format), str(cache.pages[0].value.format)] == [
        "bfloat16",
        "float16",
    ]


@pytest.mark.parametrize(
    ("name", "fits", "too_large"),
    [("float16", 65519.996, 65520.0), ("bfloat16", 3.396e38, 3.3961776e38)],
)
def test_overflow_is_an_error(name: str, fits: float, too_large: float) -> None:
    array = np.zeros((1, 2, 3, 4), "f4")
    cache = PagedCache(policy=name).append(array, array)
    for sign in (1, -1):
        array[0, 1, 2, 3] = sign * fits
        assert np.isfinite(cache.append(array, array).key_array("float32")).all()
        array[0, 1, 2, 3] = sign * too_large
        raises("cache.overflow", "key", cache.append, array, np.zeros_like(array))
        raises("cache.overflow", "value", cache.append, np.zeros_like(array), array)
    assert len(cache) == 3
    for special in (np.inf, -np.inf, np.nan):
        array[0, 1, 2, 3] = special
        grown = cache.append(array, array).key_array("float32")[0, 1, 5, 3]
        np.testing.assert_equal(grown, np.float32(special))


@pytest.mark.parametrize(("name", "most"), [("float8_e4m3fn", 448), ("float8_e5m2", 57344)])
def test_float8_saturates(name: str, most: float) -> None:
    array = np.float32([[[[most, most * 1.01, -most * 1000, 3e38, 1]]]])
    got = PagedCache(policy=name).append(array, array).key_array("float32")
    assert got.tolist() == [[[[most, most, -most, most, 1]]]]


def test_operations_keep_the_policy() -> None:
    array = np.zeros((2, 1, 20, 4), "f4")
    policy = CachePolicy.parse("k=f16 v=bf16 recent_tokens=3")
    cache = PagedCache.from_arrays(array, array, page_size=8, policy=policy)
    for value in (
        cache.append(array, array),
        cache.truncate(3),
        cache.truncate(0),
        cache.slice(5, 5),
        cache.slice(2, 11),
        cache.drop_before(9),
        cache.gather([1]),
        cache.repage(4),
        cache.concat(PagedCache.from_arrays(array, array)),
        pickle.loads(pickle.dumps(cache)),
        pickle.loads(pickle.dumps(cache.slice(5, 5))),
    ):
        assert value.policy == policy
    assert PagedCache().policy is None
