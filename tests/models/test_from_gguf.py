"""Converted models against the numpy oracle, through onnxruntime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from gguf_samples import SMALL, random_weights, write_model
from llama_oracle import MISTAKES, Oracle
from session_double import StandardSession

from onnx_light.models import ModelError, cached_model, convert_gguf, from_gguf, gguf_identity
from onnx_light.models.llama_config import LlamaConfig
from onnx_light.models.weights import rope_tables

IDS = np.random.default_rng(5).integers(0, SMALL["vocabulary"], 40).tolist()
# float32 over two layers with logits of about 10: rounding is about 1e-5, every mistake above 0.01.
TOLERANCE = 2e-4


def converted(path: Path, **options: Any) -> StandardSession:
    return StandardSession(from_gguf(path, attention="standard", **options).SerializeToString())


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "small.gguf")


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tied": True},
    "factors": {"factors": True},
    "one kv head": {"config": {"heads": 5, "kv_heads": 1, "width": 12}},
    "as many kv heads": {"config": {"heads": 4, "kv_heads": 4, "width": 16}},
    "quantized": {"types": {"attn_q": "Q4_0", "attn_k": "Q8_0", "ffn_up": "Q4_1", "token": "Q8_0"}},
    "halves": {"types": {"attn": "F16", "ffn": "BF16"}, "fix_norms": True},
}


def variant_file(folder: Path, name: str) -> Path:
    options = dict(VARIANTS[name])
    config = SMALL | options.pop("config", {})
    types = options.pop("types", {})
    if options.pop("fix_norms", False):
        types = {"norm": "F32", **types}
    weights = random_weights(config, **options)
    return write_model(folder / f"{name}.gguf", config, weights, types=types)


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_state_equal_the_oracle(tmp_path: Path, name: str) -> None:
    path = variant_file(tmp_path, name)
    session, oracle = converted(path), Oracle(path)
    expected, state = oracle.forward(IDS)
    actual = session.logits(IDS, len(IDS))
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() < TOLERANCE
    # Absolute positions: an offset of all of them would cancel in the logits, not in the keys.
    for layer, (key, value) in enumerate(state):
        held = session.state[f"past_key_values.{layer}.key"][0].swapaxes(0, 1)
        assert np.abs(held - key).max() < TOLERANCE
        held = session.state[f"past_key_values.{layer}.value"][0].swapaxes(0, 1)
        assert np.abs(held - value).max() < TOLERANCE


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_would_notice(tmp_path: Path, mistake: str) -> None:
    path = variant_file(tmp_path, "factors")
    difference = Oracle(path).logits(IDS) - Oracle(path, [mistake]).logits(IDS)
    assert np.abs(difference).max() > 50 * TOLERANCE


def test_chunks_continue_at_their_positions(model_path: Path) -> None:
    session = converted(model_path)
    expected, state = Oracle(model_path).forward(IDS)
    parts = [IDS[:1], IDS[1:9], IDS[9:10], IDS[10:33], IDS[33:]]
    actual = np.concatenate([session.logits(part, len(part)) for part in parts])
    assert np.abs(actual - expected).max() < TOLERANCE
    held = session.state["past_key_values.1.key"][0].swapaxes(0, 1)
    assert np.abs(held - state[1][0]).max() < TOLERANCE


@pytest.mark.parametrize("opset", [23, 24])
def test_opsets_agree(model_path: Path, opset: int) -> None:
    model = from_gguf(model_path, attention="standard", opset=opset)
    assert [entry.version for entry in model.opset_import] == [opset]
    session = StandardSession(model.SerializeToString())
    assert np.abs(session.logits(IDS, 40) - Oracle(model_path).logits(IDS)).max() < TOLERANCE


def test_number_of_logits(model_path: Path) -> None:
    session, expected = converted(model_path), Oracle(model_path).logits(IDS)
    ids = np.array([IDS], np.int64)
    (last,) = session.run(["logits"], {"input_ids": ids})
    assert last.shape == (1, 1, SMALL["vocabulary"])
    assert np.abs(last[0] - expected[-1:]).max() < TOLERANCE
    for count in (0, 1, 7, 40):
        session.reset()
        actual = session.logits(IDS, count)
        assert actual.shape == (count, SMALL["vocabulary"])
        assert np.allclose(actual, expected[40 - count :], rtol=0, atol=TOLERANCE)
    for count in (-1, 41):
        session.reset()
        with pytest.raises(Exception, match=r"[Ss]plit|Size"):
            session.logits(IDS, count)


def test_runs_outside_vocabulary_or_context_fail(model_path: Path) -> None:
    session = converted(model_path)
    with pytest.raises(Exception, match="Gather"):
        session.logits([SMALL["vocabulary"]], 1)
    session.logits(range(SMALL["context"]), 1)
    with pytest.raises(Exception, match="Gather"):
        session.logits([1], 1)


def test_interface_and_checker(model_path: Path) -> None:
    model = onnx.ModelProto.FromString(
        from_gguf(model_path, attention="standard").SerializeToString()
    )
    onnx.checker.check_model(model, full_check=True)
    shapes = {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in [*model.graph.input, *model.graph.output]
    }
    expected: dict[str, list[Any]] = {"input_ids": [1, "tokens"], "num_logits": []}
    expected["logits"] = [1, "num_logits", 640]
    for layer in (0, 1):
        for side in ("key", "value"):
            expected[f"past_key_values.{layer}.{side}"] = [1, 2, "past", 8]
            expected[f"present.{layer}.{side}"] = [1, 2, "total", 8]
    assert shapes == expected
    assert {entry.domain for entry in model.opset_import} == {""}


def test_rope_tables_are_exact_at_the_last_position() -> None:
    config = LlamaConfig(1, 64, 64, 1, 1, 64, 10, 8192, 1e5, False, 1e-5, True)
    cosines, sines = rope_tables(config, None)
    position, steps = np.longdouble(8191), np.arange(32, dtype=np.longdouble)
    angles = position * np.longdouble(1e5) ** (-2 * steps / 64)
    assert cosines.dtype == np.float32
    assert cosines.shape == (8192, 32)
    assert np.abs(cosines[-1] - np.cos(angles)).max() < 1e-7
    assert np.abs(sines[-1] - np.sin(angles)).max() < 1e-7


def test_cached_file_is_aligned_and_loads_from_its_path(model_path: Path) -> None:
    path = cached_model(model_path)
    message = onnx.load(str(path), load_external_data=False)
    external = {}
    for tensor in message.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            external[tensor.name] = int(entries["offset"])
            assert int(entries["length"]) == 4 * np.prod(tensor.dims)
    assert set(external) == {"token_embd.weight", "output.weight"}
    assert all(offset % 65536 == 0 for offset in external.values())
    session = StandardSession(str(path))
    assert np.abs(session.logits(IDS, 40) - Oracle(model_path).logits(IDS)).max() < TOLERANCE


def test_second_call_converts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "again.gguf", weights=random_weights(SMALL, seed=8))
    first = from_gguf(path).SerializeToString()
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(convert_gguf, "weight_sources", None)
    assert from_gguf(path).SerializeToString() == first
    assert cached_model(copy) == cached_model(path)  # by content, not by name


def test_other_weights_are_another_model(tmp_path: Path) -> None:
    path = tmp_path / "changing.gguf"
    places = set()
    for seed in (1, 2):
        write_model(path, weights=random_weights(SMALL, seed=seed))
        os.utime(path, ns=(10**18, 10**18))
        path.with_name("new.gguf").write_bytes(path.read_bytes())
        os.utime(path.with_name("new.gguf"), ns=(10**18 + seed, 10**18 + seed))
        os.replace(path.with_name("new.gguf"), path)
        places.add(cached_model(path))
        assert np.abs(converted(path).logits(IDS, 40) - Oracle(path).logits(IDS)).max() < TOLERANCE
    assert len(places) == 2


def test_progress_ends_at_its_total(tmp_path: Path) -> None:
    path = write_model(tmp_path / "progress.gguf", weights=random_weights(SMALL, seed=3))
    for _ in range(2):
        seen: list[tuple[int, int]] = []
        from_gguf(path, progress=lambda done, total, seen=seen: seen.append((done, total)))
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1][0] == seen[-1][1]
        assert len({total for _, total in seen}) == 1


def test_identity_is_in_the_metadata(model_path: Path) -> None:
    model = from_gguf(model_path, attention="standard")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    identity = gguf_identity(model_path)
    assert metadata == {f"onnx_light.identity.{key}": value for key, value in identity.items()}
    assert identity["architecture"] == "llama"
    assert identity["key_layout"] == "half"
    assert identity["context"] == "96"
    assert identity["rope"] == "base=700 width=8"
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert session.get_modelmeta().custom_metadata_map == metadata


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"attention": "flash"}, "attention"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": True}, "page_size"),
        ({"attention": "standard", "policy": "int8"}, "policy"),
        ({"weights": "float16"}, "weights"),
        ({"opset": 22}, "opset"),
    ],
)
def test_options_are_refused_before_the_file_is_read(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ModelError, match=r"available|needed|none") as caught:
        from_gguf("/no/such/file.gguf", **options)
    assert caught.value.path == name
    assert caught.value.code == "models.option"


REAL_IDS = [504, 3575, 282, 4649, 314, 7042, 30, 198, 198] * 4


def test_real_model(smollm: Path) -> None:
    session = StandardSession(str(cached_model(smollm)))
    expected, state = Oracle(smollm, dtype=np.float32).forward(REAL_IDS)
    parts = [REAL_IDS[:1], REAL_IDS[1:20], REAL_IDS[20:]]
    actual = np.concatenate([session.logits(part, len(part)) for part in parts])
    assert np.abs(actual - expected).max() < 1e-3
    held = session.state["past_key_values.29.key"][0].swapaxes(0, 1)
    assert np.abs(held - state[29][0]).max() < 1e-3


@pytest.mark.long
def test_the_comparison_would_notice_in_a_real_model(smollm: Path) -> None:
    oracle = Oracle(smollm, dtype=np.float32)
    expected = oracle.logits(REAL_IDS)
    for mistake in ("epsilon", "pairs", "inverse", "base", "resume", "groups"):
        oracle.mistakes = {mistake}
        assert np.abs(oracle.logits(REAL_IDS) - expected).max() > 5e-3, mistake
