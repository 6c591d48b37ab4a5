"""ModelIdentity of files: digests recomputed with other packages, and when they are kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
from gguf_samples import SMALL, random_weights, write_model
from onnx import TensorProto, helper, numpy_helper

from onnx_light import ModelIdentity, weights_digest
from onnx_light.errors import CodedError
from onnx_light.models import cached_model, gguf_identity

OLD = 10**18


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder."""
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def over(lines: dict[str, tuple[str, str, bytes]]) -> str:
    """The digest of design.md: name -> type, dims, bytes."""
    texts = [
        f"{n}\t{kind}\t{dims}\t{sha(data)}\n" for n, (kind, dims, data) in sorted(lines.items())
    ]
    return "sha256:" + sha("".join(texts).encode())


# GGUF


def expected_of_gguf(path: Path) -> ModelIdentity:
    reader = gguf.GGUFReader(path)
    weights = {
        tensor.name: (
            tensor.tensor_type.name,
            ",".join(str(int(dim)) for dim in tensor.shape),
            tensor.data.tobytes(),
        )
        for tensor in reader.tensors
    }
    lines = []
    for key, entry in sorted(reader.fields.items()):
        if key.startswith("tokenizer.ggml."):
            kind = " of ".join(part.name.lower() for part in entry.types)
            # Behind the key's length, the key and the type.
            value = b"".join(part.tobytes() for part in entry.parts[3:])
            lines.append(f"{key}\t{kind}\t{sha(value)}\n")

    def number(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    return ModelIdentity(
        architecture="llama",
        weights=over(weights),
        tokenizer="sha256:" + sha("".join(lines).encode()),
        rope=f"base={number('rope.freq_base'):g} width={number('rope.dimension_count')}",
        key_layout="half",
        context=number("context_length"),
    )


def test_from_gguf(folder: Path, tmp_path: Path) -> None:
    types = {"attn_q": "Q8_0", "token": "F16"}
    path = write_model(tmp_path / "m.gguf", types=types)
    assert ModelIdentity.from_gguf(path) == expected_of_gguf(path)


def test_from_a_real_gguf(smollm: Path) -> None:
    identity = ModelIdentity.from_gguf(smollm)
    assert identity == expected_of_gguf(smollm)
    assert identity.rope == "base=100000 width=64"
    assert ModelIdentity.from_onnx(cached_model(smollm)) == identity


def test_rope_factors_count(folder: Path, tmp_path: Path) -> None:
    weights = random_weights(SMALL, factors=True)
    path = write_model(tmp_path / "m.gguf", weights=weights)
    factors = sha(weights["rope_freqs.weight"].tobytes())
    assert ModelIdentity.from_gguf(path).rope == f"base=700 width=8 factors=sha256:{factors}"


def test_hashing_a_gguf_shows_progress_once(folder: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    os.utime(path, ns=(OLD, OLD))
    total = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
    for is_first in (True, False):
        seen: list[tuple[int, int]] = []
        gguf_identity(path, progress=lambda done, all_, seen=seen: seen.append((done, all_)))
        assert seen == sorted(seen)
        assert seen[-1:] == ([(total, total)] if is_first else [])


def test_a_damaged_entry_of_a_gguf_is_made_again(folder: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    os.utime(path, ns=(OLD, OLD))
    expected = expected_of_gguf(path)
    for text in (None, "", "[]", '{"weights": "x"}', "\0\xff"):
        if text is not None:
            (entry,) = (folder / "digests").iterdir()
            entry.write_text(text)
        assert ModelIdentity.from_gguf(path) == expected


# ONNX


def onnx_model(seed: int = 0) -> onnx.ModelProto:
    """A model with tensors in every place and form."""
    random = np.random.default_rng(seed)
    raw = numpy_helper.from_array(random.standard_normal((40, 8)).astype(np.float32), "w")
    typed = helper.make_tensor("typed", TensorProto.INT32, [3], [1, -2, 3])
    half = helper.make_tensor("half", TensorProto.FLOAT16, [2], [0.5, -1.5])
    four = helper.make_tensor("four", TensorProto.INT4, [3], [1, -2, 7])
    text = helper.make_tensor("text", TensorProto.STRING, [2], [b"ab", "é".encode()])
    inner = helper.make_graph(
        [], "inner", [], [], [helper.make_tensor("w", TensorProto.FLOAT, [1], [4.0])]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(2.5))),
        helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner),
    ]
    graph = helper.make_graph(nodes, "g", [], [], [raw, typed, half, four, text])
    return helper.make_model(graph, ir_version=10)


def expected_of_onnx(model: onnx.ModelProto) -> str:
    weights = model.graph.initializer[0]
    lines = {
        "w": ("FLOAT", "40,8", numpy_helper.to_array(weights).tobytes()),
        "typed": ("INT32", "3", np.array([1, -2, 3], "<i4").tobytes()),
        "half": ("FLOAT16", "2", np.array([0.5, -1.5], "<f2").tobytes()),
        "four": ("INT4", "3", bytes([0xE1, 0x07])),  # two's complement, the first one low
        "text": ("STRING", "2", b"\2" + bytes(7) + b"ab" + b"\2" + bytes(7) + "é".encode()),
        "graph.node[0].attribute[0].t": ("FLOAT", "", np.float32(2.5).tobytes()),
    }
    for branch in (0, 1):
        name = f"graph.node[1].attribute[{branch}].g.initializer[0]"
        lines[name] = ("FLOAT", "1", np.float32(4).tobytes())
    return over(lines)


