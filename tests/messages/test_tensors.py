"""to_array and from_array against numpy_helper of the onnx package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_light.errors import CodedError
from onnx_light.onnx import TensorProto, from_array, to_array

STRING = TensorProto.STRING
ALL_TYPES = sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED})
NUMBERS = [t for t in ALL_TYPES if t != STRING]
SIX_BITS = [TensorProto.FLOAT6E2M3, TensorProto.FLOAT6E3M2]  # make_tensor of onnx cannot make them
BITS = {
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "int2": 2,
    "uint2": 2,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
by_name = TensorProto.DataType.Name


def ours(tensor: onnx.TensorProto) -> TensorProto:
    return TensorProto.FromString(tensor.SerializeToString())


def dtype_of(data_type: int) -> np.dtype[Any]:
    return onnx.helper.tensor_dtype_to_np_dtype(data_type)


def random_bits(data_type: int, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """An array of any bit patterns, with NaN of every kind."""
    dtype = dtype_of(data_type)
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    size = int(np.prod(shape, dtype=np.int64))
    high = 1 << BITS.get(dtype.name, 8)
    return rng.integers(0, high, size * dtype.itemsize, np.uint8).view(dtype).reshape(shape)


def assert_same(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("data_type", NUMBERS, ids=by_name)
@given(shape=SHAPES, seed=st.integers(0, 2**32))
def test_raw_elements(data_type: int, shape: tuple[int, ...], seed: int) -> None:
    array = random_bits(data_type, shape, seed)
    expected = onnx.numpy_helper.from_array(array, "name")
    assert from_array(array, "name").SerializeToString() == expected.SerializeToString()
    assert_same(to_array(ours(expected)), onnx.numpy_helper.to_array(expected))


def entries(data_type: int, array: np.ndarray[Any, Any]) -> list[Any]:
    """The typed field's content, by the text of onnx.proto."""
    name = array.dtype.name
    if name in ("int4", "uint4", "float4_e2m1fn", "int2", "uint2"):
        return list(onnx.numpy_helper.from_array(array).raw_data)
    flat = array.reshape(-1)
    if name.startswith("complex"):
        return flat.view("f4" if name == "complex64" else "f8").tolist()
    if name in ("float32", "float64") or flat.dtype.kind in "iu":
        return flat.tolist()
    return flat.view(np.dtype(f"u{flat.itemsize}")).tolist()


@pytest.mark.parametrize("data_type", NUMBERS, ids=by_name)
@given(shape=SHAPES, seed=st.integers(0, 2**32), negative=st.booleans())
def test_typed_elements(data_type: int, shape: tuple[int, ...], seed: int, negative: bool) -> None:
    array = random_bits(data_type, shape, seed)
    tensor = onnx.TensorProto(data_type=data_type, dims=shape)
    field = onnx.helper.tensor_dtype_to_field(data_type)
    values = entries(data_type, array)
    if (
        negative
        and field == "int32_data"
        and array.itemsize == 1
        and data_type not in (*SIX_BITS, TensorProto.BOOL)
    ):
        values = [value - 256 if value > 127 else value for value in values]
    with np.errstate(all="ignore"):
        getattr(tensor, field).extend(values)
        expected = onnx.numpy_helper.to_array(tensor)
    actual = to_array(ours(tensor))
    assert_same(actual, expected)


@pytest.mark.parametrize("data_type", sorted({*NUMBERS} - {*SIX_BITS}), ids=by_name)
def test_make_tensor(data_type: int) -> None:
    array = (np.arange(15) % 4 + 1).reshape(3, 5).astype(dtype_of(data_type))
    tensor = onnx.helper.make_tensor("", data_type, array.shape, array.reshape(-1).tolist())
    assert_same(to_array(ours(tensor)), array)


