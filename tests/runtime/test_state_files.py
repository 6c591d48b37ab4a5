"""States in snapshot files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from decoder_models import FORMS, KV_HEADS, LAYERS, WIDTH, optimum, random_ids, standard, whole_run

from onnx_light import ModelIdentity, PagedCache, snapshot
from onnx_light.runtime import InferenceSession

IDS = random_ids(1, 11, seed=5)
IDENTITY = {
    "onnx_light.identity.architecture": "test",
    "onnx_light.identity.weights": "sha256:" + "1" * 64,
    "onnx_light.identity.context": "48",
    "onnx_light.identity.adapters": '["a", "b"]',
}


def session_of(model: onnx.ModelProto) -> InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return InferenceSession(model, options)


def content(session: InferenceSession) -> tuple[Any, ...]:
    arrays = [
        (name, cache.key_array().tobytes(), cache.value_array().tobytes())
        for name, cache in session.state.items()
        if len(cache)
    ]
    return arrays, None if session.tokens is None else session.tokens.tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_state_comes_back(form: str, dtype: str, batch: int, tmp_path: Path) -> None:
    model = FORMS[form](dtype)
    ids = random_ids(batch, 9)
    session = session_of(model)
    session.run(["logits"], {"input_ids": ids[:, :8]})
    session.save_state(tmp_path / "s.kvcache")
    other = session_of(model)
    other.load_state(tmp_path / "s.kvcache")
    assert content(other) == content(session)
    feed = {"input_ids": ids[:, 8:]}
    resumed = other.run(["logits"], feed)[0]
    assert resumed.tobytes() == session.run(["logits"], feed)[0].tobytes()
    assert other.tokens.tolist() == (ids[0] if batch == 1 else ids).tolist()
    with snapshot.open(tmp_path / "s.kvcache", verify="full") as file:
        assert list(file.caches) == [f"layers.{layer}" for layer in range(LAYERS)]
        assert len(file) == 8
        assert (
            np.asarray(file.tokens).tolist() == (ids[0, :8] if batch == 1 else ids[:, :8]).tolist()
        )


def test_an_empty_state_comes_back(tmp_path: Path) -> None:
    session = session_of(standard())
    session.save_state(tmp_path / "s.kvcache")
    session.run(["logits"], {"input_ids": IDS})
    session.load_state(tmp_path / "s.kvcache")
    assert len(session.tokens) == 0
    np.testing.assert_allclose(
        session.run(["logits"], {"input_ids": IDS})[0],
        whole_run(standard(), IDS)["logits"],
        rtol=2e-5,
        atol=2e-5,
    )


def test_options_are_those_of_snapshot(tmp_path: Path) -> None:
    session = session_of(standard())
    session.run(["logits"], {"input_ids": IDS})
    path = tmp_path / "s.kvcache"
    session.save_state(path, tokens=IDS[0] * 0, metadata={"who": "me"})
    with snapshot.open(path) as file:
        assert file.metadata["who"] == "me"
    session.load_state(path, verify="full")
    assert session.tokens.tolist() == [0] * 11
    with pytest.raises(FileExistsError):
        session.save_state(path, overwrite=False)
    with pytest.raises(ValueError, match="tokens"):
        session.save_state(path, tokens=IDS[0, :3])


def test_unknown_tokens_stay_unknown(tmp_path: Path) -> None:
    session = session_of(standard())
    session.run(["logits"], {"input_ids": IDS})
    session.state = dict(session.state)
    session.save_state(tmp_path / "s.kvcache")
    other = session_of(standard())
    other.load_state(tmp_path / "s.kvcache")
    assert other.tokens is None
    assert len(other.state["layers.0"]) == 11


def test_identity_goes_along_and_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "s.kvcache"
    session = session_of(standard(metadata=IDENTITY))
    session.run(["logits"], {"input_ids": IDS})
    session.save_state(path)
    with snapshot.open(path) as file:
        assert file.identity.architecture == "test"
        assert file.identity.context == 48
        assert list(file.identity.adapters) == ["a", "b"]
    session.load_state(path)
    changed = {**IDENTITY, "onnx_light.identity.weights": "sha256:" + "2" * 64}
    other = session_of(standard(metadata=changed))
    other.run(["logits"], {"input_ids": IDS[:, :2]})
    before = content(other)
    with pytest.raises(ValueError, match="weights"):
        other.load_state(path)
    assert content(other) == before
    other.load_state(path, expect=ModelIdentity(architecture="test"))
    assert content(other) == content(session)
    other.load_state(path, expect=None)
    with pytest.raises(ValueError, match="architecture"):
        other.load_state(path, expect=ModelIdentity(architecture="another"))
    # A model that says nothing is not compared.
    session_of(standard()).load_state(path)


def test_an_identity_that_cannot_be_read(tmp_path: Path) -> None:
    for key, text in (("context", "many"), ("adapters", "{"), ("colour", "red")):
        session = session_of(standard(metadata={"onnx_light.identity." + key: text}))
        with pytest.raises(ValueError, match=key if key != "colour" else "colour"):
            session.save_state(tmp_path / "s.kvcache")
    assert list(tmp_path.iterdir()) == []


def caches(count: int = 4, **changes: Any) -> dict[str, PagedCache]:
    sizes = {"batch": 1, "heads": KV_HEADS, "width": WIDTH, "layers": LAYERS, **changes}
    array = np.ones((sizes["batch"], sizes["heads"], count, sizes["width"]), np.float32)
    cache = PagedCache.from_arrays(array, array)
    return {f"layers.{layer}": cache for layer in range(sizes["layers"])}


@pytest.mark.parametrize(
    ("saved", "what"),
    [
        (caches(heads=5), "layers.0"),
        (caches(width=8), "layers.0"),
        (caches(layers=1), r"layers\.1: is missing"),
        (caches(layers=3), r"layers\.2: the model has no such layer"),
    ],
)
def test_a_refused_file_changes_nothing(
    saved: dict[str, PagedCache], what: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.kvcache"
    snapshot.save(saved, path, tokens=np.arange(4))
    session = session_of(standard())
    session.run(["logits"], {"input_ids": IDS})
    before = content(session)
    with pytest.raises(ValueError, match=what):
        session.load_state(path)
    with pytest.raises(FileNotFoundError):
        session.load_state(tmp_path / "nothing.kvcache")
    assert content(session) == before


def test_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.kvcache"
    session = session_of(standard())
    session.run(["logits"], {"input_ids": IDS})
    session.save_state(path)
    session.truncate(5)
    before = content(session)
    data = bytearray(path.read_bytes())
    for place in range(0, len(data), 257):
        data[place] ^= 4
        path.write_bytes(data)
        with pytest.raises(ValueError):  # noqa: PT011  which part is damaged differs
            session.load_state(path)
        assert content(session) == before
        data[place] ^= 4


def test_a_masked_state_is_not_saved(tmp_path: Path) -> None:
    session = session_of(optimum())
    mask = np.ones((1, 11), np.int64)
    mask[0, 0] = 0
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    feed = {"input_ids": IDS, "attention_mask": mask, "position_ids": positions}
    session.run(["logits"], feed)
    with pytest.raises(ValueError, match="attention_mask had zeros"):
        session.save_state(tmp_path / "s.kvcache")
    assert list(tmp_path.iterdir()) == []