def save(model: onnx.ModelProto, path: Path, time: int = OLD) -> None:
    """Into the file, its largest tensor into another one."""
    path.with_name("weights.bin").unlink(missing_ok=True)  # onnx would append
    onnx.save(
        onnx.ModelProto.FromString(model.SerializeToString()),
        str(path),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=1000,
    )
    for file in (path, path.with_name("weights.bin")):
        os.utime(file, ns=(time, time))


def test_from_onnx_inside_and_outside(folder: Path, tmp_path: Path) -> None:
    model, path = onnx_model(), tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    expected = ModelIdentity(weights=expected_of_onnx(model))
    assert ModelIdentity.from_onnx(path) == expected
    path.unlink()
    save(model, path)
    assert (tmp_path / "weights.bin").stat().st_size == 40 * 8 * 4
    assert ModelIdentity.from_onnx(path) == expected
    assert ModelIdentity.from_onnx(os.path.relpath(path)) == expected


class Counted:
    """How often weights were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        honest = weights_digest.weights_digest

        def compute(*arguments: Any) -> str:
            self.calls += 1
            return honest(*arguments)

        monkeypatch.setattr(weights_digest, "weights_digest", compute)


def test_digests_with_data_in_other_files_are_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, path = Counted(monkeypatch), tmp_path / "m.onnx"
    model = onnx_model()
    save(model, path)
    expected = ModelIdentity(weights=expected_of_onnx(model))
    assert [ModelIdentity.from_onnx(path) for _ in range(3)] == [expected] * 3
    assert counted.calls == 1
    (entry,) = (folder / "digests").iterdir()
    entry.write_text('{"weights": 3}')
    assert ModelIdentity.from_onnx(path) == expected
    assert counted.calls == 2


def test_other_data_beside_the_same_message_is_another_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, path = Counted(monkeypatch), tmp_path / "m.onnx"
    save(onnx_model(0), path)
    message = path.read_bytes()
    first = ModelIdentity.from_onnx(path)
    save(onnx_model(1), path)
    path.write_bytes(message)
    os.utime(path, ns=(OLD, OLD))
    os.utime(tmp_path / "weights.bin", ns=(OLD, OLD + 1))
    second = ModelIdentity.from_onnx(path)
    assert second == ModelIdentity(weights=expected_of_onnx(onnx_model(1)))
    assert second != first
    assert counted.calls == 2


def test_a_model_cache_made_of_links(folder: Path, tmp_path: Path) -> None:
    blobs, snapshots = tmp_path / "blobs", tmp_path / "snapshots"
    blobs.mkdir()
    snapshots.mkdir()
    save(onnx_model(), blobs / "m.onnx")
    (snapshots / "m.onnx").symlink_to(blobs / "m.onnx")
    (snapshots / "weights.bin").symlink_to(blobs / "weights.bin")
    expected = ModelIdentity(weights=expected_of_onnx(onnx_model()))
    assert ModelIdentity.from_onnx(snapshots / "m.onnx") == expected


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("location", "../weights.bin", "external.path"),
        ("location", "/etc/passwd", "external.path"),
        ("offset", "9999999", "external.range"),
        ("length", "-1", "external.number"),
    ],
)
def test_references_that_are_refused(
    folder: Path, tmp_path: Path, key: str, value: str, code: str
) -> None:
    path = tmp_path / "m.onnx"
    save(onnx_model(), path)
    message = onnx.load(str(path), load_external_data=False)
    entries = message.graph.initializer[0].external_data
    next(entry for entry in entries if entry.key == key).value = value
    path.write_bytes(message.SerializeToString())
    with pytest.raises(CodedError) as error:
        ModelIdentity.from_onnx(path)
    assert error.value.code == code
    assert "graph.initializer[0]" in error.value.path


def test_data_that_is_missing(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(onnx_model(), path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(FileNotFoundError):
        ModelIdentity.from_onnx(path)
    os.mkfifo(tmp_path / "weights.bin")
    with pytest.raises(CodedError, match="not a regular file"):
        ModelIdentity.from_onnx(path)


def test_what_the_metadata_say_holds(folder: Path, tmp_path: Path) -> None:
    model = onnx_model()
    model.metadata_props.add(key="onnx_light.identity.revision", value="r7")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    expected = ModelIdentity(revision="r7", weights=expected_of_onnx(model))
    assert ModelIdentity.from_onnx(path) == expected
    model.metadata_props.add(key="onnx_light.identity.weights", value="sha256:1")
    path.write_bytes(model.SerializeToString())
    assert ModelIdentity.from_onnx(path) == ModelIdentity(revision="r7", weights="sha256:1")