@given(shape=SHAPES, data=st.data())
def test_strings(shape: tuple[int, ...], data: st.DataObject) -> None:
    array = np.empty(shape, object)
    for index in np.ndindex(shape):
        # numpy's own text arrays, which onnx goes through, drop zeros at the end.
        array[index] = data.draw(st.text(st.characters(exclude_categories=["Cs"]))).rstrip("\0")
    expected = onnx.numpy_helper.from_array(array)
    assert from_array(array).SerializeToString() == expected.SerializeToString()
    actual = to_array(ours(expected))
    assert (actual.dtype, actual.shape) == (np.dtype(object), shape)
    assert actual.tolist() == onnx.numpy_helper.to_array(expected).tolist() == array.tolist()


def test_strings_of_other_kinds() -> None:
    for array in (np.array(["a", "é\0é"]), np.array([b"\xff", "a"], object), np.array("x")):
        expected = onnx.numpy_helper.from_array(array)
        assert from_array(array).SerializeToString() == expected.SerializeToString()
    assert to_array(TensorProto(data_type=STRING, dims=[1], string_data=[b"a\0"])).tolist() == [
        "a\0"
    ]


@pytest.mark.parametrize("data_type", NUMBERS, ids=by_name)
def test_strides_and_byte_order(data_type: int) -> None:
    array = random_bits(data_type, (4, 3, 5), 1)
    views = [array.T, array[::-2, :, 1:4], array[0, 0, 0], np.asfortranarray(array)]
    if dtype_of(data_type).kind in "fiuc":
        views.append(array.astype(array.dtype.newbyteorder(">")))
    for view in views:
        expected = onnx.numpy_helper.from_array(np.array(view, dtype_of(data_type), order="C"))
        assert from_array(view).SerializeToString() == expected.SerializeToString()


def test_names() -> None:
    array = np.zeros(2, np.float32)
    for name in (None, "", "a"):
        expected = onnx.numpy_helper.from_array(array, name)
        assert from_array(array, name).SerializeToString() == expected.SerializeToString()


def test_the_view_shares_the_payload() -> None:
    tensor = from_array(np.arange(1000, dtype=np.float32))
    array = to_array(tensor)
    payload = np.frombuffer(tensor.payload("raw_data"), np.uint8)
    assert np.shares_memory(array, payload)
    assert not array.flags.writeable
    tensor.raw_data = b"\1" * 4000
    del payload, tensor
    assert array.tolist() == list(range(1000))


def test_payloads_at_odd_places() -> None:
    """A payload borrowed from the input lies where the input has it."""
    from onnx_light.onnx import ParseOptions

    expected = np.arange(100, dtype=np.float64)
    for name_length in range(8):
        data = from_array(expected, "n" * name_length).SerializeToString()
        tensor = TensorProto()
        tensor.ParseFromString(data, ParseOptions(no_copy=True))
        array = to_array(tensor)
        assert array.flags.aligned
        assert array.tolist() == expected.tolist()


def test_booleans_are_one_or_zero() -> None:
    raw = TensorProto(data_type=TensorProto.BOOL, dims=[3], raw_data=bytes([0, 2, 255]))
    assert to_array(raw).view(np.uint8).tolist() == [0, 1, 1]
    typed = TensorProto(data_type=TensorProto.BOOL, dims=[3], int32_data=[0, 2, -1])
    assert to_array(typed).view(np.uint8).tolist() == [0, 1, 1]


