"""The reader of GGUF headers against the gguf package; refusals of damaged and other files."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from gguf_samples import SMALL, add_config, finish, random_weights, write_model

from onnx_light.models import ModelError, cached_model, convert_gguf, from_gguf, gguf_identity
from onnx_light.models.gguf_file import GgufFile
from onnx_light.models.gguf_identity import gguf_digests, weights_digest
from onnx_light.models.llama_config import DECODED_TYPES, read_config
from onnx_light.models.weights import decode

TINY = SMALL | {"layers": 1, "hidden": 32, "feed_forward": 32, "heads": 2, "kv_heads": 1}
TINY |= {"vocabulary": 4, "width": 16}


def write_tiny(path: Path, **changes: Any) -> Path:
    """A file of some kilobytes without a tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    add_config(writer, TINY | changes)
    writer.add_array("general.tags", ["one", "two"])
    writer.add_array("general.numbers", [1, -2, 3])
    for name, array in random_weights(TINY).items():
        writer.add_tensor(name, array)
    finish(writer)
    return path


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        from_gguf(path)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    return caught.value


def test_equals_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {"uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1}
    numbers |= {"int32": -(2**31), "uint64": 2**64 - 1, "int64": -(2**63)}
    for kind, value in numbers.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_float32("x.float32", 0.1)
    writer.add_float64("x.float64", 0.1)
    writer.add_bool("x.bool", True)
    writer.add_string("x.string", "naïve 漢字\n")
    writer.add_array("x.strings", ["", "a", "漢" * 300])
    writer.add_array("x.floats", [0.5, -1.25])
    writer.add_custom_alignment(64)
    for name, array in random_weights(TINY).items():
        writer.add_tensor(name, array)
    finish(writer)
    reader = gguf.GGUFReader(path)
    with GgufFile(path) as file:
        expected = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        assert dict(file.metadata) == expected
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            mine = file.tensors[tensor.name]
            assert mine.dims == tuple(int(dim) for dim in tensor.shape)
            assert (mine.offset, mine.nbytes) == (tensor.data_offset, tensor.n_bytes)
            assert mine.type_name == tensor.tensor_type.name
            assert bytes(file.payload(mine)) == tensor.data.tobytes()


def test_equals_the_gguf_package_on_a_real_file(smollm: Path) -> None:
    reader = gguf.GGUFReader(smollm)
    with GgufFile(smollm) as file:
        assert set(file.metadata) == {key for key in reader.fields if not key.startswith("GGUF.")}
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "llama.rope.freq_base"):
            assert file.metadata[key] == reader.fields[key].contents()
        assert {t.name: t.data_offset for t in reader.tensors} == {
            name: tensor.offset for name, tensor in file.tensors.items()
        }


