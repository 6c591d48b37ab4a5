"""State of other forms is refused by name; models without state run as in onnxruntime."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from decoder_models import Graph, genai, optimum, random_ids, standard
from onnx import TensorProto, helper

from onnx_light.errors import CodedError
from onnx_light.onnx import ModelProto
from onnx_light.runtime import InferenceSession


def quiet() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def identities(pairs: dict[str, tuple[str, list[Any], int]]) -> onnx.ModelProto:
    """A model whose outputs are its inputs: input -> (output, dims, type)."""
    graph = Graph("float32", 0)
    for name, (output, dims, kind) in pairs.items():
        graph.input(name, kind, dims)
        graph.op("Identity", name, out=output)
        graph.output(output, kind, dims)
    return graph.model(18)


F = TensorProto.FLOAT
ROWS = ["batch", 2, "past", 8]
WINDOW = ["batch", 2, "past_sliding_length", 8]


@pytest.mark.parametrize(
    ("pairs", "what"),
    [
        ({"past_key_values.0.key": ("present.0.key", ["b", 2, 512, 8], F)}, "fixed capacity"),
        ({"past_key_values.0.key": ("present.0.key", WINDOW, F)}, "window"),
        ({"past_key_values.0.key": ("present.0.key", ["b", 8, "past"], F)}, "3 dims"),
        (
            {"past_key_values.0.key": ("present.0.key", ROWS, TensorProto.INT8)},
            r"tensor\(int8\)",
        ),
        ({"past_key_values.0.encoder.key": ("present.0.encoder.key", ROWS, F)}, "encoder"),
        ({"past_key_values.0.key_scale": ("present.0.key_scale", ROWS, F)}, "scales"),
        ({"past_key_values.0.key_value": ("present.0.key_value", ROWS, F)}, "another layout"),
        ({"past_key_values.0": ("present.0", ROWS, F)}, "another layout"),
        ({"past.0.conv": ("present.0.conv", ROWS, F)}, "convolution"),
        ({"past_conv.0": ("present_conv.0", ROWS, F)}, "convolution"),
        ({"past.3.recurrent": ("present.3.recurrent", ROWS, F)}, "recurrent"),
        ({"past_0": ("present_0", [2, "b", 2, "past", 8], F)}, "unknown kind"),
        ({"past_key_values.0.key": ("other", ROWS, F)}, r"no output present\.0\.key"),
    ],
)
def test_state_of_other_forms(pairs: dict[str, Any], what: str) -> None:
    if "past_key_values.0.key" in pairs:
        output, dims, kind = pairs["past_key_values.0.key"]
        output = output.replace("key", "value")
        pairs = {
            **pairs,
            "past_key_values.0.value": (output + "_" * (output == "other"), dims, kind),
        }
    with pytest.raises(CodedError, match=what) as caught:
        InferenceSession(identities(pairs), quiet())
    assert caught.value.code == "runtime.unsupported"
    assert caught.value.path in pairs


def test_a_layer_without_values() -> None:
    model = identities({"past_key_values.0.key": ("present.0.key", ROWS, F)})
    with pytest.raises(CodedError, match="layer 0 has no value"):
        InferenceSession(model, quiet())


@pytest.mark.parametrize("name", ["use_cache_branch", "block_table"])
def test_inputs_that_change_what_the_caches_mean(name: str) -> None:
    model = standard()
    model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.BOOL, [1]))
    with pytest.raises(CodedError) as caught:
        InferenceSession(model, quiet())
    assert (caught.value.code, caught.value.path) == ("runtime.unsupported", name)


def test_window_layers_by_their_attribute() -> None:
    model = genai()
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    ours = ModelProto.from_onnx(model)
    for copy in ours.graph.node:
        if list(copy.output) == list(node.output):
            copy.attribute.add(name="sliding_window_cache", type=2, i=1)
    # onnxruntime itself may not know the attribute: the graph is looked at, not run.
    from onnx_light.runtime.bindings import _window_inputs

    assert "past_key_values.0.key" in _window_inputs(ours.graph)
    assert "past_key_values.1.key" not in _window_inputs(ours.graph)


@pytest.mark.parametrize(
    ("pair", "what"),
    [
        (("nothing", "logits"), "no input 'nothing'"),
        (("input_ids", "nothing"), "no output 'nothing'"),
        (("input_ids", "logits"), "cannot become"),
    ],
)
def test_declared_pairs_that_cannot_be(pair: tuple[str, str], what: str) -> None:
    model = ModelProto.from_onnx(standard())
    model.graph.persistent_bindings.add(input_name=pair[0], output_name=pair[1])
    with pytest.raises(CodedError, match=what) as caught:
        InferenceSession(model, quiet())
    assert caught.value.path == "graph.persistent_bindings[0]"


def test_structured_values_of_another_type() -> None:
    model = ModelProto.from_onnx(standard())
    model.graph.input.add(name="layers.0").type.struct_type.SetInParent()
    for source in (model, model.SerializeToString()):
        with pytest.raises(CodedError) as caught:
            InferenceSession(source, quiet())
        assert caught.value.code == "runtime.unsupported"


def test_a_model_without_state() -> None:
    graph = Graph("float32", 0)
    graph.input("x", TensorProto.FLOAT, ["n"])
    graph.input("texts", TensorProto.STRING, ["n"])
    graph.op("Neg", "x", out="y")
    graph.op("Identity", "texts", out="same")
    graph.output("y", TensorProto.FLOAT, ["n"])
    graph.output("same", TensorProto.STRING, ["n"])
    session = InferenceSession(graph.model(18).SerializeToString(), quiet())
    x = np.arange(3, dtype=np.float32)
    y, same = session.run(None, {"x": x, "texts": np.array(["a", "b", "c"])})
    assert y.tolist() == [0, -1, -2]
    assert list(same) == ["a", "b", "c"]
    assert dict(session.state) == {}
    assert session.tokens is None
    session.reset()
    with pytest.raises(CodedError, match="no caches"):
        session.truncate(0)
    with pytest.raises(CodedError, match="no caches"):
        session.save_state("nowhere")
    with pytest.raises(Exception, match="texts"):
        session.run(None, {"x": x})


def test_missing_inputs_are_named() -> None:
    with pytest.raises(CodedError, match="input_ids"):
        InferenceSession(optimum(), quiet()).run(None, {})
    model = standard()
    model.graph.input.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, [1]))
    with pytest.raises(ValueError, match="extra"):
        InferenceSession(model, quiet()).run(None, {"input_ids": random_ids(1, 2)})


def test_without_onnxruntime() -> None:
    code = """
import sys
sys.modules["onnxruntime"] = None
from onnx_light.runtime import InferenceSession
try:
    InferenceSession(b"")
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "onnx-light[runtime]" in result.stdout
