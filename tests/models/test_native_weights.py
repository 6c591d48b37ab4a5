"""Models whose matrices stay in the codes of the GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import onnx
import pytest
from gguf.quants import dequantize
from gguf_samples import SMALL, random_weights, write_model
from llama_oracle import Oracle
from onnx import numpy_helper

from onnx_light.models import from_gguf
from onnx_light.runtime import InferenceSession

CONFIG = SMALL | {"heads": 8}
IDS = np.random.default_rng(5).integers(0, SMALL["vocabulary"], (1, 40))
# As in test_from_gguf.py.
TOLERANCE = 2e-4
TYPES = {
    "attn_q": "Q4_0",
    "attn_k": "Q8_0",
    "attn_v": "Q8_0",
    "attn_output": "Q4_0",
    "ffn_gate": "Q4_0",
    "ffn_up": "Q8_0",
    "ffn_down": "Q4_1",  # with minima: decoded
    "token_embd": "Q8_0",
    "output.weight": "Q8_0",
}
# Those of 8 bits are two matrices of 4.
CODED_PER_LAYER = 3 + 2 * 3
Attention = Literal["standard", "paged"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    weights = random_weights(CONFIG)
    return write_model(folder / "native.gguf", CONFIG, weights, types=TYPES)


def logits(model: Any, ids: Any = IDS) -> Any:
    session = InferenceSession(model)
    parts = [ids[:, :7], ids[:, 7:8], ids[:, 8:]]
    return np.concatenate(
        [
            session.run(["logits"], {"input_ids": part, "num_logits": np.array(part.size)})[0][0]
            for part in parts
        ]
    )


@pytest.mark.parametrize("attention", ["standard", "paged"])
@pytest.mark.parametrize("opset", [23, 24])
def test_logits_equal_the_oracle(path: Path, attention: Attention, opset: int) -> None:
    model = from_gguf(path, attention=attention, weights="native", opset=opset)
    coded = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    assert len(coded) == CODED_PER_LAYER * CONFIG["layers"] + 2
    assert np.abs(logits(model) - Oracle(path).logits(IDS[0])).max() < TOLERANCE


def test_a_tied_head_is_decoded(tmp_path: Path) -> None:
    weights = random_weights(CONFIG, tied=True)
    path = write_model(tmp_path / "tied.gguf", CONFIG, weights, types=TYPES)
    model = from_gguf(path, weights="native")
    coded = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    assert len(coded) == CODED_PER_LAYER * CONFIG["layers"]
    assert np.abs(logits(model) - Oracle(path).logits(IDS[0])).max() < TOLERANCE


def decoded(codes: Any, scales: Any, zeros: Any | None) -> Any:
    """[out, in] as onnxruntime's documentation of MatMulNBits says."""
    codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], 32)
    if zeros is None:
        zero = np.full(scales.shape, 8, np.float32)
    else:
        zero = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(len(zeros), -1)
        zero = zero[:, : scales.shape[1]].astype(np.float32)
    values = (codes.astype(np.float32) - zero[..., None]) * scales[..., None]
    return values.reshape(len(values), -1)


def test_values_are_those_of_the_file_to_the_bit(path: Path) -> None:
    """Queries and keys, whose rows have another order, are compared with the decoded model's."""
    graphs = {
        weights: onnx.ModelProto.FromString(
            from_gguf(path, attention="standard", weights=weights).SerializeToString()
        ).graph
        for weights in ("native", "float32")
    }
    arrays = {
        weights: {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        for weights, graph in graphs.items()
    }
    file = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    native = arrays["native"]
    sums: dict[str, Any] = {}
    for node in graphs["native"].node:
        if node.op_type == "MatMulNBits":
            inputs = [native[name] for name in node.input[1:]]
            name = node.input[1].removesuffix(".codes").removesuffix(".high").removesuffix(".low")
            part = decoded(*inputs, *([None] if len(inputs) == 2 else []))
            sums[name] = sums.get(name, 0) + part
    assert len(sums) == 6 * CONFIG["layers"] + 1
    for name, actual in sums.items():
        if "attn_q" in name or "attn_k" in name:
            expected = arrays["float32"][name].T
        else:
            expected = dequantize(file[name].data, file[name].tensor_type)
        np.testing.assert_array_equal(actual, expected, err_msg=name)


def test_states_go_from_native_to_decoded_weights_and_back(path: Path, tmp_path: Path) -> None:
    state = tmp_path / "prompt.kvcache"
    native = InferenceSession(from_gguf(path, weights="native"))
    native.run(["logits"], {"input_ids": IDS})
    native.save_state(state)
    other = InferenceSession(from_gguf(path))
    other.load_state(state)
    feed = {"input_ids": np.array([[3]])}
    [expected], [actual] = native.run(["logits"], feed), other.run(["logits"], feed)
    assert np.abs(actual - expected).max() < TOLERANCE


def test_progress_ends_at_its_total_and_less_is_kept(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {}
    for weights in ("native", "float32"):
        folder = tmp_path / weights
        monkeypatch.setenv("ONNX_LIGHT_CACHE", str(folder))
        seen: list[tuple[int, int]] = []
        from_gguf(path, weights=weights, progress=lambda *at, seen=seen: seen.append(at))
        assert seen == sorted(seen)
        assert {total for _, total in seen} == {seen[-1][0]}
        files = [file for file in folder.rglob("*") if file.name.startswith("model.onnx")]
        sizes[weights] = sum(file.stat().st_size for file in files)
    assert sizes["native"] < 0.8 * sizes["float32"]
