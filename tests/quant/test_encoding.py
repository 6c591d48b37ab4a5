"""Codes, scales and values of encoded pages against a model in float64, ONNX Runtime and gguf."""

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from quant_model import CODE_TYPES, TYPE_NAMES, by_range, parts_of, quantized

from onnx_light import PagedCache, PageFormat
from onnx_light import onnx as ol

FORMATS = (
    "int8/tensor",
    "int8/channel",
    "int8/token",
    "uint8/token",
    "uint8/channel:16",
    "int4/token:32",
    "int4/channel",
    "uint4/channel:32",
    "uint4/token:64",
    "uint4/tensor",
    "int2/token:16",
    "uint2/token:7",
    "uint2/channel:5",
)
SHAPES = (
    (1, 1, 1, 1),
    (1, 2, 3, 7),
    (2, 1, 20, 33),
    (1, 2, 64, 64),
    (1, 1, 40, 80),
    (1, 1, 16, 96),
    (1, 1, 33, 128),
    (1, 1, 4, 576),
)


def normal(shape: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    shift = rng.standard_normal((1, shape[1], 1, shape[3]))
    return (rng.standard_normal(shape) * np.exp(shift) + shift).astype("f4")


def encoded(array: Any, text: str) -> Any:
    """The message's encoded value of one page that holds all of the array, and the cache."""
    cache = PagedCache.from_arrays(array, array, page_size=array.shape[2], policy=f"k={text}")
    (block,) = cache.to_proto().blocks
    return block.encoded_key, cache


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("text", FORMATS)
def test_affine(text: str, shape: tuple[int, ...]) -> None:
    array = normal(shape)
    value, cache = encoded(array, text)
    form = PageFormat(text)
    parts = parts_of(value)
    assert value.affine.storage_type == TYPE_NAMES[form.name]
    assert value.affine.scale.data_type == ol.TensorProto.FLOAT16
    assert value.affine.has_zero_point() != parts.signed
    if form.scale != "tensor":
        axis = {"channel": 2, "token": 3}[str(form.scale)]
        assert (value.affine.axis, value.affine.block_size) == (axis, form.group or shape[axis])
    # Decoding follows the rule, and every code is the nearest.
    got = cache.key_array()
    assert got.tobytes() == parts.values().tobytes()
    least = -(1 << (parts.bits - 1)) if parts.signed else 0
    place = array / np.where(parts.scales == 0, 1, parts.scales) + parts.zero_points
    place = np.clip(place, least, least + (1 << parts.bits) - 1)
    assert np.abs(place - parts.codes).max() <= 0.5 + 2e-5
    # Eight bits go by range; the search for fewer lowers the error of every cell.
    scales, zeros = by_range(array, form.name, str(form.scale), form.group)
    error = (got.astype("f8") - array) ** 2
    plain = (quantized(array, scales, zeros, parts.bits, parts.signed) - array) ** 2
    if parts.bits == 8:
        np.testing.assert_array_equal(parts.scales, scales)
        np.testing.assert_array_equal(parts.zero_points, zeros)
        assert error.sum() == pytest.approx(plain.sum(), rel=1e-3)
    else:
        assert error.sum() <= plain.sum() * (1 + 1e-6)
        if array.size > 500 and form.scale != "tensor":
            assert error.sum() < plain.sum() * 0.99


@pytest.mark.parametrize("text", [f for f in FORMATS if "2/" not in f])
def test_onnx_runtime_dequantizes_the_same(text: str) -> None:
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    array = normal((1, 2, 64, 48))
    value, cache = encoded(array, text)
    affine = value.affine
    arguments = [("x", affine.storage_type, array.shape, value.raw_data)]
    scale = np.asarray(ol.to_array(affine.scale)).astype("f4")
    arguments.append(("s", 1, scale.shape, scale.tobytes()))
    if affine.has_zero_point():
        arguments.append(("z", affine.storage_type, scale.shape, affine.zero_point.raw_data))
    attributes = {} if scale.ndim == 0 else {"axis": affine.axis, "block_size": affine.block_size}
    node = onnx.helper.make_node("DequantizeLinear", [a[0] for a in arguments], ["y"], **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [],
        [onnx.helper.make_tensor_value_info("y", 1, array.shape)],
        [onnx.helper.make_tensor(n, t, d, raw, raw=True) for n, t, d, raw in arguments],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {})[0], cache.key_array())


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-9, 1e-42, 1e4])
def test_records_are_those_of_gguf(name: str, scale: float) -> None:
    gguf = pytest.importorskip("gguf")
    kind = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}[name]
    array = (normal((2, 2, 33, 96)).astype("f8") * scale).astype("f4")
    array[0, 0, 0] = 0
    array[0, 0, 1, :32] = np.repeat([1, -1], 16) * np.float32(scale)
    value, cache = encoded(array, name)
    raw = np.frombuffer(value.raw_data, "u1")
    rows = raw.reshape(-1, {"q8_0": 34, "q4_0": 18}[name])
    decoded = gguf.quants.dequantize(rows, kind).reshape(array.shape)
    assert cache.key_array().tobytes() == decoded.tobytes()
    with np.errstate(all="ignore"):
        wanted = gguf.quants.quantize(array.reshape(-1, 96), kind).reshape(-1)
    if scale == 1e-42:  # no reciprocal: zeros here, undefined there
        assert not cache.key_array().any()
    elif name == "q8_0":
        np.testing.assert_array_equal(raw, wanted)
    else:  # the reference there multiplies and adds in float64
        assert (raw == wanted).mean() > 0.999
    assert value.struct_type.name == f"ggml.{name}"
    assert not value.has_affine()


