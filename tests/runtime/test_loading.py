"""What a session is made from, and what of onnxruntime's session it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from decoder_models import Graph, genai, optimum, random_ids, whole_run
from onnx import TensorProto, numpy_helper

from onnx_light import PagedCache, snapshot
from onnx_light.errors import CodedError, ParseError
from onnx_light.onnx import ModelProto
from onnx_light.runtime import InferenceSession

IDS = random_ids(1, 5)


def quiet() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def test_every_source(tmp_path: Path) -> None:
    model = optimum()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    expected = whole_run(model, IDS)["logits"]
    data = model.SerializeToString()
    for source in (path, str(path), data, model, ModelProto.FromString(data)):
        session = InferenceSession(source, quiet())
        (logits,) = session.run(["logits"], {"input_ids": IDS})
        np.testing.assert_array_equal(logits, expected)
        assert len(session.state["layers.1"]) == 5


def test_the_file_may_change_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(genai(), path)
    session = InferenceSession(path, quiet())
    with open(path, "r+b") as file:
        file.truncate(0)
    (logits,) = session.run(["logits"], {"input_ids": IDS})
    np.testing.assert_array_equal(logits, whole_run(genai(), IDS)["logits"])


def test_a_path_with_external_data(tmp_path: Path) -> None:
    model = optimum()
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.ModelProto.FromString(model.SerializeToString()),
        path,
        save_as_external_data=True,
        size_threshold=2048,
    )
    session = InferenceSession(path, quiet())
    (logits,) = session.run(["logits"], {"input_ids": IDS})
    np.testing.assert_array_equal(logits, whole_run(model, IDS)["logits"])


def test_the_format_of_onnxruntime(tmp_path: Path) -> None:
    options = quiet()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    model = optimum()
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    data = (tmp_path / "model.ort").read_bytes()
    for source in (tmp_path / "model.ort", data):
        session = InferenceSession(source, quiet())
        session.run(["logits"], {"input_ids": IDS[:, :2]})
        (logits,) = session.run(["logits"], {"input_ids": IDS[:, 2:]})
        np.testing.assert_allclose(
            logits, whole_run(model, IDS)["logits"][:, 2:], rtol=2e-5, atol=2e-5
        )


def product(weights: np.ndarray) -> onnx.ModelProto:
    graph = Graph("float32", 0)
    graph.input("x", TensorProto.FLOAT, ["n", weights.shape[0]])
    graph.constants.append(numpy_helper.from_array(weights, "weights"))
    graph.op("MatMul", "x", "weights", out="y")
    graph.output("y", TensorProto.FLOAT, ["n", weights.shape[1]])
    return graph.model(18)


def test_large_weights_are_borrowed() -> None:
    weights = np.random.default_rng(0).integers(-8, 8, (128, 256)).astype(np.float32)
    ours = ModelProto.from_onnx(product(weights))
    text = ours.SerializeToString()
    session = InferenceSession(ours, quiet())
    fork = session.fork()
    assert ours.SerializeToString() == text  # the caller's model is as it was
    ours.graph.initializer[0].raw_data = bytes(weights.nbytes)
    del ours, session
    x = np.random.default_rng(1).integers(-8, 8, (3, 128)).astype(np.float32)
    np.testing.assert_array_equal(fork.run(None, {"x": x})[0], x @ weights)


def test_options_serve_one_model_with_large_weights() -> None:
    options = quiet()
    model = product(np.ones((128, 256), np.float32))
    session = InferenceSession(model, options)
    with pytest.raises(CodedError, match="SessionOptions for each") as caught:
        InferenceSession(model, options)
    assert caught.value.code == "runtime.options"
    assert session.run(None, {"x": np.ones((1, 128), np.float32)})[0][0, 0] == 128


def test_the_rest_is_onnxruntimes() -> None:
    model = optimum(metadata={"author": "somebody"})
    plain = onnxruntime.InferenceSession(model.SerializeToString(), quiet())
    session = InferenceSession(model, quiet(), providers=["CPUExecutionProvider"])
    assert [item.name for item in session.get_inputs()] == [i.name for i in plain.get_inputs()]
    assert [item.name for item in session.get_outputs()] == [i.name for i in plain.get_outputs()]
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_modelmeta().custom_metadata_map["author"] == "somebody"
    assert {"run", "state", "get_inputs", "io_binding"} <= set(dir(session))
    with pytest.raises(AttributeError, match="nothing"):
        session.nothing  # noqa: B018


def test_a_run_with_io_binding_leaves_the_state_alone() -> None:
    model = optimum()
    session = InferenceSession(model, quiet())
    session.run(["logits"], {"input_ids": IDS[:, :2]})
    binding = session.io_binding()
    binding.bind_cpu_input("input_ids", IDS)
    binding.bind_cpu_input("attention_mask", np.ones((1, 5), np.int64))
    binding.bind_cpu_input("position_ids", np.arange(5)[None])
    for item in session.get_inputs():
        if item.name.startswith("past"):
            binding.bind_cpu_input(item.name, np.zeros((1, item.shape[1], 0, 16), np.float32))
    binding.bind_output("logits")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], whole_run(model, IDS)["logits"])
    assert len(session.tokens) == 2


def test_no_models(tmp_path: Path) -> None:
    path = tmp_path / "file"
    rows = np.zeros((1, 1, 3, 8), np.float32)
    cache = PagedCache.from_arrays(rows, rows)
    for data, words in ((b"GGUF", "from_gguf"), (snapshot.dumps([cache]), "load_state")):
        path.write_bytes(data)
        with pytest.raises(CodedError, match=words) as error:
            InferenceSession(path)
        assert (error.value.code, error.value.path) == ("runtime.model", str(path))
    with pytest.raises(FileNotFoundError):
        InferenceSession(tmp_path / "nothing.onnx")
    with pytest.raises(ParseError):
        InferenceSession(b"\xff\xff\xff")
    for source in (None, 3, bytearray(b"x")):
        with pytest.raises(TypeError, match="path, bytes or a ModelProto"):
            InferenceSession(source)
