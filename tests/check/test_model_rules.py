"""check_model: the rules for caches, encoded values, types and bindings, broken one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_model import CACHE_ID, CODES_ID, PAIR_ID, PREFIX, cache_type, caches, full_model, tensor
from hypothesis import given
from hypothesis import strategies as st

from onnx_light import PagedCache, runtime
from onnx_light.errors import CodedError
from onnx_light.onnx import ModelProto, TypeProto, ValidationError, check_model, from_array, save

Change = Callable[[ModelProto], Any]
CACHES = {"dense": 0, "half": 1, "codes": 2, "records": 3}


def block(model: ModelProto, cache: str, index: int = 1) -> Any:
    return model.graph.paged_cache_initializer[CACHES[cache]].blocks[index]


def place(cache: str, rest: str, index: int = 1) -> str:
    return f"graph.paged_cache_initializer[{CACHES[cache]}].blocks[{index}]{rest}"


def setter(name: str, value: Any, *way: str | int) -> Callable[[Any], None]:
    """Sets an attribute of what the way of attributes and indices leads to."""

    def change(message: Any) -> None:
        for step in way:
            message = message[step] if isinstance(step, int) else getattr(message, step)
        setattr(message, name, value)

    return change


def on_block(cache: str, change: Change) -> Change:
    return lambda model: change(block(model, cache))


def dims_of(value: Any) -> Any:
    return value.logical_type.tensor_type.shape.dim


def refer_to_itself(model: ModelProto) -> None:
    model.struct_types[2].array.element_type.struct_type.type_ref = PAIR_ID


def refer_through_a_sequence(model: ModelProto) -> None:
    element = model.struct_types[2].array.element_type
    element.sequence_type.elem_type.struct_type.type_ref = CODES_ID


def add_sparse(model: ModelProto, name: str) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values = from_array(np.ones(1, "f4"), name)
    sparse.indices = from_array(np.ones(1, "i8"))


def output_type(model: ModelProto, name: str, declared: TypeProto) -> None:
    output = next(value for value in model.graph.output if value.name == name)
    output.type = declared


STATE = "graph.persistent_bindings[4]"
PAIR = "graph.persistent_bindings[5]"
FIRST = "graph.persistent_bindings[0]"
THEN = "graph.node[6].attribute[0].g"

BLOCKS: dict[str, tuple[str, str, Change]] = {
    "no start": ("missing", "dense", lambda b: b.ClearField("start")),
    "no length": ("missing", "dense", lambda b: b.ClearField("length")),
    "no key": ("missing", "dense", lambda b: b.ClearField("key_payload")),
    "no value": ("missing", "dense", lambda b: b.ClearField("value_payload")),
    "negative start": ("start", "dense.start", lambda b: setattr(b, "start", -1)),
    "gap": ("start", "dense.start", lambda b: setattr(b, "start", 9)),
    "overlap": ("start", "dense.start", lambda b: setattr(b, "start", 7)),
    "no tokens": ("length", "dense.length", lambda b: setattr(b, "length", 0)),
    "negative length": ("length", "dense.length", lambda b: setattr(b, "length", -(2**63))),
    "over capacity": ("length", "dense.length", lambda b: setattr(b, "length", 9)),
    "far over capacity": ("length", "codes.length", lambda b: setattr(b, "length", 2**63 - 1)),
    "no data type": ("missing", "dense.key", lambda b: b.key.ClearField("data_type")),
    "integers": ("data_type", "dense.key", lambda b: setattr(b.key, "data_type", 6)),
    "three dims": ("shape", "dense.key", lambda b: b.key.dims.pop()),
    "other batch": ("shape", "dense.value", lambda b: b.value.dims.__setitem__(0, 2)),
    "other heads": ("shape", "half.value", lambda b: b.value.dims.__setitem__(1, 1)),
    "other capacity": ("shape", "half.value", lambda b: b.value.dims.__setitem__(2, 7)),
    "other width": ("shape", "dense", lambda b: (
        b.key.dims.__setitem__(3, 32), setattr(b.key, "raw_data", bytes(2 * 8 * 32 * 4)))),
    "no width": ("shape", "dense", lambda b: b.key.dims.__setitem__(3, 0)),
    "negative width": ("shape", "dense", lambda b: b.value.dims.__setitem__(3, -32)),
    "huge width": ("too_large", "dense.key", lambda b: b.key.dims.__setitem__(3, 2**62)),
    "short data": ("payload_size", "dense.key", lambda b: setattr(
        b.key, "raw_data", b.key.raw_data[1:])),
    "no data": ("missing", "half.value", lambda b: b.value.ClearField("raw_data")),
    "two forms of data": ("data", "dense.key", lambda b: b.key.float_data.append(1)),
    "segment": ("unsupported", "dense.key", lambda b: setattr(b.key.segment, "begin", 0)),
    "codes of no layout": ("missing", "codes.encoded_key", lambda b: b.encoded_key.ClearField(
        "layout")),
    "codes of no type": ("missing", "codes.encoded_key", lambda b: b.encoded_key.ClearField(
        "logical_type")),
    "codes of integers": ("logical_type", "codes.encoded_key.logical_type", lambda b: setattr(
        b.encoded_key.logical_type.tensor_type, "elem_type", 7)),
    "codes of rank 5": ("logical_type", "codes.encoded_key.logical_type", lambda b: dims_of(
        b.encoded_key).add(dim_value=1)),
    "codes of a symbol": (
        "logical_type", "codes.encoded_key.logical_type.tensor_type.shape.dim[2]",
        lambda b: setattr(dims_of(b.encoded_key)[2], "dim_param", "n")),
    "codes of other capacity": ("payload_size", "codes.encoded_key.raw_data", lambda b: setattr(
        dims_of(b.encoded_key)[2], "dim_value", 9)),
    "codes beyond memory": ("too_large", "codes.encoded_key", lambda b: setattr(
        dims_of(b.encoded_key)[2], "dim_value", 2**62)),
    "short codes": ("payload_size", "codes.encoded_value.raw_data", lambda b: setattr(
        b.encoded_value, "raw_data", b.encoded_value.raw_data[1:])),
    "codes of 16 bits": ("storage_type", "codes.encoded_key.affine.storage_type", lambda b: setattr(
        b.encoded_key.affine, "storage_type", 5)),
    "no scale": ("missing", "codes.encoded_key.affine", lambda b: b.encoded_key.affine.ClearField(
        "scale")),
    "scale in double": ("scale", "codes.encoded_key.affine.scale.data_type", lambda b: setattr(
        b.encoded_key.affine.scale, "data_type", 11)),
    "scale of other dims": ("scale", "codes.encoded_key.affine.scale", lambda b: (
        b.encoded_key.affine.scale.dims.__setitem__(1, 1))),
    "short scale": ("payload_size", "codes.encoded_key.affine.scale", lambda b: setattr(
        b.encoded_key.affine.scale, "raw_data", b"12")),
    "zero point in the scale's type": (
        "zero_point", "codes.encoded_value.affine.zero_point.data_type",
        lambda b: setattr(b.encoded_value.affine.zero_point, "data_type", 10)),
    "no axis": ("axis", "codes.encoded_key.affine", lambda b: b.encoded_key.affine.ClearField(
        "axis")),
    "axis outside": ("axis", "codes.encoded_key.affine.axis", lambda b: setattr(
        b.encoded_key.affine, "axis", -5)),
    "no blocks": ("block_size", "codes.encoded_key.affine.block_size", lambda b: setattr(
        b.encoded_key.affine, "block_size", 0)),
    "huge blocks": ("scale", "codes.encoded_value.affine.scale", lambda b: setattr(
        b.encoded_value.affine, "block_size", 2**64 - 1)),
    "both kinds of parameters": ("scale", "codes.encoded_key", lambda b: setattr(
        b.encoded_key, "parameter_ref", "shared")),
    "records that end inside": ("layout", "records.encoded_key.logical_type", lambda b: setattr(
        dims_of(b.encoded_key)[3], "dim_value", 63)),
    "short records": ("payload_size", "records.encoded_value.raw_data", lambda b: setattr(
        b.encoded_value, "raw_data", b.encoded_value.raw_data[:-1])),
    "unknown type": ("reference", "records.encoded_key.struct_type", lambda b: setattr(
        b.encoded_key.struct_type, "type_ref", 1)),
}  # fmt: skip

MODELS: dict[str, tuple[str, str, Change]] = {
    "catalogue: no scale": (
        "cache.reference", "graph.quantization_annotation[0]",
        lambda m: m.graph.quantization_annotation[0].quant_parameter_tensor_names.pop(0)),
    "catalogue: no such initializer": (
        "cache.reference", "graph.quantization_annotation[0]", lambda m: m.graph.initializer.pop()),
    "catalogue: twice": (
        "check.duplicate", "graph.quantization_annotation[1]",
        lambda m: m.graph.quantization_annotation.append(m.graph.quantization_annotation[0])),
    "catalogue: no such name": (
        "cache.reference", "graph.encoded_initializer[0].parameter_ref",
        setter("parameter_ref", "other", "graph", "encoded_initializer", 0)),
    "catalogue: no such name in a subgraph": (
        "cache.reference", f"{THEN}.encoded_initializer[0].parameter_ref",
        setter("parameter_ref", "other", "graph", "node", 6, "attribute", 0, "g",
               "encoded_initializer", 0)),
    "catalogue: of a subgraph": (
        "cache.reference", "graph.encoded_initializer[0].parameter_ref",
        lambda m: (m.graph.node[6].attribute[0].g.quantization_annotation.append(
            m.graph.quantization_annotation[0]), m.graph.quantization_annotation.clear())),
    "catalogue: zero point of another type": (
        "cache.zero_point", "graph.encoded_initializer[0].parameter_ref.data_type",
        lambda m: m.graph.initializer[1].CopyFrom(from_array(np.uint8(3), "z"))),
    "encoded: no logical type": (
        "cache.missing", "graph.encoded_initializer[0]",
        lambda m: m.graph.encoded_initializer[0].ClearField("logical_type")),
    "encoded: no shape": (
        "cache.logical_type", "graph.encoded_initializer[0].logical_type",
        lambda m: m.graph.encoded_initializer[0].logical_type.tensor_type.ClearField("shape")),
    "encoded: of integers": (
        "cache.logical_type", "graph.encoded_initializer[0].logical_type",
        lambda m: setattr(m.graph.encoded_initializer[0], "logical_type", tensor(7, 2, 3))),
    "encoded: negative dim": (
        "cache.logical_type", "graph.encoded_initializer[0].logical_type.tensor_type.shape.dim[0]",
        lambda m: setattr(m.graph.encoded_initializer[0], "logical_type", tensor(1, -2, 3))),
    "encoded: huge": (
        "cache.too_large", "graph.encoded_initializer[0]",
        lambda m: setattr(m.graph.encoded_initializer[0], "logical_type",
                          tensor(1, 2**40, 2**40))),
    "encoded: other size": (
        "cache.payload_size", "graph.encoded_initializer[0].raw_data",
        setter("raw_data", bytes(7), "graph", "encoded_initializer", 0)),
    "encoded: axis beyond its rank": (
        "cache.axis", "graph.encoded_initializer[0].affine.axis",
        lambda m: (m.graph.encoded_initializer[0].ClearField("parameter_ref"),
                   m.graph.encoded_initializer[0].affine.scale.CopyFrom(
                       from_array(np.ones(3, "f4"))),
                   setattr(m.graph.encoded_initializer[0].affine, "axis", 2))),
    "names: two tensors": (
        "check.duplicate", "graph.initializer[2]",
        lambda m: m.graph.initializer.append(m.graph.initializer[0])),
    "names: sparse and tensor": (
        "check.duplicate", "graph.sparse_initializer[0]", lambda m: add_sparse(m, "s")),
    "names: encoded and sparse": (
        "check.duplicate", "graph.encoded_initializer[0]", lambda m: add_sparse(m, "weight")),
    "names: cache and sparse": (
        "check.duplicate", "graph.paged_cache_initializer[4]",
        lambda m: add_sparse(m, "constant")),
    "names: cache and tensor": (
        "check.duplicate", "graph.paged_cache_initializer[4]",
        setter("name", "s", "graph", "paged_cache_initializer", 4)),
    "names: encoded and tensor": (
        "check.duplicate", "graph.encoded_initializer[0]",
        setter("name", "s", "graph", "encoded_initializer", 0)),
    "names: cache and encoded": (
        "check.duplicate", "graph.paged_cache_initializer[4]",
        setter("name", "weight", "graph", "paged_cache_initializer", 4)),
    "names: two caches in a subgraph": (
        "check.duplicate", f"{THEN}.paged_cache_initializer[0]",
        setter("name", "weight.then_branch", "graph", "node", 6, "attribute", 0, "g",
               "paged_cache_initializer", 0)),
    "names: none": (
        "check.missing", "graph.paged_cache_initializer[4]",
        lambda m: m.graph.paged_cache_initializer[4].ClearField("name")),
    "block of a subgraph": (
        "cache.length", f"{THEN}.paged_cache_initializer[0].blocks[0].length",
        setter("length", 17, "graph", "node", 6, "attribute", 0, "g", "paged_cache_initializer", 0,
               "blocks", 0)),
    "types: number twice": (
        "check.duplicate", "struct_types[2].type_id",
        setter("type_id", PAIR_ID, "struct_types", 2)),
    "types: dangling in an input": (
        "cache.reference", "graph.input[8].type",
        lambda m: setattr(m.graph.input[8].type.struct_type, "type_ref", 9)),
    "types: dangling in a type": (
        "cache.reference", "struct_types[1].structure.field[1].type.struct_type",
        lambda m: (m.graph.persistent_bindings.pop(), m.graph.input.pop(8), m.graph.output.pop(5),
                   m.struct_types.pop())),
    "types: dangling in an attribute": (
        "cache.reference", "graph.node[5].attribute[0].tp.struct_type",
        lambda m: setattr(m.graph.node[5].attribute.add(name="t", type=13).tp.struct_type,
                          "type_ref", 9)),
    "types: cycle": ("check.cycle", "struct_types[1]", refer_to_itself),
    "types: cycle through a sequence": (
        "check.cycle", "struct_types[2]", refer_through_a_sequence),
    "types: two fields of one name": (
        "check.duplicate", "struct_types[1].structure.field[1]",
        lambda m: (setattr(m.struct_types[1].structure.field[1], "name", "first"),
                   m.graph.persistent_bindings.pop())),
    "types: a field without a name": (
        "check.missing", "struct_types[1].structure.field[0]",
        lambda m: (m.struct_types[1].structure.field[0].ClearField("name"),
                   m.graph.persistent_bindings.pop())),
    "cache type: no version": (
        "check.cache_type", "graph.input[0].type.struct_type",
        lambda m: m.struct_types[0].metadata_props.clear()),
    "cache type: other version": (
        "check.cache_type", "graph.input[0].type.struct_type",
        setter("value", "2", "struct_types", 0, "metadata_props", 0)),
    "cache type: other field": (
        "check.cache_type", "graph.input[0].type.struct_type",
        setter("name", "pages", "struct_types", 0, "structure", "field", 0)),
    "cache type: no sequence": (
        "check.cache_type", "graph.input[0].type.struct_type.structure.field[0].type",
        setter("type", tensor(1), "struct_types", 0, "structure", "field", 0)),
    "cache input: a tensor": (
        "check.cache_input", "graph.input[0].type",
        setter("type", tensor(1, 1), "graph", "input", 0)),
    "cache input: another structure": (
        "check.cache_input", "graph.input[0].type",
        lambda m: setattr(m.graph.input[0].type.struct_type, "type_ref", PAIR_ID)),
    "cache input: default is a tensor": (
        "check.cache_input", "graph.input[0].type",
        lambda m: (m.graph.paged_cache_initializer.pop(0),
                   m.graph.initializer.append(from_array(np.float32(1), "dense")))),
    "bindings: no input named": (
        "check.missing", f"{STATE}.input_name",
        lambda m: m.graph.persistent_bindings[4].ClearField("input_name")),
    "bindings: no such input": (
        "check.binding", f"{STATE}.input_name",
        setter("input_name", "s", "graph", "persistent_bindings", 4)),
    "bindings: no such output": (
        "check.binding", f"{STATE}.output_name",
        setter("output_name", "state", "graph", "persistent_bindings", 4)),
    "bindings: input twice": (
        "check.duplicate", STATE,
        setter("input_name", "dense", "graph", "persistent_bindings", 4)),
    "bindings: element type": (
        "check.binding", STATE, lambda m: output_type(m, "next", tensor(10, "total", 4))),
    "bindings: rank": ("check.binding", STATE, lambda m: output_type(m, "next", tensor(1, 4))),
    "bindings: size": (
        "check.binding", STATE, lambda m: output_type(m, "next", tensor(1, "total", 5))),
    "bindings: kind": (
        "check.binding", STATE,
        lambda m: output_type(
            m, "next", TypeProto(sequence_type={"elem_type": tensor(1, "total", 4)}))),
    "bindings: cache and tensor": (
        "check.binding", FIRST, lambda m: output_type(m, "present.dense", tensor(1))),
    "bindings: heads of caches": (
        "check.binding", FIRST,
        lambda m: output_type(
            m, "present.dense", TypeProto(struct_type=cache_type(heads=4)))),
    "bindings: structures of other names": (
        "check.binding", PAIR,
        lambda m: setattr(m.graph.output[5].type.struct_type, "name", "other")),
    "bindings: structures of other arrays": (
        "check.binding", PAIR,
        lambda m: setattr(
            m.graph.output[5].type.struct_type.structure.field[1], "type",
            TypeProto(struct_type={
                "name": "codes", "array": {"dimension": 33, "element_type": tensor(3)}}))),
    "onnx: a value from nowhere": (
        "check.onnx", "", lambda m: m.graph.node[5].input.__setitem__(0, "nowhere")),
}  # fmt: skip

SHAPES = [
    ("batch", cache_type(batch=2)),
    ("heads", cache_type(heads=3)),
    ("key width", cache_type(key=32)),
    ("value width", cache_type(value=64)),
]


def failure(model: ModelProto) -> tuple[str, str]:
    before = model.SerializeToString()
    with pytest.raises(ValidationError) as caught:
        check_model(model)
    assert caught.value.message
    assert model.SerializeToString() == before
    return caught.value.code, caught.value.path


def test_the_whole_model() -> None:
    model = full_model()
    before = model.SerializeToString()
    check_model(model)
    check_model(before)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    code, where, change = BLOCKS[name]
    cache, _, rest = where.partition(".")
    model = full_model()
    change(block(model, cache))
    assert failure(model) == (f"cache.{code}", place(cache, f".{rest}" if rest else ""))
    # The same rule, code and place where a cache is made from the message.
    with pytest.raises(CodedError) as caught:
        PagedCache.from_proto(model.graph.paged_cache_initializer[CACHES[cache]], model)
    assert (caught.value.code, caught.value.path) == (
        f"cache.{code}", f"blocks[1]{'.' + rest if rest else ''}"
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    code, where, change = MODELS[name]
    model = full_model()
    change(model)
    assert failure(model) == (code, where)


def test_the_text_of_an_error() -> None:
    model = full_model()
    block(model, "dense", 0).length = 17
    with pytest.raises(ValidationError) as caught:
        check_model(model)
    where = "graph.paged_cache_initializer[0].blocks[0].length"
    assert str(caught.value) == f"{where}: 17 exceeds capacity 8"


@pytest.mark.parametrize(("what", "declared"), SHAPES, ids=[what for what, _ in SHAPES])
def test_dims_of_cache_inputs(what: str, declared: Any) -> None:
    model = full_model()
    model.graph.persistent_bindings.clear()
    model.graph.input[2].type.struct_type = declared
    with pytest.raises(ValidationError, match=what) as caught:
        check_model(model)
    assert (caught.value.code, caught.value.path) == ("check.cache_input", "graph.input[2].type")


@pytest.mark.parametrize("missing", ["batch", "heads", "key", "value"])
def test_dims_that_are_not_given_go_with_all(missing: str) -> None:
    model = full_model()
    model.graph.input[2].type.struct_type = cache_type(**{missing: None})
    check_model(model)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("broken", [tensor(6), tensor(1, 1), tensor(7, 1)], ids=str)
def test_fields_of_the_cache_type(index: int, broken: Any) -> None:
    model = full_model()
    blocks = model.struct_types[0].structure.field[0].type
    page = blocks.sequence_type.elem_type.struct_type
    page.structure.field[index].type = broken
    where = ".structure.field[0].type.sequence_type.elem_type.struct_type.structure.field"
    assert failure(model) == (
        "check.cache_type", f"graph.input[0].type.struct_type{where}[{index}].type"
    )  # fmt: skip


@pytest.mark.parametrize("sizes", [(1, 2, 64, 32), (None, 2, None, 32), (None,) * 4], ids=str)
def test_the_type_that_is_made(sizes: tuple[int | None, ...]) -> None:
    assert runtime.cache_type(*sizes) == TypeProto(struct_type=cache_type(*sizes))
    with pytest.raises(CodedError, match=r"heads: 0, must be positive"):
        runtime.cache_type(heads=0)


def test_an_input_without_a_type_is_not_compared() -> None:
    model = full_model()
    model.graph.persistent_bindings.clear()
    model.graph.input[0].ClearField("type")
    with pytest.raises(ValidationError) as caught:
        check_model(model)
    assert caught.value.code == "check.onnx"  # whose rule it is that inputs have types


def test_layouts_that_nobody_knows() -> None:
    model = full_model()
    value = block(model, "records").encoded_key
    value.struct_type.name = "other"
    value.raw_data = b"?"
    check_model(model)
    value.struct_type.Clear()
    value.struct_type.type_ref = PAIR_ID
    check_model(model)


def test_functions_are_looked_at() -> None:
    model = full_model()
    function = model.functions.add(name="F", domain="local", input=["a"], output=["b"])
    function.opset_import.add(version=21)
    node = function.node.add(op_type="Identity", input=["a"], output=["b"])
    check_model(model)
    node.attribute.add(name="t", type=13).tp.struct_type.type_ref = 9
    where = "functions[0].node[0].attribute[0].tp.struct_type"
    assert failure(model) == ("cache.reference", where)


def test_a_decoder_may_name_its_own_type() -> None:
    model = full_model()
    decoder = model.struct_types[2].decoder
    decoder.node.add(op_type="Identity", input=["a"], output=["b"])
    decoder.value_info.add(name="a").type.struct_type.type_ref = CODES_ID
    check_model(model)


def external_model() -> ModelProto:
    """Every kind of payload is worth a file."""
    model = full_model()
    array = np.arange(4096, dtype=np.float32).reshape(1, 2, 32, 64)
    cache = PagedCache.from_arrays(array, array, page_size=32, policy="int8/channel")
    model.graph.paged_cache_initializer.append(cache.to_proto("big"))
    model.graph.initializer.append(from_array(array, "array"))
    return model


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save(external_model(), path, save_as_external_data=True, location="data", size_threshold=16)
    check_model(path)
    loaded = ModelProto()
    loaded.ParseFromFile(path)
    check_model(loaded)  # as far as the message tells
    key = block(loaded, "codes", 0).encoded_key
    assert key.data_location == 1
    key.external_data[-1].value = str(int(key.external_data[-1].value) - 1)
    assert key.external_data[-1].key == "length"
    assert failure(loaded) == ("cache.payload_size", place("codes", ".encoded_key.raw_data", 0))
    key.ClearField("external_data")
    assert failure(loaded) == ("external.location", place("codes", ".encoded_key.external_data", 0))
    (tmp_path / "data").write_bytes((tmp_path / "data").read_bytes()[:-1])
    with pytest.raises(ValidationError) as caught:
        check_model(path)
    assert caught.value.code == "external.range"
    (tmp_path / "data").unlink()
    with pytest.raises(FileNotFoundError):
        check_model(path)


def test_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    model = full_model()
    model.graph.node[5].input[0] = "nowhere"
    assert failure(model)[0] == "check.onnx"
    monkeypatch.setitem(sys.modules, "onnx", None)
    check_model(model)
    model.graph.persistent_bindings[0].input_name = "nowhere"
    assert failure(model)[0] == "check.binding"


DATA = full_model().SerializeToString()


@given(st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255)), max_size=4))
def test_damaged_models_are_accepted_or_refused(changes: list[tuple[int, int]]) -> None:
    data = bytearray(DATA)
    for position, byte in changes:
        data[position] = byte
    try:
        check_model(bytes(data))
        return
    except CodedError as error:
        caught = error
    assert caught.code
    assert caught.message


NUMBERS = st.sampled_from([0, 1, -1, 7, 8, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)])


@given(st.sampled_from(sorted(CACHES)), st.integers(0, 2), st.data())
def test_a_cache_is_valid_where_it_can_be_made(name: str, index: int, data: st.DataObject) -> None:
    """Random numbers in a block: check_model and from_proto agree, code and all."""
    model = full_model()
    changed = block(model, name, index)
    for field in data.draw(st.sets(st.sampled_from(["start", "length", "dims", "axis", "block"]))):
        number = data.draw(NUMBERS)
        if field in ("start", "length"):
            setattr(changed, field, number)
        elif field == "dims":
            axis = data.draw(st.integers(0, 3))
            if changed.has_key():
                changed.key.dims[axis] = number
            else:
                dims_of(changed.encoded_key)[axis].dim_value = number
        elif changed.has_encoded_key() and changed.encoded_key.has_affine():
            if field == "axis":
                changed.encoded_key.affine.axis = number
            else:
                changed.encoded_key.affine.block_size = number % 2**64
    cache = model.graph.paged_cache_initializer[CACHES[name]]
    try:
        PagedCache.from_proto(cache, model)
        expected = None
    except CodedError as error:
        expected = error.code, f"graph.paged_cache_initializer[{CACHES[name]}].{error.path}"
    if expected is None:
        check_model(model)
    else:
        assert failure(model) == expected


def test_cache_values_validate() -> None:
    for cache in caches().values():
        cache.validate()
        cache.truncate(13).validate()
    PagedCache().validate()
    assert CACHE_ID != PAIR_ID
    assert PREFIX.endswith(":")