def test_huge_numbers_do_not_fit_records() -> None:
    array = np.full((1, 1, 1, 32), 1e7, "f4")
    for name in ("q8_0", "q4_0"):
        with pytest.raises(ValueError, match="exceeds"):
            PagedCache(policy=name).append(array, array)
    array[:] = 8.3e6
    assert np.isfinite(encoded(array, "q8_0")[1].key_array()).all()


@pytest.mark.parametrize("scale_type", ["float32", "bfloat16"])
def test_types_of_scales(scale_type: str) -> None:
    array = normal((1, 1, 64, 32))
    value, cache = encoded(array, f"int8/token/{scale_type}")
    scales = np.asarray(ol.to_array(value.affine.scale))
    assert scales.dtype.name == scale_type
    wanted = (np.abs(array).max(3, keepdims=True).astype("f8") / 127).astype("f4")
    np.testing.assert_array_equal(scales, wanted.astype(scales.dtype))
    assert cache.key_array().tobytes() == parts_of(value).values().tobytes()


def test_one_scale_that_float16_cannot_hold_makes_all_of_them_float() -> None:
    array = normal((1, 1, 64, 8))
    for factor in (1e-30, 1e-6, 1e8):
        part = array.copy()
        part[..., 1] *= factor
        value, cache = encoded(part, "int8/channel")
        assert value.affine.scale.data_type == ol.TensorProto.FLOAT
        error = np.abs(cache.key_array() - part).max(2)
        assert (error <= np.abs(part).max(2) / 127 * 0.51).all()
    part[..., 1] = 0
    assert encoded(part, "int8/channel")[0].affine.scale.data_type == ol.TensorProto.FLOAT16


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_any_type_is_encoded_as_its_floats(source: str) -> None:
    array = normal((1, 2, 32, 64)).astype(source)
    for text in ("uint4/token:8", "int8/channel", "q8_0", "int2/tensor"):
        narrow = encoded(array, text)[0]
        wide = encoded(array.astype("f4"), text)[0]
        assert narrow == wide


def test_codes_scales_and_zero_points_are_views() -> None:
    array = normal((2, 3, 16, 32))
    cache = PagedCache.from_arrays(
        array, array, page_size=16, policy="k=uint8/channel:8 v=uint4/token"
    )
    key, value = cache.pages[0].key, cache.pages[0].value
    parts = parts_of(cache.to_proto().blocks[0].encoded_key)
    np.testing.assert_array_equal(key.codes, parts.codes)
    assert (key.scales.shape, key.zero_points.shape) == ((2, 3, 2, 32), (2, 3, 2, 32))
    assert (key.codes.dtype, key.scales.dtype, key.zero_points.dtype) == ("u1", "f2", "u1")
    block = cache.to_proto().blocks[0].encoded_value
    assert value.codes.tobytes() == block.raw_data
    assert value.zero_points.tobytes() == block.affine.zero_point.raw_data
    for view in (key.codes, key.scales, value.zero_points):
        assert not view.flags.writeable
        assert not view.flags.owndata
    assert cache.truncate(5).pages[0].key.codes.shape == (2, 3, 5, 32)
    with pytest.raises(ValueError, match="encoded"):
        key.array  # noqa: B018
    dense = PagedCache.from_arrays(array, array).pages[0].key
    assert (dense.codes, dense.scales, dense.zero_points) == (None, None, None)


def run_everywhere(isa: str) -> subprocess.CompletedProcess[str]:
    code = """
import hashlib, numpy as np
from onnx_light import PagedCache
rng = np.random.default_rng(1)
digest = hashlib.sha256()
for width in (1, 7, 33, 64, 80, 96, 128, 576):
    array = rng.standard_normal((2, 2, 70, width)).astype("f4")
    for text in (*(("q8_0", "q4_0") if width % 32 == 0 else ()),
                 "int8/channel", "uint8/token:9", "int4/token:32", "uint4/channel:32",
                 "uint2/tensor", "int2/channel:5", "int4/tensor/float32", "uint8/channel/bfloat16",
                 "f16", "f8e5m2"):
        cache = PagedCache.from_arrays(array, array, policy=text)
        digest.update(cache.to_proto("x").SerializeToString() + cache.key_array("f4").tobytes())
print(digest.hexdigest())
"""
    environment = {**os.environ, "ONNX_LIGHT_ISA": isa}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_every_instruction_set_gives_the_same_bits() -> None:
    digests = {}
    for isa in ("", "scalar", "avx2", "avx512"):
        result = run_everywhere(isa)
        if "isa.unsupported" in result.stderr or "this machine has no" in result.stderr:
            continue
        assert len(result.stdout.strip()) == len(hashlib.sha256().hexdigest()), result.stderr
        digests[isa] = result.stdout
    assert len(digests) >= 2
    assert len(set(digests.values())) == 1
    assert "ONNX_LIGHT_ISA: 'sse9' is none of scalar, avx2, avx512" in run_everywhere("sse9").stderr


def test_all_types_are_covered() -> None:
    assert {PageFormat(text).name for text in FORMATS} == set(TYPE_NAMES)
    assert set(TYPE_NAMES.values()) == set(CODE_TYPES)
