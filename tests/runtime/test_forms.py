"""Decoders in the forms of all exporters, in pieces and in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from decoder_models import (
    FORMS,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    Graph,
    genai,
    optimum,
    random_ids,
    standard,
    whole_run,
)
from onnx import TensorProto, helper

from onnx_light.errors import CodedError
from onnx_light.runtime import InferenceSession

# Of logits, which are around 1: rounding of sums of 64 products in another order, by dtype.
TOLERANCES = {"float32": 2e-5, "float16": 3e-2}
PIECES = ((0, 1), (1, 6), (6, 7), (7, 11))
# GroupQueryAttention takes several new tokens behind a past for one sequence only.
SINGLE_STEPS = ((0, 5), *((end, end + 1) for end in range(5, 11)))


def quiet() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def run_in_pieces(session: InferenceSession, ids: np.ndarray) -> np.ndarray:
    pieces = PIECES if len(ids) == 1 else SINGLE_STEPS
    parts = [session.run(["logits"], {"input_ids": ids[:, a:b]})[0] for a, b in pieces]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_pieces_give_what_one_run_gives(form: str, batch: int, dtype: str) -> None:
    model = FORMS[form](dtype)
    ids = random_ids(batch, 11)
    session = InferenceSession(model, quiet())
    expected = whole_run(model, ids)
    logits = run_in_pieces(session, ids)
    tolerance = TOLERANCES[dtype]
    assert logits.dtype == dtype
    np.testing.assert_allclose(logits, expected["logits"], rtol=tolerance, atol=tolerance)
    assert list(session.state) == [f"layers.{layer}" for layer in range(LAYERS)]
    for layer in range(LAYERS):
        cache = session.state[f"layers.{layer}"]
        for array, side in ((cache.key_array(), "key"), (cache.value_array(), "value")):
            assert array.dtype == dtype
            reference = expected[f"present.{layer}.{side}"]
            np.testing.assert_allclose(array, reference, rtol=tolerance, atol=tolerance)
    assert session.tokens is not None
    np.testing.assert_array_equal(session.tokens, ids[0] if batch == 1 else ids)


@pytest.mark.parametrize("form", FORMS)
def test_positions_matter_in_every_form(form: str) -> None:
    # Otherwise the test above could not fail for wrong positions.
    model = FORMS[form]()
    ids = np.array([[5, 7, 5, 9]])
    logits = whole_run(model, ids)["logits"]
    other = whole_run(model, np.array([[7, 5, 5, 9]]))["logits"]
    assert np.abs(logits[0, 3] - other[0, 3]).max() > 100 * TOLERANCES["float32"]


def test_all_outputs_are_onnxruntimes() -> None:
    model = genai()
    ids = random_ids(1, 5)
    expected = whole_run(model, ids)
    outputs = InferenceSession(model, quiet()).run(None, {"input_ids": ids})
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected.values(), strict=True):
        np.testing.assert_allclose(output, reference, rtol=1e-5, atol=1e-5)


def test_outputs_do_not_share_memory_with_the_state() -> None:
    session = InferenceSession(standard(), quiet())
    ids = random_ids(1, 4)
    names = ["present.0.key", "logits", "present.0.key"]
    first, _, second = session.run(names, {"input_ids": ids})
    before = first.copy()
    first[:] = 7
    np.testing.assert_array_equal(second, before)
    np.testing.assert_array_equal(session.state["layers.0"].key_array(), before)
    (value,) = session.run_with_ort_values(["present.0.key"], {"input_ids": ids[:, :1]})
    value.numpy()[:] = 7
    np.testing.assert_array_equal(session.state["layers.0"].key_array()[:, :, :4], before)


def test_ort_values_in_and_out() -> None:
    model = optimum()
    ids = random_ids(1, 4)
    session = InferenceSession(model, quiet())
    value = onnxruntime.OrtValue.ortvalue_from_numpy(ids)
    (logits,) = session.run_with_ort_values(["logits"], {"input_ids": value})
    expected = whole_run(model, ids)["logits"]
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert list(session.tokens) == ids[0].tolist()


@pytest.mark.parametrize("packed", [False, True])
def test_symbolic_width_from_the_products(packed: bool) -> None:
    session = InferenceSession(genai(packed=packed), quiet())
    session.run(["logits"], {"input_ids": random_ids(1, 3)})
    assert session.state["layers.1"].key_width == WIDTH
    assert session.state["layers.1"].heads == KV_HEADS


def test_symbolic_width_from_value_info() -> None:
    session = InferenceSession(genai(value_info=True), quiet())
    session.run(["logits"], {"input_ids": random_ids(1, 3)})
    assert session.state["layers.1"].value_width == WIDTH


def test_symbolic_width_from_genai_config(tmp_path: Path) -> None:
    model = genai(value_info=True)
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / "model.onnx")
    ids = random_ids(1, 3)
    session = InferenceSession(tmp_path / "model.onnx", quiet())
    with pytest.raises(CodedError, match=r"genai_config\.json") as caught:
        session.run(["logits"], {"input_ids": ids})
    assert caught.value.code == "runtime.size"
    (tmp_path / "genai_config.json").write_text("{")
    with pytest.raises(CodedError, match="not JSON"):
        session.run(["logits"], {"input_ids": ids})
    config = {"model": {"decoder": {"head_size": WIDTH, "num_key_value_heads": KV_HEADS}}}
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    session.run(["logits"], {"input_ids": ids})
    assert len(session.state["layers.0"]) == 3


def test_symbolic_width_may_be_fed() -> None:
    model = genai(value_info=True)
    del model.graph.value_info[:]
    session = InferenceSession(model, quiet())
    empty = np.zeros((1, KV_HEADS, 0, WIDTH), np.float32)
    feed: dict[str, Any] = {
        f"past_key_values.{layer}.{side}": empty
        for layer in range(LAYERS)
        for side in ("key", "value")
    }
    ids = random_ids(1, 3)
    session.run(["logits"], {**feed, "input_ids": ids})
    assert list(session.tokens) == ids[0].tolist()


def bfloat16_decoder() -> onnx.ModelProto:
    """Appends the embeddings of new tokens to bfloat16 caches; logits are sums over all rows."""
    graph = Graph("float32", 4)
    graph.input("input_ids", TensorProto.INT64, ["batch", "tokens"])
    hidden = graph.split_heads(graph.embed(), HEADS)
    sums = []
    for side in ("key", "value"):
        past, present = f"past_key_values.0.{side}", f"present.0.{side}"
        graph.input(past, TensorProto.BFLOAT16, ["batch", HEADS, "past", WIDTH])
        wide = graph.op("Cast", past, to=TensorProto.FLOAT)
        joined = graph.op("Concat", wide, hidden, axis=2)
        graph.op("Cast", joined, out=present, to=TensorProto.BFLOAT16)
        sums.append(graph.op("ReduceSum", joined, graph.constant([1, 2, 3]), keepdims=0))
    graph.op("Add", *sums, out="logits")
    graph.output("logits", TensorProto.FLOAT, ["batch"])
    for side in ("key", "value"):
        graph.output(f"present.0.{side}", TensorProto.BFLOAT16, ["batch", HEADS, "total", WIDTH])
    return graph.model(18)


def test_bfloat16_caches() -> None:
    model = bfloat16_decoder()
    session = InferenceSession(model, quiet())
    ids = random_ids(1, 6)
    outputs = session.run(None, {"input_ids": ids[:, :4]})
    assert outputs[1].dtype.name == "bfloat16"
    assert outputs[1].shape == (1, HEADS, 4, WIDTH)
    session.run(None, {"input_ids": ids[:, 4:]})
    tables = [tensor for tensor in model.graph.initializer if tensor.dims[:1] == [VOCABULARY]]
    table = onnx.numpy_helper.to_array(tables[0])
    rows = table[ids[0]].reshape(6, HEADS, WIDTH).swapaxes(0, 1)[None].astype(outputs[1].dtype)
    cache = session.state["layers.0"]
    assert cache.key_array().tobytes() == rows.tobytes()
    other = InferenceSession(model, quiet())
    other.state = session.state
    assert other.state["layers.0"] == cache
    session.truncate(2)
    assert session.state["layers.0"].value_array().tobytes() == rows[:, :, :2].tobytes()


def test_embeddings_in_place_of_ids() -> None:
    session = InferenceSession(standard(embeds=True), quiet())
    embeddings = np.random.default_rng(0).normal(size=(1, 6, HEADS * WIDTH)).astype(np.float32)
    whole = session.run(["logits"], {"inputs_embeds": embeddings})[0]
    assert session.tokens is None
    session.truncate(2)
    assert session.tokens is None
    last = session.run(["logits"], {"inputs_embeds": embeddings[:, 2:]})[0]
    np.testing.assert_allclose(last, whole[:, 2:], rtol=2e-5, atol=2e-5)
    assert len(session.state["layers.0"]) == 6
    session.reset()
    assert len(session.tokens) == 0


def test_lengths_as_inputs() -> None:
    """A model that takes seqlens_k and total_sequence_length instead of a mask."""
    model = genai()
    graph = model.graph
    names = {}
    for node in graph.node:
        if node.op_type == "GroupQueryAttention":
            names = {node.input[5]: "seqlens_k", node.input[6]: "total_sequence_length"}
            node.input[5], node.input[6] = names.values()
    needed = [node for node in graph.node if node.output[0] not in names]
    mask_only = {"ReduceSum", "Sub", "Cast"}
    kept = [node for node in needed if node.op_type not in mask_only]
    kept = [node for node in kept if "attention_mask" not in node.input]
    shapes = {node.output[0] for node in needed if "attention_mask" in node.input}
    kept = [node for node in kept if not shapes & set(node.input)]
    del graph.node[:]
    graph.node.extend(kept)
    inputs = [item for item in graph.input if item.name != "attention_mask"]
    inputs.append(helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, ["batch"]))
    inputs.append(helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, []))
    del graph.input[:]
    graph.input.extend(inputs)
    ids = random_ids(2, 11)
    logits = run_in_pieces(InferenceSession(model, quiet()), ids)
    expected = whole_run(genai(), ids)["logits"]
    np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-5)
