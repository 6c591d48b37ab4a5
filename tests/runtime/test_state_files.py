"""States in snapshot files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from decoder_models import FORMS, KV_HEADS, LAYERS, WIDTH, optimum, random_ids, standard, whole_run

from onnx_light import ModelIdentity, PagedCache, snapshot
from onnx_light.onnx import ModelProto
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
    # A model that says nothing has its weights all the same.
    with pytest.raises(ValueError, match="weights"):
        session_of(standard()).load_state(path)


def test_an_identity_that_cannot_be_read(tmp_path: Path) -> None:
    for key, text in (("context", "many"), ("adapters", "{")):
        session = session_of(standard(metadata={"onnx_light.identity." + key: text}))
        with pytest.raises(ValueError, match=key):
            session.save_state(tmp_path / "s.kvcache")
    assert list(tmp_path.iterdir()) == []


def in_every_form(
    model: onnx.ModelProto, folder: Path
) -> dict[str, Callable[[], InferenceSession]]:
    """Sessions of one model: from a path, with data elsewhere, from bytes and from messages."""
    inside, outside = folder / "inside.onnx", folder / "outside.onnx"
    onnx.save(model, str(inside))
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save(copy, str(outside), save_as_external_data=True, location="w", size_threshold=1024)
    ours = ModelProto.FromString(model.SerializeToString())
    there = onnxruntime.SessionOptions()
    there.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folder)
    )
    return {
        "path": lambda: InferenceSession(inside),
        "data elsewhere": lambda: InferenceSession(str(outside)),
        "bytes": lambda: InferenceSession(model.SerializeToString()),
        "message of onnx": lambda: InferenceSession(model),
        "message": lambda: InferenceSession(ours),
        "bytes, data elsewhere": lambda: InferenceSession(outside.read_bytes(), there),
    }


@pytest.mark.parametrize("form", FORMS)
def test_models_without_metadata_are_told_apart_by_their_weights(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    model, changed = FORMS[form]("float32"), FORMS[form]("float32")
    weights = next(w for w in changed.graph.initializer if w.data_type == onnx.TensorProto.FLOAT)
    array = onnx.numpy_helper.to_array(weights).copy()
    array.flat[0] += 1
    weights.CopyFrom(onnx.numpy_helper.from_array(array, weights.name))
    lines = [
        f"{tensor.name}\t{onnx.TensorProto.DataType.Name(tensor.data_type)}\t"
        f"{','.join(map(str, tensor.dims))}\t"
        f"{hashlib.sha256(onnx.numpy_helper.to_array(tensor).tobytes()).hexdigest()}\n"
        for tensor in model.graph.initializer
    ]
    expected = "sha256:" + hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
    other = session_of(changed)
    for name, make in in_every_form(model, tmp_path).items():
        path = tmp_path / f"{name}.kvcache"
        session = make()
        session.run(["logits"], {"input_ids": IDS})
        session.save_state(path)
        with snapshot.open(path) as file:
            assert file.identity == ModelIdentity(weights=expected), name
        make().load_state(path)
        session.fork().load_state(path)
        with pytest.raises(ValueError, match="another model"):
            other.load_state(path)
        other.load_state(path, expect=None)


def test_weights_are_read_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("onnx_light.runtime.model.weights_digest", fail)
    session = session_of(standard())
    session.run(["logits"], {"input_ids": IDS})
    session.save_state(tmp_path / "s.kvcache", identity=ModelIdentity(salt="s"))
    session.load_state(tmp_path / "s.kvcache", expect=None)
    with pytest.raises(AssertionError, match="were read"):
        session.save_state(tmp_path / "s.kvcache")
    said = session_of(standard(metadata=IDENTITY))
    said.run(["logits"], {"input_ids": IDS})
    said.save_state(tmp_path / "s.kvcache")


def test_a_message_that_is_changed_later_does_not_count(tmp_path: Path) -> None:
    message = ModelProto.FromString(standard().SerializeToString())
    session = InferenceSession(message)
    session.run(["logits"], {"input_ids": IDS})
    session.save_state(tmp_path / "before.kvcache")
    late = InferenceSession(message)
    late.run(["logits"], {"input_ids": IDS})
    message.graph.initializer[0].name = "renamed"
    late.save_state(tmp_path / "after.kvcache")
    before, after = (snapshot.open(tmp_path / f"{n}.kvcache") for n in ("before", "after"))
    assert before.identity == after.identity


def test_a_file_that_is_another_one_now(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(standard(), str(path))
    session = InferenceSession(path)
    session.run(["logits"], {"input_ids": IDS})
    onnx.save(standard(metadata={"other": "model"}), str(path))
    with pytest.raises(ValueError, match="another one than"):
        session.save_state(tmp_path / "s.kvcache")
    session.save_state(tmp_path / "s.kvcache", identity=None)
    with snapshot.open(tmp_path / "s.kvcache") as file:
        assert file.identity == ModelIdentity()


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
    saved = content(session)
    session.truncate(5)
    before = content(session)
    data = bytearray(path.read_bytes())
    refused = 0
    for place in range(0, len(data), 257):
        data[place] ^= 4
        path.write_bytes(data)
        assert not snapshot.verify(path).ok
        try:
            session.load_state(path)
        except ValueError:
            assert content(session) == before
            refused += 1
        else:  # the byte carries nothing of the state
            assert content(session) == saved
            session.truncate(5)
        with pytest.raises(ValueError, match=str(path)):
            session.load_state(path, verify="full")
        assert content(session) == before
        data[place] ^= 4
    assert refused > 0.9 * len(data) / 257


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
