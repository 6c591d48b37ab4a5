"""check_model: what onnx accepts passes, and each rule says what and where."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper as oh
import pytest

from onnx_light.onnx import (
    AttributeProto,
    ModelProto,
    ParseError,
    TensorProto,
    ValidationError,
    check_model,
    from_array,
    save,
)

MODELS = sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))


def tensor_type(element: int, *dims: int) -> dict[str, Any]:
    shape = {"dim": [{"dim_value": dim} for dim in dims]}
    return {"tensor_type": {"elem_type": element, "shape": shape}}


def good_model() -> ModelProto:
    """A model with one of everything that has a rule."""
    branch = oh.make_graph(
        [oh.make_node("Identity", ["x"], ["b"])],
        "branch",
        [],
        [oh.make_tensor_value_info("b", 1, [2])],
        [oh.make_tensor("c", 1, [2], [1.0, 2.0])],
    )
    nodes = [
        oh.make_node("If", ["cond"], ["y"], then_branch=branch, else_branch=branch),
        oh.make_node("F", ["x"], ["z"], domain="custom", alpha=1.0, ints=[1], text="t"),
    ]
    graph = oh.make_graph(
        nodes,
        "main",
        [oh.make_tensor_value_info("x", 1, [2]), oh.make_tensor_value_info("cond", 9, [])],
        [oh.make_tensor_value_info("y", 1, [2])],
        [oh.make_tensor("w", 1, [2], [1.0, 2.0])],
        value_info=[oh.make_tensor_value_info("z", 1, [2])],
        sparse_initializer=[
            oh.make_sparse_tensor(
                oh.make_tensor("s", 1, [2], [1.0, 2.0]), oh.make_tensor("i", 7, [2], [0, 3]), [5]
            )
        ],
    )
    function = oh.make_function(
        "local", "F", ["a"], ["r"], [oh.make_node("Neg", ["a"], ["r"])], [oh.make_opsetid("", 21)]
    )
    opsets = [oh.make_opsetid("", 21), oh.make_opsetid("custom", 1)]
    theirs = oh.make_model(graph, functions=[function], opset_imports=opsets)
    oh.set_model_props(theirs, {"k": "v", "l": "v"})
    model = ModelProto.from_onnx(theirs)
    ours = model.graph
    ours.encoded_initializer.add(
        name="e",
        raw_data=b"12",
        affine={"scale": from_array(np.float32(1)), "storage_type": 3},
        logical_type=tensor_type(1, 2),
    )
    cache = ours.paged_cache_initializer.add(name="p")
    key = from_array(np.zeros((1, 1, 2, 4), np.float32))
    value = {
        "raw_data": b"12345678",
        "affine": {"signed_storage": True, "scale": from_array(np.float32(1))},
        "logical_type": tensor_type(1, 1, 1, 2, 4),
    }
    cache.blocks.add(start=0, length=2, key=key, encoded_value=value)
    ours.persistent_bindings.add(input_name="x", output_name="y")
    fields = {"name": "f", "type": {"tensor_type": {"elem_type": 1}}}
    model.struct_types.add(type_id=1, structure={"field": [fields]})
    packing = {"component": [{"name": "c", "bit_width": 4}]}
    model.struct_types.add(type_id=2, bit_packing=packing)
    element = {"tensor_type": {"elem_type": 1}}
    model.struct_types.add(type_id=3, array={"element_type": element, "dimension": 4})
    return model


def test_a_good_model() -> None:
    model = good_model()
    before = model.SerializeToString()
    check_model(model)
    check_model(before)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.parent.name + "/" + path.name)
def test_what_onnx_accepts(path: Path) -> None:
    onnx.checker.check_model(str(path))
    check_model(path)


def set_type(model: ModelProto, index: int, attribute_type: int) -> None:
    model.graph.node[1].attribute[index].type = attribute_type


Change = Callable[[ModelProto], Any]
THEN = "graph.node[0].attribute[0].g"
ALPHA = "graph.node[1].attribute[0]"
PAGE = "graph.paged_cache_initializer[0].blocks[0]"
BAD: list[tuple[Change, str, str]] = [
    (lambda m: m.ClearField("ir_version"), "check.missing", "ir_version"),
    (lambda m: m.ClearField("graph"), "check.missing", "graph"),
    (lambda m: m.ClearField("opset_import"), "check.missing", "opset_import"),
    (lambda m: m.opset_import[0].ClearField("version"), "check.missing", "opset_import[0].version"),
    (
        lambda m: setattr(m.metadata_props[1], "key", "k"),
        "check.duplicate",
        "metadata_props[1]",
    ),
    (
        lambda m: m.functions.append(copy.copy(m.functions[0])),
        "check.duplicate",
        "functions[1]",
    ),
    (lambda m: setattr(m.functions[0], "name", ""), "check.missing", "functions[0].name"),
    (
        lambda m: m.functions[0].node[0].ClearField("op_type"),
        "check.missing",
        "functions[0].node[0].op_type",
    ),
    (lambda m: m.graph.ClearField("name"), "check.missing", "graph.name"),
    (
        lambda m: m.graph.node[0].attribute[0].g.ClearField("name"),
        "check.missing",
        f"{THEN}.name",
    ),
    (lambda m: setattr(m.graph.node[1], "op_type", ""), "check.missing", "graph.node[1].op_type"),
    (
        lambda m: setattr(m.graph.node[1].attribute[1], "name", "alpha"),
        "check.duplicate",
        "graph.node[1].attribute[1]",
    ),
    (
        lambda m: m.graph.node[1].attribute[0].ClearField("name"),
        "check.missing",
        "graph.node[1].attribute[0]",
    ),
    (lambda m: m.graph.node[1].attribute[0].ClearField("type"), "check.missing", f"{ALPHA}.type"),
    (lambda m: set_type(m, 0, AttributeProto.INT), "check.attribute", f"{ALPHA}.f"),
    (lambda m: m.graph.node[1].attribute[0].floats.append(1), "check.attribute", f"{ALPHA}.floats"),
    (
        lambda m: setattr(m.graph.node[1].attribute[0], "ref_attr_name", "r"),
        "check.attribute",
        f"{ALPHA}.f",
    ),
    (
        lambda m: m.graph.node[0].attribute[0].ClearField("g"),
        "check.missing",
        "graph.node[0].attribute[0].g",
    ),
    (
        lambda m: m.graph.node[0].attribute[0].g.initializer[0].dims.append(2),
        "tensor.size",
        f"{THEN}.initializer[0].float_data",
    ),
    (
        lambda m: m.graph.initializer[0].ClearField("data_type"),
        "tensor.data_type",
        "graph.initializer[0].data_type",
    ),
    (
        lambda m: m.graph.initializer[0].ClearField("name"),
        "check.missing",
        "graph.initializer[0]",
    ),
    (
        lambda m: setattr(m.graph.sparse_initializer[0].values, "name", "w"),
        "check.duplicate",
        "graph.sparse_initializer[0]",
    ),
    (
        lambda m: setattr(m.graph.encoded_initializer[0], "name", "s"),
        "check.duplicate",
        "graph.encoded_initializer[0]",
    ),
    (
        lambda m: setattr(m.graph.paged_cache_initializer[0], "name", "w"),
        "check.duplicate",
        "graph.paged_cache_initializer[0]",
    ),
    (
        lambda m: m.graph.paged_cache_initializer[0].ClearField("name"),
        "check.missing",
        "graph.paged_cache_initializer[0]",
    ),
    (lambda m: setattr(m.graph.input[1], "name", "x"), "check.duplicate", "graph.input[1]"),
    (lambda m: m.graph.output.add(), "check.missing", "graph.output[1].name"),
    (
        lambda m: m.graph.input[1].type.ClearField("value"),
        "check.missing",
        "graph.input[1].type.value",
    ),
    (
        lambda m: m.graph.sparse_initializer[0].ClearField("indices"),
        "check.missing",
        "graph.sparse_initializer[0].indices",
    ),
    (
        lambda m: m.graph.sparse_initializer[0].indices.dims.append(3),
        "check.sparse",
        "graph.sparse_initializer[0].indices.dims",
    ),
    (
        lambda m: setattr(m.graph.sparse_initializer[0].indices, "data_type", 6),
        "check.sparse",
        "graph.sparse_initializer[0].indices.data_type",
    ),
    (
        lambda m: m.graph.sparse_initializer[0].values.dims.append(1),
        "check.sparse",
        "graph.sparse_initializer[0].values.dims",
    ),
    (
        lambda m: m.graph.encoded_initializer[0].ClearField("layout"),
        "cache.missing",
        "graph.encoded_initializer[0]",
    ),
    (
        lambda m: m.graph.encoded_initializer[0].ClearField("raw_data"),
        "cache.missing",
        "graph.encoded_initializer[0]",
    ),
    (
        lambda m: setattr(m.graph.encoded_initializer[0], "data_location", 1),
        "external.inline",
        "graph.encoded_initializer[0].external_data",
    ),
    (
        lambda m: m.graph.encoded_initializer[0].affine.scale.dims.append(2),
        "cache.axis",
        "graph.encoded_initializer[0].affine",
    ),
    (
        lambda m: m.graph.paged_cache_initializer[0].blocks[0].ClearField("start"),
        "cache.missing",
        PAGE,
    ),
    (
        lambda m: m.graph.paged_cache_initializer[0].blocks[0].ClearField("value_payload"),
        "cache.missing",
        PAGE,
    ),
    (
        lambda m: setattr(m.graph.paged_cache_initializer[0].blocks[0], "length", 0),
        "cache.length",
        f"{PAGE}.length",
    ),
    (
        lambda m: setattr(m.graph.paged_cache_initializer[0].blocks[0], "start", -1),
        "cache.start",
        f"{PAGE}.start",
    ),
    (
        lambda m: m.graph.paged_cache_initializer[0].blocks[0].key.dims.insert(0, -1),
        "cache.shape",
        f"{PAGE}.key",
    ),
    (
        lambda m: m.graph.persistent_bindings[0].ClearField("output_name"),
        "check.missing",
        "graph.persistent_bindings[0].output_name",
    ),
    (
        lambda m: m.graph.persistent_bindings.add(input_name="x", output_name="z"),
        "check.duplicate",
        "graph.persistent_bindings[1]",
    ),
    (lambda m: m.struct_types[0].ClearField("kind"), "check.missing", "struct_types[0].kind"),
    (
        lambda m: m.struct_types[0].structure.field[0].ClearField("content"),
        "check.missing",
        "struct_types[0].structure.field[0].content",
    ),
    (
        lambda m: m.struct_types[1].bit_packing.component[0].ClearField("bit_width"),
        "check.missing",
        "struct_types[1].bit_packing.component[0].bit_width",
    ),
    (
        lambda m: m.struct_types[2].array.ClearField("dimension"),
        "check.missing",
        "struct_types[2].array.dimension",
    ),
]


@pytest.mark.parametrize(("change", "code", "path"), BAD, ids=[f"{c}-{p}" for _, c, p in BAD])
def test_bad_models(change: Change, code: str, path: str) -> None:
    model = good_model()
    change(model)
    with pytest.raises(ValidationError) as caught:
        check_model(model)
    assert (caught.value.code, caught.value.path) == (code, path)
    assert str(caught.value) == f"{path}: {caught.value.message}"


def test_omitted_defaults_of_attributes() -> None:
    """Writers of proto3 leave out numbers that are 0; onnx accepts that, too."""
    for attribute_type in (AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING):
        model = good_model()
        set_type(model, 0, attribute_type)
        model.graph.node[1].attribute[0].ClearField("f")
        check_model(model)


def test_values_inside_may_have_no_type() -> None:
    model = good_model()
    model.graph.value_info[0].type.ClearField("value")
    check_model(model)


def hide_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves our rules alone."""
    monkeypatch.setitem(sys.modules, "onnx", None)