FLOAT, INT4, INT2 = TensorProto.FLOAT, TensorProto.INT4, TensorProto.INT2
BAD = {
    "short": ({"data_type": FLOAT, "dims": [3], "raw_data": bytes(11)}, "tensor.size", "raw_data"),
    "long": ({"data_type": FLOAT, "dims": [3], "raw_data": bytes(16)}, "tensor.size", "raw_data"),
    "empty": ({"data_type": FLOAT, "dims": [3]}, "tensor.size", "float_data"),
    "too many": (
        {"data_type": FLOAT, "dims": [], "float_data": [1, 2]},
        "tensor.size",
        "float_data",
    ),
    "zero dim": ({"data_type": FLOAT, "dims": [0], "float_data": [1]}, "tensor.size", "float_data"),
    "nibbles": ({"data_type": INT4, "dims": [5], "raw_data": bytes(2)}, "tensor.size", "raw_data"),
    "more nibbles": (
        {"data_type": INT4, "dims": [5], "raw_data": bytes(4)},
        "tensor.size",
        "raw_data",
    ),
    "8 per int": ({"data_type": INT4, "dims": [8], "int32_data": [1]}, "tensor.size", "int32_data"),
    "16 per int": (
        {"data_type": INT2, "dims": [16], "int32_data": [1]},
        "tensor.size",
        "int32_data",
    ),
    "half complex": (
        {"data_type": TensorProto.COMPLEX64, "dims": [2], "float_data": [1, 2, 3]},
        "tensor.size",
        "float_data",
    ),
    "6 bits": (
        {"data_type": TensorProto.FLOAT6E2M3, "dims": [3], "raw_data": bytes(2)},
        "tensor.size",
        "raw_data",
    ),
    "negative": (
        {"data_type": FLOAT, "dims": [2, -1], "raw_data": bytes(8)},
        "tensor.dims",
        "dims[1]",
    ),
    "two negative": (
        {"data_type": FLOAT, "dims": [-1, -1], "raw_data": bytes(4)},
        "tensor.dims",
        "dims[0]",
    ),
    "2^64": ({"data_type": FLOAT, "dims": [2**32, 2**32], "raw_data": b""}, "tensor.dims", "dims"),
    "2^128": ({"data_type": FLOAT, "dims": [2**62] * 4, "raw_data": b""}, "tensor.dims", "dims"),
    "beside 0": ({"data_type": FLOAT, "dims": [0, 2**62, 2**62]}, "tensor.dims", "dims"),
    "axes": ({"data_type": FLOAT, "dims": [1] * 65, "float_data": [1]}, "tensor.dims", "dims"),
    "undefined": ({"dims": [1], "raw_data": bytes(4)}, "tensor.data_type", "data_type"),
    "two fields": (
        {"data_type": FLOAT, "dims": [1], "raw_data": bytes(4), "float_data": [1]},
        "tensor.data",
        "float_data",
    ),
    "wrong field": (
        {"data_type": FLOAT, "dims": [1], "int32_data": [1]},
        "tensor.data",
        "int32_data",
    ),
    "raw string": ({"data_type": STRING, "dims": [1], "raw_data": b"a"}, "tensor.data", "raw_data"),
    "no utf-8": (
        {"data_type": STRING, "dims": [2], "string_data": [b"a", b"\xff"]},
        "tensor.utf8",
        "string_data[1]",
    ),
    "segment": (
        {"data_type": FLOAT, "dims": [1], "float_data": [1], "segment": {"begin": 0, "end": 1}},
        "tensor.segment",
        "segment",
    ),
    "external string": (
        {"data_type": STRING, "dims": [1], "data_location": 1},
        "tensor.data",
        "external_data",
    ),
}


@pytest.mark.parametrize(("fields", "code", "path"), BAD.values(), ids=BAD.keys())
def test_bad_tensors(fields: dict[str, Any], code: str, path: str) -> None:
    with pytest.raises(CodedError) as caught:
        to_array(TensorProto(**fields))
    assert (caught.value.code, caught.value.path) == (code, path)
    assert str(caught.value).startswith(f"{path}: ")


def test_unknown_data_type() -> None:
    for number in (29, 1000, -1, 2**31 - 1):
        tensor = TensorProto.FromString(onnx.TensorProto(data_type=number).SerializeToString())
        with pytest.raises(CodedError) as caught:
            to_array(tensor)
        assert caught.value.code == "tensor.data_type"


