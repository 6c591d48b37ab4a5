"""Encoded payloads that others write: every layout of the contract, catalogues, unknown types."""

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from quant_model import CODE_TYPES, pack, parts_of

from onnx_light import PagedCache
from onnx_light import onnx as ol
from onnx_light.errors import CodedError

SCALE_TYPES = ("float32", "float16", ml_dtypes.bfloat16)


def raises(code: str, path: str, call: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(CodedError) as error:
        call(*args, **kwargs)
    assert (error.value.code, error.value.path) == (code, path), error.value


def encoded(
    rng: np.random.Generator,
    dims: tuple[int, ...],
    *,
    storage: int = 3,
    axis: int | None = 3,
    block: int = 0,
    scale_type: Any = "f4",
    zero_points: bool = True,
) -> Any:
    """Random codes with a scalar scale (no axis), one for each index of the axis, or in blocks."""
    bits, _ = CODE_TYPES[storage]
    shape: list[int] = []
    if axis is not None:
        n = dims[axis]
        shape = [n] if not block else [*dims]
        if block:
            shape[axis] = -(-n // block)
    value = ol.EncodedValueProto(raw_data=pack(rng.integers(0, 1 << bits, dims), bits))
    value.affine.storage_type = storage
    value.affine.scale.CopyFrom(ol.from_array(rng.standard_normal(shape).astype(scale_type)))
    if zero_points:
        value.affine.zero_point.data_type = storage
        value.affine.zero_point.dims.extend(shape)
        zeros = rng.integers(0, 1 << bits, shape)
        value.affine.zero_point.raw_data = pack(np.atleast_1d(zeros), bits)
    if axis is not None:
        value.affine.axis = axis
    if block:
        value.affine.block_size = block
    describe(value, dims)
    return value


def describe(value: Any, dims: tuple[int, ...]) -> None:
    tensor = value.logical_type.tensor_type
    tensor.elem_type = ol.TensorProto.FLOAT
    for dim in dims:
        tensor.shape.dim.add(dim_value=dim)


def message(value: Any, length: int) -> Any:
    proto = ol.PagedCacheProto()
    block = proto.blocks.add(start=0, length=length)
    block.encoded_key = value
    block.encoded_value = value
    return proto


def read(value: Any, model: Any = None) -> PagedCache:
    length = value.logical_type.tensor_type.shape.dim[2].dim_value
    return PagedCache.from_proto(message(value, length), model)


@pytest.mark.parametrize("scale_type", SCALE_TYPES, ids=str)
@pytest.mark.parametrize("storage", CODE_TYPES)
def test_every_layout(storage: int, scale_type: Any) -> None:
    rng = np.random.default_rng(storage)
    dims = (2, 3, 5, 7)
    for axis in (None, *range(-4, 4)):
        for block in (0,) if axis is None else (0, 1, 2, 3, dims[axis], 2**40):
            for zero_points in (False, True):
                value = encoded(
                    rng,
                    dims,
                    storage=storage,
                    axis=axis,
                    block=block,
                    scale_type=scale_type,
                    zero_points=zero_points,
                )
                cache = read(value)
                wanted = parts_of(value).values()
                assert cache.key_array().tobytes() == wanted.tobytes()
                again = PagedCache.from_proto(cache.to_proto())
                assert again == cache
                cut = PagedCache.from_proto(cache.truncate(3).to_proto())
                assert cut == cache.truncate(3)
                assert cut.key_array().tobytes() == wanted[:, :, :3].tobytes()
                assert cache.gather([1, 1, 0]).key_array().tobytes() == wanted[[1, 1, 0]].tobytes()
                assert cache.slice(2, 4).key_array().tobytes() == wanted[:, :, 2:4].tobytes()


@pytest.mark.parametrize("storage", [kind for kind, (bits, _) in CODE_TYPES.items() if bits > 2])
@pytest.mark.parametrize("axis", [None, *range(-4, 4)])
def test_onnx_runtime_dequantizes_the_same(storage: int, axis: int | None) -> None:
    """One scale, one for each index of an axis, and blocks with a ragged last one."""
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    dims = (2, 3, 5, 7)
    for block in (0,) if axis is None else (0, 2, dims[axis]):
        value = encoded(np.random.default_rng(5), dims, storage=storage, axis=axis, block=block)
        affine = value.affine
        tensors = [
            onnx.helper.make_tensor("x", storage, dims, value.raw_data, raw=True),
            onnx.helper.make_tensor("s", 1, affine.scale.dims, affine.scale.raw_data, raw=True),
            onnx.helper.make_tensor(
                "z", storage, affine.zero_point.dims, affine.zero_point.raw_data, raw=True
            ),
        ]
        attributes = {} if axis is None else {"axis": axis, "block_size": block}
        node = onnx.helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], **attributes)
        output = onnx.helper.make_tensor_value_info("y", 1, dims)
        graph = onnx.helper.make_graph([node], "g", [], [output], tensors)
        opsets = [onnx.helper.make_opsetid("", 21)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        session = ort.InferenceSession(model.SerializeToString(), None)
        np.testing.assert_array_equal(session.run(None, {})[0], read(value).key_array())


@pytest.mark.parametrize("storage", CODE_TYPES)
def test_the_storage_type_follows_from_the_bytes(storage: int) -> None:
    _, signed = CODE_TYPES[storage]
    value = encoded(np.random.default_rng(1), (1, 2, 5, 3), storage=storage)
    wanted = read(value).key_array()
    value.affine.ClearField("storage_type")
    if signed:
        value.affine.signed_storage = True
    assert read(value).key_array().tobytes() == wanted.tobytes()


def test_an_ambiguous_or_unmatched_number_of_bytes() -> None:
    path = "blocks[0].encoded_key.affine.storage_type"
    for dims, size in (
        ((1, 1, 1, 1), 1),
        ((1, 1, 1, 2), 1),
        ((1, 1, 5, 5), 12),
        ((1, 1, 5, 5), 26),
    ):
        value = encoded(np.random.default_rng(1), dims, zero_points=False)
        value.affine.ClearField("storage_type")
        value.raw_data = bytes(size)
        raises("cache.storage_type", path, read, value)


def test_zero_points_in_typed_data() -> None:
    for storage, numbers in ((3, [-128, 5, 127]), (2, [0, 5, 255]), (21, [0x21, 0x03])):
        value = encoded(np.random.default_rng(1), (1, 1, 3, 4), storage=storage, axis=2)
        bits, _ = CODE_TYPES[storage]
        value.affine.zero_point.ClearField("raw_data")
        value.affine.zero_point.int32_data.extend(numbers)
        raw = np.array(numbers).astype("u1").tobytes()
        same = ol.EncodedValueProto(value)
        same.affine.zero_point.ClearField("int32_data")
        same.affine.zero_point.raw_data = raw
        assert len(raw) == -(-3 * bits // 8)
        assert read(value).key_array().tobytes() == parts_of(same).values().tobytes()
    value.affine.zero_point.int32_data[0] = 256
    where = "blocks[0].encoded_key.affine.zero_point.int32_data[0]"
    raises("cache.data", where, read, value)


def catalogue(name: str) -> Any:
    model = ol.ModelProto()
    scale = ol.from_array(np.float32(0.25), "s")
    model.graph.initializer.append(scale)
    zero = model.graph.initializer.add(name="z", data_type=3, raw_data=b"\x02")
    assert not zero.dims
    note = model.graph.quantization_annotation.add(
        tensor_name=f"onnx_light.quantization.parameters:{name}"
    )
    note.quant_parameter_tensor_names.add(key="scale", value="s")
    note.quant_parameter_tensor_names.add(key="zero_point", value="z")
    return model


def test_parameters_of_the_catalogue() -> None:
    value = encoded(np.random.default_rng(1), (1, 1, 2, 4), axis=None, zero_points=False)
    value.affine.ClearField("scale")
    value.parameter_ref = "shared"
    codes = np.frombuffer(value.raw_data, "i1").reshape(1, 1, 2, 4)
    cache = read(value, catalogue("shared"))
    np.testing.assert_array_equal(cache.key_array(), (codes.astype("f4") - 2) * 0.25)
    inline = cache.to_proto().blocks[0].encoded_key
    assert not inline.has_parameter_ref()
    assert PagedCache.from_proto(cache.to_proto()) == cache
    where = "blocks[0].encoded_key.parameter_ref"
    raises("cache.reference", where, read, value)
    raises("cache.reference", where, read, value, catalogue("other"))
    for change in (
        lambda m: m.graph.initializer.pop(0),
        lambda m: m.graph.initializer.pop(1),
        lambda m: m.graph.quantization_annotation[0].quant_parameter_tensor_names.pop(0),
    ):
        broken = catalogue("shared")
        change(broken)
        raises("cache.reference", where, read, value, broken)
    value.affine.scale.CopyFrom(ol.from_array(np.float32(1)))
    raises("cache.scale", "blocks[0].encoded_key", read, value, catalogue("shared"))


@pytest.mark.parametrize("scale_type", SCALE_TYPES, ids=str)
@pytest.mark.parametrize("storage", CODE_TYPES)
def test_parameters_of_the_catalogue_have_every_form(storage: int, scale_type: Any) -> None:
    for axis, block in ((None, 0), (1, 0), (-1, 0), (-2, 3), (0, 1)):
        for zero_points in (False, True):
            value = encoded(
                np.random.default_rng(6),
                (2, 3, 5, 7),
                storage=storage,
                axis=axis,
                block=block,
                scale_type=scale_type,
                zero_points=zero_points,
            )
            inline = read(value)
            model = ol.ModelProto()
            note = model.graph.quantization_annotation.add(
                tensor_name="onnx_light.quantization.parameters:p"
            )
            for part in ("scale", "zero_point") if zero_points else ("scale",):
                tensor = model.graph.initializer.add()
                tensor.CopyFrom(getattr(value.affine, part))
                tensor.name = part
                note.quant_parameter_tensor_names.add(key=part, value=part)
                value.affine.ClearField(part)
            value.parameter_ref = "p"
            assert read(value, model) == inline
            assert read(value, model).key_array().tobytes() == inline.key_array().tobytes()


def record(name: str) -> Any:
    rng = np.random.default_rng(2)
    array = rng.standard_normal((1, 2, 4, 64)).astype("f4")
    cache = PagedCache.from_arrays(array, array, page_size=4, policy=name)
    return cache.to_proto().blocks[0].encoded_key


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_types_of_the_catalogue(name: str) -> None:
    value = record(name)
    wanted = read(value)
    model = ol.ModelProto()
    whole = model.struct_types.add(type_id=7)
    whole.MergeFrom(value.struct_type)
    codes = model.struct_types.add(type_id=9)
    codes.MergeFrom(value.struct_type.structure.field[1].type.struct_type)
    inner = whole.structure.field[1].type.struct_type
    inner.Clear()
    inner.type_ref = 9
    value.struct_type.Clear()
    value.struct_type.type_ref = 7
    assert read(value, model) == wanted
    raises("cache.reference", "blocks[0].encoded_key.struct_type", read, value)
    del model.struct_types[1]
    raises("cache.reference", "blocks[0].encoded_key.struct_type", read, value, model)
    inner.type_ref = 7
    raises("cache.layout", "blocks[0].encoded_key.struct_type", read, value, model)


def test_types_that_grow_without_bound() -> None:
    value = record("q8_0")
    model = ol.ModelProto()
    for i in range(30):
        structure = model.struct_types.add(type_id=i).structure
        for _ in range(2):
            structure.field.add().type.struct_type.type_ref = i + 1
    model.struct_types.add(type_id=30).array.dimension = 1
    value.struct_type.Clear()
    value.struct_type.type_ref = 0
    raises("cache.layout", "blocks[0].encoded_key.struct_type", read, value, model)


def test_unknown_layouts_are_kept_and_have_no_values() -> None:
    value = record("q8_0")
    value.struct_type.name = "other.layout"
    proto = message(value, 4)
    cache = PagedCache.from_proto(proto)
    assert cache.to_proto().SerializeToString() == proto.SerializeToString()
    assert PagedCache.from_proto(cache.to_proto()) == cache
    assert cache != read(record("q8_0"))
    assert str(cache.pages[0].key.format) == "other.layout"
    assert cache.pages[0].key.codes.tobytes() == value.raw_data
    assert cache.nbytes == 2 * len(value.raw_data)
    for call in (
        cache.key_array,
        cache.to_arrays,
        cache.dequantize,
        lambda: cache.quantize("int8", pages=[0]),
        lambda: cache.slice(1, 3),
        lambda: cache.compare(cache),
        lambda: cache.repage(2),
    ):
        raises("quant.unknown_layout", "key", call)
    array = np.zeros((1, 2, 1, 64), "f4")
    longer = cache.append(array, array)
    assert len(longer.pages) == 2
    cut = cache.truncate(1).to_proto().blocks[0].encoded_key.raw_data
    rows = np.frombuffer(cut, "u1").reshape(2, 4, -1)
    assert rows[:, 0].tobytes() == cache.pages[0].key.codes.reshape(2, 4, -1)[:, 0].tobytes()
    assert not rows[:, 1:].any()


def add_constant(struct_type: Any, number: float) -> None:
    constant = struct_type.structure.field.add(name="constant").constant
    constant.data_type = ol.TensorProto.FLOAT
    constant.dims.append(1)
    constant.float_data.append(number)


@pytest.mark.parametrize("number", [1.0, -0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_unknown_layouts_are_equal_by_their_visible_rows(length: int, number: float) -> None:
    value = record("q8_0")
    value.struct_type.name = "other.layout"
    add_constant(value.struct_type, number)
    value.name = "k"
    rows = np.arange(1, 1 + len(value.raw_data), dtype="u2").astype("u1").reshape(2, 4, -1)
    value.raw_data = rows.tobytes()
    cache = PagedCache.from_proto(message(value, length))
    assert PagedCache.from_proto(cache.to_proto()) == cache
    assert pickle.loads(pickle.dumps(cache)) == cache
    for token in range(4):
        for head in range(2):
            other = rows.copy()
            other[head, token, -1] ^= 1
            value.raw_data = other.tobytes()
            assert (PagedCache.from_proto(message(value, length)) == cache) == (token >= length)
    value.raw_data = rows.tobytes()
    value.name = "v"
    assert PagedCache.from_proto(message(value, length)) != cache


@pytest.mark.parametrize("change", [-8, -1, 1, 7, 8])
def test_rows_of_unknown_layouts_may_have_any_size(change: int) -> None:
    """Bytes that are no rows of one size are kept as a whole; no row can be cut off them."""
    value = record("q8_0")
    value.struct_type.name = "other.layout"
    value.raw_data = bytes(len(value.raw_data) + change)
    cache = read(value)
    assert cache.to_proto().SerializeToString() == message(value, 4).SerializeToString()
    assert PagedCache.from_proto(cache.to_proto()) == cache
    if change % 8 == 0:
        assert PagedCache.from_proto(cache.truncate(1).to_proto()) == cache.truncate(1)
    else:
        raises("quant.unknown_layout", "", cache.truncate(1).to_proto)
        value.raw_data = value.raw_data[:-1] + b"?"
        assert read(value) != cache


def test_names_may_be_any_bytes() -> None:
    value = record("q8_0")
    value.struct_type.name = "x" * 8
    raw = message(value, 4).SerializeToString().replace(b"x" * 8, b"\xff\x00\nab\xc3(z")
    cache = PagedCache.from_proto(ol.PagedCacheProto.FromString(raw))
    assert str(cache.pages[0].key.format) == r"\xff\x00\x0aab\xc3(z"
    assert r"\xff\x00\x0aab\xc3(z" in repr(cache)
    with pytest.raises(CodedError, match="ab"):
        cache.key_array()


def test_a_known_name_with_another_structure_is_unknown() -> None:
    for name in ("q8_0", "q4_0"):
        value = record(name)
        value.struct_type.structure.field[1].type.struct_type.array.dimension += 1
        raises("quant.unknown_layout", "key", read(value).key_array)
    value = record("q8_0")
    value.struct_type.name = "ggml.q4_0"
    raises("quant.unknown_layout", "key", read(value).key_array)


def dims_of(value: Any) -> Any:
    return value.logical_type.tensor_type.shape.dim


@pytest.mark.parametrize(
    ("code", "where", "change"),
    [
        ("missing", "", lambda e: e.ClearField("raw_data")),
        ("missing", "", lambda e: e.ClearField("affine")),
        ("missing", "", lambda e: e.ClearField("logical_type")),
        ("missing", ".affine", lambda e: e.affine.ClearField("scale")),
        ("external", "", lambda e: setattr(e, "data_location", 1)),
        ("payload_size", ".raw_data", lambda e: setattr(e, "raw_data", e.raw_data + b"x")),
        ("payload_size", ".raw_data", lambda e: setattr(e, "raw_data", e.raw_data[1:])),
        ("logical_type", ".logical_type", lambda e: dims_of(e).pop()),
        (
            "logical_type",
            ".logical_type",
            lambda e: setattr(e.logical_type.tensor_type, "elem_type", 10),
        ),
        (
            "logical_type",
            ".logical_type.tensor_type.shape.dim[1]",
            lambda e: setattr(dims_of(e)[1], "dim_value", 0),
        ),
        (
            "logical_type",
            ".logical_type.tensor_type.shape.dim[2]",
            lambda e: setattr(dims_of(e)[2], "dim_param", "n"),
        ),
        (
            "too_large",
            "",
            lambda e: setattr(dims_of(e)[0], "dim_value", 2**61),
        ),
        ("storage_type", ".affine.storage_type", lambda e: setattr(e.affine, "storage_type", 1)),
        ("axis", ".affine.axis", lambda e: setattr(e.affine, "axis", 4)),
        ("axis", ".affine.axis", lambda e: setattr(e.affine, "axis", -5)),
        ("axis", ".affine", lambda e: e.affine.ClearField("axis")),
        ("block_size", ".affine.block_size", lambda e: e.affine.ClearField("block_size")),
        ("scale", ".affine.scale", lambda e: setattr(e.affine, "block_size", 5)),
        ("scale", ".affine.scale", lambda e: setattr(e.affine, "block_size", 2**64 - 1)),
        ("scale", ".affine.scale.data_type", lambda e: setattr(e.affine.scale, "data_type", 11)),
        ("scale", ".affine.scale", lambda e: e.affine.scale.dims.pop()),
        ("payload_size", ".affine.scale", lambda e: setattr(e.affine.scale, "raw_data", b"1234")),
        ("missing", ".affine.scale", lambda e: e.affine.scale.ClearField("raw_data")),
        (
            "zero_point",
            ".affine.zero_point.data_type",
            lambda e: setattr(e.affine.zero_point, "data_type", 2),
        ),
        ("zero_point", ".affine.zero_point", lambda e: e.affine.zero_point.dims.append(1)),
        (
            "payload_size",
            ".affine.zero_point",
            lambda e: setattr(e.affine.zero_point, "raw_data", b"1"),
        ),
    ],
)
def test_one_rule_broken_at_a_time(code: str, where: str, change: Any) -> None:
    value = encoded(np.random.default_rng(3), (1, 2, 8, 16), axis=3, block=8)
    read(value)
    proto = message(value, 8)
    change(proto.blocks[0].encoded_key)
    raises(f"cache.{code}", f"blocks[0].encoded_key{where}", PagedCache.from_proto, proto)


def test_a_vector_of_scales_has_no_blocks() -> None:
    value = encoded(np.random.default_rng(3), (1, 2, 8, 16), axis=3)
    value.affine.block_size = 1
    raises("cache.block_size", "blocks[0].encoded_key.affine.block_size", read, value)


def test_sides_of_a_block_must_fit() -> None:
    proto = message(encoded(np.random.default_rng(3), (1, 2, 8, 16)), 8)
    proto.blocks[0].encoded_value = encoded(np.random.default_rng(3), (1, 2, 9, 16))
    raises("cache.shape", "blocks[0].value", PagedCache.from_proto, proto)
    proto = message(encoded(np.random.default_rng(3), (1, 2, 8, 16)), 9)
    raises("cache.length", "blocks[0].length", PagedCache.from_proto, proto)
    value = record("q8_0")
    value.logical_type.tensor_type.shape.dim[3].dim_value = 33
    raises("cache.layout", "blocks[0].encoded_key.logical_type", read, value)


def test_a_dense_side_beside_an_encoded_one() -> None:
    rng = np.random.default_rng(4)
    proto = message(encoded(rng, (1, 2, 8, 16)), 5)
    dense = rng.standard_normal((1, 2, 8, 6)).astype("f2")
    proto.blocks[0].value = ol.from_array(dense)
    cache = PagedCache.from_proto(proto)
    assert cache.value_array().tobytes() == dense[:, :, :5].tobytes()
    written = cache.to_proto().blocks[0]
    assert list(written.value.dims) == [1, 2, 8, 6]
    rows = np.asarray(ol.to_array(written.value))
    assert rows[:, :, :5].tobytes() == dense[:, :, :5].tobytes()
    assert not rows[:, :, 5:].any()
    assert PagedCache.from_proto(cache.to_proto()) == cache
    assert cache.gather([0, 0]).value_array().tobytes() == dense[[0, 0], :, :5].tobytes()