@pytest.mark.parametrize("kind", sorted(DECODED_TYPES))
def test_every_listed_type_decodes(tmp_path: Path, kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[number]
    raw = np.random.default_rng(1).integers(0, 60, (3, 512 // block * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=number)
    finish(writer)
    with GgufFile(tmp_path / "t.gguf") as file:
        values = decode(file, file.tensors["t"])
    assert values.shape == (3, 512)
    assert values.dtype == np.float32
    doubles = kind == "F64"
    expected = raw.view(np.float64).astype(np.float32) if doubles else dequantize(raw, number)
    assert np.array_equal(values, expected, equal_nan=True)


def test_q4_1_by_hand(tmp_path: Path) -> None:
    """A block of 32: scale and minimum in half precision, low nibbles first."""
    codes = np.arange(32) % 16
    raw = np.frombuffer(
        struct.pack("<ee", 0.5, -3.0) + bytes(codes[i] | codes[i + 16] << 4 for i in range(16)),
        np.uint8,
    )[None]
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    finish(writer)
    with GgufFile(tmp_path / "t.gguf") as file:
        assert decode(file, file.tensors["t"]).tolist() == [(codes * 0.5 - 3).tolist()]


def test_cut_at_every_length(tmp_path: Path) -> None:
    data = write_tiny(tmp_path / "whole.gguf").read_bytes()
    with GgufFile(tmp_path / "whole.gguf") as file:
        header = min(tensor.offset for tensor in file.tensors.values())
        end = max(tensor.offset + tensor.nbytes for tensor in file.tensors.values())
    path = tmp_path / "cut.gguf"
    for length in [*range(header), *range(header, end, 97), end - 1]:
        path.write_bytes(data[:length])
        assert refusal(path).code == "models.cut", length
    path.write_bytes(data[:end])
    with GgufFile(path) as file:
        read_config(file)


def test_damaged_headers_are_refused_or_read(tmp_path: Path) -> None:
    data = write_tiny(tmp_path / "whole.gguf").read_bytes()
    with GgufFile(tmp_path / "whole.gguf") as file:
        header = min(tensor.offset for tensor in file.tensors.values())
    random, refused = np.random.default_rng(2), []
    path = tmp_path / "damaged.gguf"
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(random.integers(1, 4)):
            damaged[random.integers(header)] = random.integers(256)
        path.write_bytes(damaged)
        try:
            with GgufFile(path) as file:
                read_config(file)
        except ModelError as error:
            refused.append(error.message)
    assert len(refused) > 1000
    assert min(map(len, refused)) > 10


def test_huge_numbers_are_refused_at_once(tmp_path: Path) -> None:
    data = write_tiny(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "huge.gguf"
    for offset in (8, 16, 24):  # tensors, metadata values, the first key's length
        for number in (2**64 - 1, 2**62, 2**40):
            damaged = bytearray(data)
            struct.pack_into("<Q", damaged, offset, number)
            path.write_bytes(damaged)
            assert refusal(path).code == "models.cut"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "models.cut"),
        (b"GG", "models.cut"),
        (b"PK\3\4" + b"x" * 100, "models.not_gguf"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "models.version"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "models.version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "models.architecture"),
    ],
)
def test_other_files(tmp_path: Path, data: bytes, code: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(data)
    assert refusal(path).code == code


def test_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        from_gguf(tmp_path / "none.gguf")


def test_other_architecture_is_named(tmp_path: Path) -> None:
    error = refusal(write_model(tmp_path / "m.gguf", architecture="gemma3"))
    assert error.code == "models.architecture"
    assert "'gemma3'" in error.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "yarn"),
        ("llama.rope.scaling.type", "linear"),
        ("llama.rope.scaling.factor", 4.0),
        ("llama.expert_count", 8),
        ("llama.attention.sliding_window", 4096),
        ("llama.logit_scale", 0.5),
        ("split.count", 3),
    ],
)
def test_unsupported_keys_are_named(tmp_path: Path, key: str, value: Any) -> None:
    error = refusal(write_model(tmp_path / "m.gguf", extra={key: value}))
    assert key.partition(".")[2] in error.message or "parts" in error.message


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_q.weight", "output_norm.weight"])
def test_missing_tensors_are_named(tmp_path: Path, name: str) -> None:
    weights = random_weights(SMALL)
    weights["blk.9.spare.weight"] = weights.pop(name)
    error = refusal(write_model(tmp_path / "m.gguf", weights=weights))
    assert error.code == "models.missing"
    assert name in error.message


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.2.attn_q.weight", "blk.0.ffn_gate_inp"])
def test_unknown_tensors_are_named(tmp_path: Path, name: str) -> None:
    weights = random_weights(SMALL) | {name: np.zeros(64, np.float32)}
    error = refusal(write_model(tmp_path / "m.gguf", weights=weights))
    assert error.code == "models.unsupported"
    assert name in error.message