def test_old_models_have_no_attribute_types(monkeypatch: pytest.MonkeyPatch) -> None:
    model = good_model()
    hide_onnx(monkeypatch)
    model.ir_version = 1
    for owner in model.graph.node:
        for attribute in owner.attribute:
            attribute.ClearField("type")
    check_model(model)
    model.graph.node[1].attribute[0].i = 1
    with pytest.raises(ValidationError) as caught:
        check_model(model)
    assert (caught.value.code, caught.value.path) == ("check.attribute", f"{ALPHA}.i")


def test_deep_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deeper than Python's stack, and the path says where."""
    model = good_model()
    hide_onnx(monkeypatch)
    graph = model.graph
    for _ in range(400):
        attribute = graph.node.add(op_type="Loop").attribute.add(name="body", type=5)
        graph = attribute.g
        graph.name = "body"
    check_model(model)
    graph.node.add()
    with pytest.raises(ValidationError) as caught:
        check_model(model)
    assert caught.value.path.count("attribute[0].g") == 400
    assert caught.value.path.endswith("attribute[0].g.node[0].op_type")


def test_what_onnx_refuses() -> None:
    model = good_model()
    model.graph.node[1].input[0] = "nowhere"
    with pytest.raises(ValidationError, match="nowhere") as caught:
        check_model(model)
    assert (caught.value.code, caught.value.path) == ("check.onnx", "")


