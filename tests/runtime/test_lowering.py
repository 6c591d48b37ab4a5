"""Caches through If, Loop, Scan and functions; what is refused; encoded initializers."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_light._core import held_values
from operator_models import make_session
from structured_models import (
    BOOL,
    FLOAT,
    HEADS,
    INT64,
    WIDTH,
    cache,
    decoder,
    feeds,
    make,
    paged,
    rows,
    subgraph,
    value_info,
)

from onnx_light import PagedCache
from onnx_light.errors import CodedError
from onnx_light.onnx import (
    ModelProto,
    SerializeOptions,
    TensorProto,
    TypeProto,
    ValidationError,
    check_model,
    from_array,
)
from onnx_light.runtime import InferenceSession, cache_type, handle, lower, release, value

NODE = helper.make_node
INPUTS = [rows("q", 4), rows("k"), rows("v"), cache("past")]
OUTPUTS = [rows("y", 4), cache("present")]
START = PagedCache.from_arrays(feeds(5, 0)["k"], feeds(5, 0)["v"], page_size=16)
OTHER = PagedCache.from_arrays(feeds(3, 9)["k"], feeds(3, 9)["v"])


def appended(past: PagedCache, *steps: dict[str, Any]) -> PagedCache:
    for step in steps:
        past = past.append(step["k"], step["v"])
    return past


@pytest.mark.parametrize("condition", [True, False])
def test_branches_give_caches(condition: bool) -> None:
    then_branch = subgraph("then", [paged("q k v past", "y1 p1")], [], [rows("y1", 4), cache("p1")])
    else_branch = subgraph(
        "else",
        [NODE("Identity", ["q"], ["y2"]), NODE("Identity", ["past"], ["p2"])],
        [],
        [rows("y2", 4), cache("p2")],
    )
    node = NODE("If", ["c"], ["y", "present"], then_branch=then_branch, else_branch=else_branch)
    model = make([node], [*INPUTS, value_info("c", BOOL, [])], OUTPUTS, bind={"past": "present"})
    session = InferenceSession(model)
    session.state = {"past": START}
    step = feeds(2, 1)
    y, present = session.run(None, step | {"c": np.array(condition)})
    if condition:
        assert present == appended(START, step)
        np.testing.assert_array_equal(y, present.attend(step["q"]))
    else:
        assert present == START
        np.testing.assert_array_equal(y, step["q"])
    assert session.state["past"] == present


def test_loops_carry_caches() -> None:
    body = subgraph(
        "body",
        [NODE("Identity", ["go"], ["go_on"]), paged("q k v carried", "y1 p1")],
        [value_info("i", INT64, []), value_info("go", BOOL, []), cache("carried")],
        [value_info("go_on", BOOL, []), cache("p1"), rows("y1", 4)],
    )
    node = NODE("Loop", ["n", "", "past"], ["present", "ys"], body=body)
    ys = value_info("ys", FLOAT, [None] * 5)
    model = make(
        [node],
        [*INPUTS, value_info("n", INT64, [])],
        [ys, cache("present")],
        bind={"past": "present"},
    )
    session = InferenceSession(model)
    session.state = {"past": START}
    step, held = feeds(1, 1), held_values()
    for count in (3, 0, 2):
        before = session.state["past"]
        results, present = session.run(None, step | {"n": np.array(count)})
        assert present == appended(before, *[step] * count)
        for index in range(count):
            seen = appended(before, *[step] * (index + 1))
            np.testing.assert_array_equal(results[index], seen.attend(step["q"]))
    assert held_values() == held


def test_scans_carry_caches() -> None:
    body = subgraph(
        "body",
        [paged("q1 k1 v1 carried", "y1 p1")],
        [cache("carried"), rows("q1", 4), rows("k1"), rows("v1")],
        [cache("p1"), rows("y1", 4)],
    )
    node = NODE("Scan", ["past", "q", "k", "v"], ["present", "y"], body=body, num_scan_inputs=3)
    stacked = [value_info(name, FLOAT, [None] * 5) for name in "qkv"]
    model = make(
        [node], [*stacked, cache("past")], [value_info("y", FLOAT, [None] * 5), cache("present")]
    )
    steps = [feeds(1, seed) for seed in range(4)]
    given = {name: np.stack([step[name] for step in steps]) for name in "qkv"}
    y, present = InferenceSession(model).run(None, given | {"past": START})
    assert present == appended(START, *steps)
    for index, step in enumerate(steps):
        seen = appended(START, *steps[: index + 1])
        np.testing.assert_array_equal(y[index], seen.attend(step["q"]))


def test_functions_take_and_give_caches() -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.rt", 1)]
    inner = helper.make_function(
        "local", "Attend", ["q", "k", "v", "c"], ["y", "d"], [paged("q k v c", "y d")], opsets
    )
    outer_opsets = [*opsets, helper.make_opsetid("local", 1)]
    outer = helper.make_function(
        "local",
        "Twice",
        ["q", "k", "v", "c"],
        ["y", "e"],
        [
            NODE("Attend", ["q", "k", "v", "c"], ["x", "d"], domain="local"),
            NODE("Attend", ["x", "k", "v", "d"], ["y", "e"], domain="local"),
        ],
        outer_opsets,
    )
    node = NODE("Twice", ["q", "k", "v", "past"], ["y", "present"], domain="local")
    model = make([node], INPUTS, OUTPUTS, functions=[inner, outer])
    step = feeds(2, 1)
    y, present = InferenceSession(model).run(None, step | {"past": START})
    assert present == appended(START, step, step)
    first = appended(START, step).attend(step["q"])
    np.testing.assert_array_equal(y, present.attend(first))


def test_attributes_and_subgraphs_of_functions() -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.rt", 1)]
    attend = paged("q k v c", "y1 d1")
    for name, kind in (
        ("max_tokens", onnx.AttributeProto.INT),
        ("scale", onnx.AttributeProto.FLOAT),
    ):
        attend.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=name, type=kind))
    branches = {
        "then_branch": subgraph("then", [attend], [], [rows("y1", 4), cache("d1")]),
        "else_branch": subgraph(
            "else",
            [NODE("Identity", ["q"], ["y2"]), NODE("Identity", ["c"], ["d2"])],
            [],
            [rows("y2", 4), cache("d2")],
        ),
    }
    function = helper.make_function(
        "local",
        "Maybe",
        ["go", "q", "k", "v", "c"],
        ["y", "d", "c"],
        [NODE("If", ["go"], ["y", "d"], **branches)],
        opsets,
        attributes=["max_tokens", "scale"],
    )
    calls = [
        NODE("Maybe", ["c1", "q", "k", "v", "past"], ["y3", "middle", "kept"], domain="local"),
        NODE("Maybe", ["c2", "y3", "k", "v", "middle"], ["y", "present"], domain="local"),
    ]
    for call in calls:
        call.attribute.append(helper.make_attribute("max_tokens", 8))
    conditions = [value_info("c1", BOOL, []), value_info("c2", BOOL, [])]
    outputs = [*OUTPUTS, cache("kept")]
    session = InferenceSession(make(calls, [*INPUTS, *conditions], outputs, functions=[function]))
    step = feeds(2, 1)
    for c1, c2 in ((True, False), (False, True), (False, False)):
        given = step | {"past": START, "c1": np.array(c1), "c2": np.array(c2)}
        y, present, kept = session.run(None, given)
        assert present == appended(START, *[step] * (c1 + c2))
        assert kept == START
        expected = present.attend(step["q"]) if c1 or c2 else step["q"]
        np.testing.assert_array_equal(y, expected)
    with pytest.raises(CodedError) as caught:
        session.run(None, step | {"past": START, "c1": np.array(True), "c2": np.array(True)})
    assert caught.value.code == "runtime.max_tokens"


def nested(calls: int, levels: int) -> ModelProto:
    """Functions of which each calls the next one so many times; the last has an operator."""
    opsets = [helper.make_opsetid(name, 1) for name in ("ai.rt", "local")]

    def function(level: int) -> Any:
        nodes = [
            NODE(f"F{level + 1}", ["c"], ["n" if i == 0 else f"n{i}"], domain="local")
            for i in range(calls)
        ]
        if level == levels:
            nodes = [NODE("PagedCacheLength", ["c"], ["n"], domain="ai.rt")]
        return helper.make_function("local", f"F{level}", ["c"], ["n"], nodes, opsets)

    functions = [function(level) for level in range(levels + 1)]
    node = NODE("F0", ["past"], ["n"], domain="local")
    return make([node], [cache("past")], [value_info("n", INT64, [])], functions=functions)


def test_functions_that_call_each_other_often() -> None:
    (length,) = InferenceSession(nested(2, 3)).run(None, {"past": START})
    assert length == START.end
    assert len(lower(nested(2, 10)).graph.node) == 1024
    refused(nested(2, 40), "runtime.function", "more than 100000 nodes")
    refused(nested(1, 3000), "runtime.function", "too many levels")


def test_caches_embedded_in_functions() -> None:
    body = subgraph(
        "body",
        [NODE("PagedCacheLength", ["prompt"], ["m"], domain="ai.rt")],
        [],
        [value_info("m", INT64, [])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.rt", 1)]
    function = helper.make_function(
        "local",
        "Length",
        ["go"],
        ["n"],
        [NODE("If", ["go"], ["n"], then_branch=body, else_branch=body)],
        opsets,
    )
    calls = [NODE("Length", ["go"], [name], domain="local") for name in ("n1", "n2")]
    outputs = [value_info(name, INT64, []) for name in ("n1", "n2")]
    model = make(calls, [value_info("go", BOOL, [])], outputs, functions=[function])
    for attribute in model.functions[0].node[0].attribute:
        embed(attribute.g, "prompt", START if attribute.name == "then_branch" else OTHER)
    session = InferenceSession(model)
    for go, content in ((True, START), (False, OTHER)):
        assert session.run(None, {"go": np.array(go)}) == [content.end, content.end]


def embed(graph: Any, name: str, content: PagedCache) -> None:
    graph.paged_cache_initializer.append(content.to_proto(name))


@pytest.mark.parametrize("condition", [True, False])
def test_caches_embedded_in_branches(condition: bool) -> None:
    branches = {
        name: subgraph(name, [paged("q k v prompt", f"y.{name} p.{name}")], [], outputs)
        for name, outputs in (
            (name, [rows(f"y.{name}", 4), cache(f"p.{name}")]) for name in ("then", "else")
        )
    }
    node = NODE(
        "If", ["c"], ["y", "present"], then_branch=branches["then"], else_branch=branches["else"]
    )
    model = make([node], [*INPUTS[:3], value_info("c", BOOL, [])], OUTPUTS)
    for attribute in model.graph.node[0].attribute:
        embed(attribute.g, "prompt", START if attribute.name == "then_branch" else OTHER)
    session = InferenceSession(model)
    step = feeds(1, 1)
    _, present = session.run(None, step | {"c": np.array(condition)})
    assert present == appended(START if condition else OTHER, step)


def test_dead_branches_and_nodes() -> None:
    model = make(
        [
            paged("q k v past", "y present"),
            paged("q k v present", "unused also_unused"),
            NODE("PagedCacheLength", ["present"], ["length"], domain="ai.rt"),
        ],
        INPUTS,
        OUTPUTS,
    )
    held = held_values()
    step = feeds(1, 1)
    (present,) = InferenceSession(model).run(["present"], step | {"past": START})
    assert present == appended(START, step)
    assert held_values() == held


def test_a_failure_inside_a_loop_has_its_name() -> None:
    body = subgraph(
        "body",
        [NODE("Identity", ["go"], ["go_on"]), paged("q k v carried", "y1 p1", max_tokens=7)],
        [value_info("i", INT64, []), value_info("go", BOOL, []), cache("carried")],
        [value_info("go_on", BOOL, []), cache("p1")],
    )
    node = NODE("Loop", ["n", "", "past"], ["present"], body=body)
    model = make(
        [node], [*INPUTS, value_info("n", INT64, [])], OUTPUTS[1:], bind={"past": "present"}
    )
    session = InferenceSession(model)
    session.state = {"past": START}
    held = held_values()
    with pytest.raises(CodedError) as caught:
        session.run(None, feeds(1, 1) | {"n": np.array(3)})
    assert caught.value.code == "runtime.max_tokens"
    assert caught.value.path == "PagedAttention_0.K"
    assert session.state["past"] == START
    assert held_values() == held


def test_wrong_embedded_caches() -> None:
    model = make([paged("q k v past", "y present")], INPUTS, OUTPUTS)
    embed(model.graph, "past", START)
    model.graph.paged_cache_initializer[0].blocks[0].length = 99
    refused(model, "cache.length", "graph.paged_cache_initializer[past].blocks[0].length")
    model = make([paged("q k v past", "y present")], INPUTS, OUTPUTS)
    embed(model.graph, "q", START)
    refused(model, "runtime.structured", "graph.paged_cache_initializer[q]")


# What is refused


def refused(model: Any, code: str, *words: str) -> None:
    for call in (lower, InferenceSession):
        with pytest.raises(CodedError) as caught:
            call(model)
        assert caught.value.code == code
        for word in words:
            assert word in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([NODE("Add", ["past", "past"], ["x"], "sum")], ("sum", "Add", "'past'")),
        ([NODE("Unsqueeze", ["past", "axes"], ["x"], "up")], ("up", "Unsqueeze")),
        ([NODE("SequenceConstruct", ["past"], ["x"], "list")], ("list", "SequenceConstruct")),
        ([NODE("Optional", ["past"], ["x"], "maybe")], ("maybe", "Optional")),
        ([NODE("Identity", ["past"], ["z"]), NODE("Neg", ["z"], ["x"], "n")], ("n]", "Neg", "'z'")),
        ([NODE("PagedCacheLength", ["q"], ["x"], "len", domain="ai.rt")], ("len", "'q'")),
        ([paged("past k v past", "x z", "att")], ("att", "input 0")),
        ([paged("q k v", "x z", "att")], ("att", "3 inputs")),
        ([NODE("PagedCacheLength", ["past"], ["x", "z"], "len", domain="ai.rt")], ("2 outputs",)),
    ],
)
def test_operators_that_compute_on_caches(nodes: Any, words: Any) -> None:
    model = make(
        [*nodes, paged("q k v past", "y present")],
        [*INPUTS, value_info("axes", INT64, [1])],
        OUTPUTS,
    )
    refused(model, "runtime.structured", *words)


def test_stacked_sliced_and_half_caches() -> None:
    go = [value_info("i", INT64, []), value_info("go", BOOL, []), cache("carried")]
    body = subgraph(
        "body",
        [NODE("Identity", ["go"], ["on"]), NODE("Identity", ["carried"], ["next"])]
        + [NODE("Identity", ["carried"], ["each"])],
        go,
        [value_info("on", BOOL, []), cache("next"), cache("each")],
    )
    loop = NODE("Loop", ["n", "", "past"], ["present", "all"], "loop", body=body)
    inputs = [*INPUTS, value_info("n", INT64, [])]
    refused(make([loop], inputs, OUTPUTS[1:]), "runtime.structured", "loop", "'each'", "stack")
    scanned = subgraph(
        "body", [NODE("Identity", ["s"], ["t"])], [cache("s")], [value_info("t", INT64, [])]
    )
    scan = NODE("Scan", ["past"], ["x"], "scan", body=scanned, num_scan_inputs=1)
    refused(
        make([scan, paged("q k v past", "y present")], INPUTS, OUTPUTS),
        "runtime.structured",
        "scan",
        "slices",
    )
    one = subgraph("one", [NODE("Identity", ["past"], ["a"])], [], [cache("a")])
    two = subgraph("two", [NODE("Identity", ["n"], ["b"])], [], [value_info("b", INT64, [])])
    branch = NODE("If", ["c"], ["present"], "branch", then_branch=one, else_branch=two)
    inputs.append(value_info("c", BOOL, []))
    refused(make([branch], inputs, OUTPUTS[1:]), "runtime.structured", "branch", "one branch only")


def test_declarations_that_do_not_fit() -> None:
    model = make([paged("q k v past", "y present")], INPUTS, OUTPUTS)
    model.graph.output[1].type = TypeProto(tensor_type={"elem_type": INT64, "shape": {}})
    refused(model, "runtime.structured", "graph.output[present]")
    model.graph.output[1].type = cache_type()
    model.graph.output[0].type = cache_type()
    refused(model, "runtime.structured", "graph.output[y]")


def test_types_are_those_that_validation_takes() -> None:
    model = make([paged("q k v past", "y present")], INPUTS, OUTPUTS)
    page = ".structure.field[0].type.sequence_type.elem_type.struct_type.structure.field"
    for index, broken in (
        (0, TypeProto(tensor_type={"elem_type": 1, "shape": {}})),
        (1, TypeProto(tensor_type={"elem_type": INT64, "shape": {"dim": [{}]}})),
        (2, TypeProto(tensor_type={"elem_type": INT64})),
        (3, TypeProto(tensor_type={"elem_type": 1, "shape": {"dim": [{}] * 3}})),
    ):
        changed = ModelProto.FromString(model.SerializeToString())
        kind = changed.graph.input[3].type.struct_type
        blocks = kind.structure.field[0].type.sequence_type.elem_type.struct_type
        blocks.structure.field[index].type = broken
        place = f".struct_type{page}[{index}].type"
        refused(changed, "check.cache_type", f"graph.input[past].type{place}: ")
        with pytest.raises(ValidationError) as caught:
            check_model(changed)
        assert caught.value.code == "check.cache_type"
        assert caught.value.path == f"graph.input[3].type{place}"


def test_types_by_reference() -> None:
    model = make([paged("q k v past", "y present")], INPUTS, OUTPUTS)
    model.struct_types.append(model.graph.input[3].type.struct_type)
    model.struct_types[0].type_id = 7
    for declared in (model.graph.input[3], model.graph.output[1]):
        declared.type.struct_type.Clear()
        declared.type.struct_type.type_ref = 7
    assert lower(model).graph.input[3].type.tensor_type.elem_type == INT64
    model.struct_types[0].type_id = 8
    refused(model, "cache.reference", "graph.input[past].type", "type_ref 7")
    model.struct_types.add(name="pair", type_id=7).add_structure()
    refused(model, "runtime.unsupported", "graph.input[past].type", "type_id 7")


def test_types_attributes_and_versions() -> None:
    model = make([paged("q k v past", "y present", "att")], INPUTS, OUTPUTS)
    changed = ModelProto.FromString(model.SerializeToString())
    changed.graph.input[3].type.struct_type.name = "other.Type"
    refused(changed, "runtime.unsupported", "graph.input[past]", "other.Type")
    changed = ModelProto.FromString(model.SerializeToString())
    changed.graph.input[3].type.struct_type.metadata_props[0].value = "2"
    refused(changed, "check.cache_type", "graph.input[past].type.struct_type", 'has "2"')
    changed = ModelProto.FromString(model.SerializeToString())
    changed.opset_import[1].version = 2
    refused(changed, "runtime.unsupported", "version 2")
    changed = ModelProto.FromString(model.SerializeToString())
    changed.graph.node[0].op_type = "PagedSomething"
    refused(changed, "runtime.unsupported", "att", "PagedSomething")
    for attributes in ({"blocksize": 4}, {"block_size": 4.0}, {"policy": 3}):
        model = make([paged("q k v past", "y present", "att", **attributes)], INPUTS, OUTPUTS)
        refused(model, "runtime.attribute", "att", next(iter(attributes)))


# The lowered model


def test_lowered_models_run_in_plain_onnxruntime() -> None:
    model = decoder()
    before = model.SerializeToString()
    embed(model.graph, "layers.1", OTHER)
    lowered = lower(model)
    assert len(model.graph.paged_cache_initializer) == 1
    model.graph.ClearField("paged_cache_initializer")
    assert model.SerializeToString() == before
    onnx.checker.check_model(lowered.to_onnx())
    session = make_session(lowered)
    first, second = handle(START), handle(OTHER)
    step = feeds(2, 1)
    y, *presents = session.run(None, step | {"layers.0": first, "layers.1": second})
    assert value(presents[0]) == appended(START, step)
    assert value(presents[1]) == appended(OTHER, step)
    attended = value(presents[1]).attend(value(presents[0]).attend(step["q"]))
    np.testing.assert_array_equal(y, attended)
    for number in (first, second):
        release(number)


def encoded_model(opset: int, change: Any, shape: tuple[int, ...] = (3, 64)) -> ModelProto:
    model = make(
        [NODE("Identity", ["w"], ["x"])], [], [value_info("x", FLOAT, [None] * len(shape))]
    )
    model.opset_import[0].version = opset
    weight = model.graph.encoded_initializer.add(name="w")
    dims = [{"dim_value": size} for size in shape]
    weight.logical_type = TypeProto(tensor_type={"elem_type": FLOAT, "shape": {"dim": dims}})
    change(weight)
    return model


def pack(codes: Any, bits: int) -> bytes:
    """Low bits first, flat over the whole array."""
    parts = codes.reshape(-1, 8 // bits).astype(np.int64) & (2**bits - 1)
    return (parts << (bits * np.arange(8 // bits))).sum(1).astype(np.uint8).tobytes()


@pytest.mark.parametrize("opset", [17, 21, 22])
@pytest.mark.parametrize(("bits", "signed"), [(8, True), (8, False), (4, True), (4, False)])
@pytest.mark.parametrize("scale_shape", [(), (3,), (3, 4)])
@pytest.mark.parametrize("scale_type", ["float32", "float16"])
def test_encoded_initializers(
    opset: int, bits: int, signed: bool, scale_shape: Any, scale_type: str
) -> None:
    generator = np.random.default_rng(bits)
    low = -(2 ** (bits - 1)) if signed else 0
    codes = generator.integers(low, low + 2**bits, (3, 64))
    scale = generator.uniform(0.5, 2, scale_shape).astype(scale_type)
    zero = generator.integers(low, low + 2**bits, scale_shape)
    kinds = {(8, True): 3, (8, False): 2, (4, True): 22, (4, False): 21}

    def fill(weight: Any) -> None:
        weight.raw_data = pack(codes, bits)
        weight.affine.scale.data_type = 1 if scale_type == "float32" else 10
        weight.affine.scale.raw_data = scale.tobytes()
        weight.affine.zero_point.data_type = kinds[bits, signed]
        padded = np.zeros(-(-zero.size // 2) * 2, np.int64)
        padded[: zero.size] = zero.ravel()
        weight.affine.zero_point.raw_data = pack(padded, bits)[: -(-zero.size * bits // 8)]
        for dim in scale_shape:
            weight.affine.scale.dims.append(dim)
            weight.affine.zero_point.dims.append(dim)
        if scale_shape:
            weight.affine.axis = len(scale_shape) - 1
        if len(scale_shape) == 2:
            weight.affine.block_size = 16
        weight.affine.signed_storage = signed

    (x,) = InferenceSession(encoded_model(opset, fill)).run(None, {})
    parameters = [np.asarray(item, np.float32) for item in (zero, scale)]
    if len(scale_shape) == 2:
        parameters = [np.repeat(item, 16, 1) for item in parameters]
    elif scale_shape:
        parameters = [item[:, None] for item in parameters]
    np.testing.assert_array_equal(x, (codes.astype(np.float32) - parameters[0]) * parameters[1])


def test_encoded_initializers_of_records() -> None:
    generator = np.random.default_rng(1)
    scales = generator.uniform(0.5, 2, (3, 2)).astype(np.float16)
    codes = generator.integers(-128, 128, (3, 2, 32)).astype(np.int8)
    records = np.concatenate([scales[..., None].view(np.uint8), codes.view(np.uint8)], axis=-1)

    def fill(weight: Any) -> None:
        scalar = {"elem_type": 10, "shape": {}}
        array = {"element_type": {"tensor_type": {"elem_type": 3, "shape": {}}}, "dimension": 32}
        struct = weight.add_struct_type()
        struct.name = "ggml.q8_0"
        structure = struct.add_structure()
        structure.field.add(name="scale", type=TypeProto(tensor_type=scalar))
        structure.field.add(name="codes", type={"struct_type": {"array": array}})
        weight.raw_data = records.tobytes()

    (x,) = InferenceSession(encoded_model(21, fill)).run(None, {})
    expected = codes.astype(np.float32) * scales[..., None].astype(np.float32)
    np.testing.assert_array_equal(x, expected.reshape(3, 64))


CODES = np.random.default_rng(2).integers(-128, 128, (3, 64)).astype(np.int8)


def add_codes(graph: Any, scale: float) -> None:
    """An encoded initializer w of CODES."""
    weight = graph.encoded_initializer.add(name="w", raw_data=CODES.tobytes())
    weight.logical_type = TypeProto(
        tensor_type={"elem_type": FLOAT, "shape": {"dim": [{"dim_value": n} for n in CODES.shape]}}
    )
    weight.affine.storage_type = TensorProto.INT8
    weight.affine.scale = TensorProto(data_type=FLOAT, float_data=[scale])


def test_encoded_initializers_of_branches() -> None:
    branches = {
        name: subgraph(name, [NODE("Identity", ["w"], [name])], [], [value_info(name, FLOAT, None)])
        for name in ("then_branch", "else_branch")
    }
    model = make(
        [NODE("If", ["c"], ["x"], **branches)],
        [value_info("c", BOOL, [])],
        [value_info("x", FLOAT, [None] * 2)],
    )
    for attribute in model.graph.node[0].attribute:
        add_codes(attribute.g, 0.5 if attribute.name == "then_branch" else 0.25)
    session = InferenceSession(model)
    for condition, scale in ((True, 0.5), (False, 0.25)):
        (x,) = session.run(None, {"c": np.array(condition)})
        np.testing.assert_array_equal(x, CODES * np.float32(scale))


def test_encoded_initializers_with_shared_parameters() -> None:
    model = encoded_model(22, lambda weight: None)
    model.graph.encoded_initializer.clear()
    add_codes(model.graph, 0)
    weight = model.graph.encoded_initializer[0]
    weight.affine.ClearField("scale")
    weight.parameter_ref = "rows"
    model.graph.initializer.append(from_array(np.array([2, 3, 0.5], np.float32), "row.scales"))
    weight.affine.axis = 0
    annotation = model.graph.quantization_annotation.add()
    annotation.tensor_name = "onnx_light.quantization.parameters:rows"
    annotation.quant_parameter_tensor_names.add(key="scale", value="row.scales")
    (x,) = InferenceSession(model).run(None, {})
    np.testing.assert_array_equal(x, CODES * np.array([[2], [3], [0.5]], np.float32))
    weight.parameter_ref = "columns"
    refused(model, "runtime.encoded", "graph.encoded_initializer[w]", "'columns'")


def test_encoded_initializers_that_inputs_replace() -> None:
    model = encoded_model(22, lambda weight: None)
    model.graph.encoded_initializer.clear()
    add_codes(model.graph, 0.5)
    value = model.graph.input.add(name="w")
    value.type = model.graph.encoded_initializer[0].logical_type
    session = InferenceSession(model)
    np.testing.assert_array_equal(session.run(None, {})[0], CODES * np.float32(0.5))
    other = np.ones(CODES.shape, np.float32)
    np.testing.assert_array_equal(session.run(None, {"w": other})[0], other)


@pytest.mark.parametrize("opset", [17, 22])
def test_encoded_initializers_in_another_file(
    opset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = encoded_model(opset, lambda weight: None)
    model.graph.encoded_initializer.clear()
    add_codes(model.graph, 0.5)
    path = tmp_path / "model.onnx"
    model.SerializeToFile(path, SerializeOptions(), tmp_path / "model.data")
    assert len(path.read_bytes()) < CODES.nbytes + 100
    monkeypatch.chdir("/")
    (x,) = InferenceSession(path).run(None, {})
    np.testing.assert_array_equal(x, CODES * np.float32(0.5))


def test_embedded_caches_in_another_file(tmp_path: Path) -> None:
    model = decoder(layers=2)
    start = PagedCache.from_arrays(feeds(150, 1)["k"], feeds(150, 1)["v"])
    embed(model.graph, "layers.0", start)
    embed(model.graph, "layers.1", start.quantize("int8"))
    path = tmp_path / "model.onnx"
    model.SerializeToFile(path, SerializeOptions(alignment=64), tmp_path / "model.data")
    assert (tmp_path / "model.data").stat().st_size > 150 * HEADS * WIDTH * 8
    session = InferenceSession(path)
    assert list(session.state.values()) == [start, start.quantize("int8")]
    (tmp_path / "model.data").unlink()
    with pytest.raises(FileNotFoundError, match=r"blocks\[0\]\.key.*model\.data"):
        InferenceSession(path)


def test_wrong_encoded_initializers() -> None:
    def records(weight: Any) -> None:
        weight.struct_type.name = "ggml.q8_0"

    huge = encoded_model(21, records, (2**40, 2**40, 32))
    refused(huge, "runtime.encoded", "graph.encoded_initializer[w]", "rows")

    def fill(weight: Any) -> None:
        weight.raw_data = bytes(7)
        weight.affine.scale.data_type = 1
        weight.affine.scale.float_data.append(1)

    refused(encoded_model(21, fill), "runtime.encoded", "graph.encoded_initializer[w]", "7 bytes")
    refused(
        encoded_model(21, lambda weight: None), "runtime.encoded", "graph.encoded_initializer[w]"
    )


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("block", [0, 1, 16, 63, 64, 65, 2**40, 2**64 - 1])
def test_encoded_initializers_take_parameters_of_one_shape(opset: int, block: int) -> None:
    def model(scale: Any, zero: Any, axis: int) -> ModelProto:
        def fill(weight: Any) -> None:
            weight.raw_data = CODES.tobytes()
            weight.affine.storage_type = TensorProto.INT8
            weight.affine.scale = from_array(np.ones(scale, np.float32))
            weight.affine.zero_point = from_array(np.zeros(zero, np.int8))
            weight.affine.axis = axis
            weight.affine.block_size = block

        return encoded_model(opset, fill)

    shapes = [(), (1,), (3,), (64,), (1, 1), (3, 1), (1, 64), (3, 4), (3, 64), (3, 65), (3, 1, 1)]
    for axis, shape in itertools.product((-3, -2, -1, 0, 1, 2), shapes):
        wanted = [(), (CODES.shape[axis % 2],)]
        if block:
            wanted.append((3, -(-64 // block)) if axis % 2 else (-(-3 // block), 64))
        if shape not in wanted or not -2 <= axis < 2:
            refused(model(shape, shape, axis), "runtime.encoded", "initializer[w]")
            continue
        (x,) = InferenceSession(model(shape, shape, axis)).run(None, {})
        np.testing.assert_array_equal(x, CODES)
        refused(model(shape, (2,), axis), "runtime.encoded", "zero points")
    refused(model((), (1,), 0), "runtime.encoded", "zero points")