@pytest.mark.parametrize(
    "array",
    [np.zeros(2, "M8[s]"), np.zeros(2, "S3"), np.array([1, None]), np.zeros(2, "f4,i4"),
     np.zeros(2, ml_dtypes.float8_e3m4)],
    ids=str,
)  # fmt: skip
def test_arrays_without_data_type(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(CodedError) as caught:
        from_array(array)
    assert caught.value.code == "tensor.dtype"


# External data.


def external(location: str | None = "w.data", **entries: object) -> TensorProto:
    tensor = TensorProto(data_type=FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    if location is not None:
        tensor.external_data.add(key="location", value=location)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model/sub").mkdir(parents=True)
    data = np.arange(8, dtype=np.float32).tobytes()
    for name in ("outside.data", "model/w.data", "model/sub/w.data"):
        (tmp_path / name).write_bytes(data)
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("tensor", "first"),
    [
        (external(offset=4, length=12), 1),
        (external(offset=20), 5),
        (external(length=12), 0),
        (external("sub/w.data", offset=8, length=12), 2),
        (external("./sub//w.data", offset="0008", length=12), 2),
        (external(offset=4, length=12, checksum="00", basepath="/x", other="y"), 1),
    ],
)
def test_external_data(
    folder: Path, tensor: TensorProto, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tensor.SerializeToString()
    expected = np.arange(first, first + 3, dtype=np.float32)
    actual = to_array(tensor, folder)
    assert_same(actual, expected)
    assert not actual.flags.writeable
    assert tensor.SerializeToString() == before
    monkeypatch.chdir(folder)
    assert_same(to_array(tensor), expected)


def test_external_data_as_onnx_writes_them(folder: Path) -> None:
    for data_type in NUMBERS:
        array = random_bits(data_type, (3, 5), data_type)
        theirs = onnx.numpy_helper.from_array(array, "w")
        onnx.external_data_helper.set_external_data(theirs, "out.data")
        onnx.external_data_helper.save_external_data(theirs, str(folder))
        theirs.ClearField("raw_data")
        assert_same(to_array(ours(theirs), folder), array)


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        (external("../outside.data", length=12), "external.path"),
        (external("sub/../w.data", length=12), "external.path"),
        (external("/etc/hostname", length=12), "external.path"),
        (external("", length=12), "external.location"),
        (external(None, length=12), "external.location"),
        (external("#t0", length=12), "external.location"),
        (external("sub/", length=12), "external.path"),
        (external("a\0b", length=12), "external.path"),
        (external("sub", length=12), "external.not_regular"),
        (external("fifo", length=12), "external.not_regular"),
        (external("link", length=12), "external.link"),
        (external("linked/w.data", length=12), "external.link"),
        (external("hard", length=12), "external.link"),
        (external(offset=33, length=0), "external.range"),
        (external(offset=33), "external.range"),
        (external(offset=24, length=12), "external.range"),
        (external(offset=2**64 - 4, length=12), "external.range"),
        (external(offset=12, length=2**64 - 1), "external.range"),
        (external(offset=2**64, length=12), "external.number"),
        (external(offset="-1", length=12), "external.number"),
        (external(offset="+1", length=12), "external.number"),
        (external(offset=" 1", length=12), "external.number"),
        (external(offset="1x", length=12), "external.number"),
        (external(offset="", length=12), "external.number"),
        (external(offset="٣", length=12), "external.number"),
        (external(length="1_2"), "external.number"),
        (external(length=8), "tensor.size"),
        (external(length=16), "tensor.size"),
        (external(), "tensor.size"),
    ],
)
def test_refused_external_data(folder: Path, tensor: TensorProto, code: str) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("w.data")
    (folder / "linked").symlink_to("sub")
    os.link(folder.parent / "outside.data", folder / "hard")
    with pytest.raises(CodedError) as caught:
        to_array(tensor, folder)
    assert caught.value.code == code
    assert caught.value.path == "external_data"


def test_inline_beside_external(folder: Path) -> None:
    for fields in ({"raw_data": bytes(12)}, {"float_data": [1, 2, 3]}):
        tensor = external(length=12)
        tensor.MergeFrom(TensorProto(**fields))
        with pytest.raises(CodedError) as caught:
            to_array(tensor, folder)
        assert caught.value.code == "external.inline"


def test_missing_external_file(folder: Path) -> None:
    for location in ("none", "none/w.data"):
        with pytest.raises(FileNotFoundError) as caught:
            to_array(external(location, length=12), folder)
        assert caught.value.filename == location
    with pytest.raises(FileNotFoundError):
        to_array(external(length=12), folder / "none")