@pytest.mark.parametrize(
    "name", ["blk.1.attn_k.weight", "blk.0.ffn_down.weight", "output.weight", "output_norm.weight"]
)
def test_inconsistent_dims_are_named(tmp_path: Path, name: str) -> None:
    weights = random_weights(SMALL)
    weights[name] = weights[name][:-8].copy()
    error = refusal(write_model(tmp_path / "m.gguf", weights=weights))
    assert error.code == "models.shape"
    assert name in error.message


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 5},
        {"kv_heads": 4},
        {"layers": 3},
        {"layers": 2**31 - 1},
        {"context": 2**31 - 1},
        {"width": 7},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"rope_base": float("inf")},
    ],
)
def test_numbers_that_do_not_go_together(tmp_path: Path, changes: dict[str, Any]) -> None:
    weights = random_weights(SMALL)
    refusal(write_model(tmp_path / "m.gguf", changes, weights))


def test_unsupported_type_is_named(tmp_path: Path) -> None:
    weights = random_weights(SMALL | {"hidden": 32, "heads": 4})
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_config(writer, SMALL | {"hidden": 32, "heads": 4})
    for name, array in weights.items():
        if name == "blk.1.ffn_up.weight":
            array = array.astype(np.int8)
        writer.add_tensor(name, array)
    finish(writer)
    error = refusal(path)
    assert error.code == "models.tensor_type"
    assert "blk.1.ffn_up.weight" in error.message
    assert "I8" in error.message


@pytest.mark.parametrize("number", [4, 31, 200, 2**32 - 1])
def test_unknown_type_numbers_are_named(tmp_path: Path, number: int) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    name = b"blk.0.ffn_up.weight"
    place = data.index(name) + len(name) + 4 + 2 * 8  # behind the rank and two dims
    assert struct.unpack_from("<I", data, place) == (0,)  # F32
    struct.pack_into("<I", data, place, number)
    path.write_bytes(data)
    error = refusal(path)
    assert error.code == "models.tensor_type"
    assert name.decode() in error.message
    assert str(number) in error.message


def test_weights_digest_follows_its_definition(tmp_path: Path, smollm: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types={"attn_q": "Q8_0", "token": "F16"})
    for source in (path, smollm):
        lines = []
        for tensor in gguf.GGUFReader(source).tensors:
            dims = ",".join(str(int(dim)) for dim in tensor.shape)
            content = hashlib.sha256(tensor.data.tobytes()).hexdigest()
            lines.append(f"{tensor.name}\t{tensor.tensor_type.name}\t{dims}\t{content}\n")
        expected = "sha256:" + hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
        with GgufFile(source) as file:
            assert weights_digest(file) == expected
        assert gguf_identity(source)["weights"] == expected


def test_tokenizer_digest_depends_on_the_tokenizer_alone(tmp_path: Path) -> None:
    paths = [
        write_model(tmp_path / "a.gguf"),
        write_model(tmp_path / "b.gguf", weights=random_weights(SMALL, seed=1)),
        write_model(tmp_path / "c.gguf", extra={"tokenizer.ggml.add_bos_token": True}),
        write_model(tmp_path / "d.gguf", extra={"tokenizer.chat_template": "x"}),
    ]
    a, b, c, d = (gguf_identity(path)["tokenizer"] for path in paths)
    assert a == b == d != c
    weights = [gguf_identity(path)["weights"] for path in paths]
    assert weights[0] == weights[2] == weights[3] != weights[1]


def test_kept_digests_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    digests = []
    for seed in (0, 1):
        write_model(path, weights=random_weights(SMALL, seed=seed))
        os.utime(path, ns=(10**18 + seed, 10**18 + seed))
        with GgufFile(path) as file:
            digests += [gguf_digests(file), gguf_digests(file)]
    assert digests[0] == digests[1]
    assert digests[2] == digests[3]
    assert digests[0] != digests[2]


def test_conversion_leaves_nothing_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    path = write_model(tmp_path / "m.gguf")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(convert_gguf, "rope_tables", fail)
        with pytest.raises(KeyboardInterrupt):
            from_gguf(path)
    left = [entry for entry in (tmp_path / "cache" / "models").iterdir() if entry.is_dir()]
    assert left == []
    assert cached_model(path).exists()
    shutil.rmtree(tmp_path / "cache")


def test_a_model_without_a_tokenizer_converts(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    assert len(from_gguf(path).graph.node) > 20