def test_external_data(tmp_path: Path) -> None:
    model = good_model()
    array = np.arange(1000, dtype=np.float32)
    model.graph.initializer.append(from_array(array, "big"))
    path = tmp_path / "m.onnx"
    save(model, path, save_as_external_data=True, location="m.data")
    check_model(path)
    big = "graph.initializer[1]"
    (tmp_path / "m.data").write_bytes(bytes(3999))
    with pytest.raises(ValidationError) as caught:
        check_model(path)
    assert (caught.value.code, caught.value.path) == ("external.range", big)
    (tmp_path / "m.data").unlink()
    with pytest.raises(FileNotFoundError):
        check_model(path)

    loaded = ModelProto()
    loaded.ParseFromFile(path)
    check_model(loaded)  # without a folder
    entries = loaded.graph.initializer[1].external_data
    entries[0].value = "../m.data"
    with pytest.raises(ValidationError) as caught:
        check_model(loaded)
    assert (caught.value.code, caught.value.path) == ("external.path", f"{big}.external_data")


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ParseError):
        check_model(b"\xff")
    with pytest.raises(FileNotFoundError):
        check_model(tmp_path / "none.onnx")
    with pytest.raises(TypeError, match="ModelProto"):
        check_model(TensorProto())  # type: ignore[arg-type]
