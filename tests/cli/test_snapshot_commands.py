"""``onnx-light verify`` and ``onnx-light inspect`` on snapshot files."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from onnx_light import ModelIdentity, PagedCache, onnx, snapshot
from onnx_light.cli.app import app

TOKENS = 45
SHAPE = (1, 2, TOKENS, 8)
MAIN = "from onnx_light.cli import main; main()"


def invoke(*arguments: str | Path, stdin: bytes | None = None) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin)


def caches() -> dict[str, PagedCache]:
    result = {}
    for index in range(3):
        rows = np.random.default_rng(index).standard_normal((2, *SHAPE)).astype(np.float16)
        result[f"layers.{index}"] = PagedCache.from_arrays(*rows, page_size=16)
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.kvcache"
    identity = ModelIdentity(architecture="llama", weights="sha256:aa", context=96)
    snapshot.save(
        caches(), path, tokens=np.arange(7, 52), identity=identity, metadata={"who": "m\x1be"}
    )
    return path


def flip(path: Path, *places: int) -> None:
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 1
    path.write_bytes(data)


def place_of(path: Path, name: str, page: int) -> int:
    """Where the keys of a page lie in the file."""
    keys = caches()[name].pages[page].key.array
    place = path.read_bytes().find(keys[0, 0].tobytes())
    assert place > 0
    return place


def test_a_whole_file(path: Path) -> None:
    result = invoke("verify", path)
    assert result.exit_code == 0
    assert result.stdout == f"{path}: 45 tokens, 1 record, {size_of(path)} checked: no problem\n"
    report = json.loads(invoke("verify", path, "--json").stdout)
    assert report == {
        "file": str(path),
        "ok": True,
        "length": 45,
        "records": 1,
        "problems": [],
        "bytes_checked": path.stat().st_size,
    }
    assert json.loads(invoke("verify", "-", "--json", stdin=path.read_bytes()).stdout)["ok"]
    assert CliRunner().invoke(app, ["-q", "verify", str(path)]).stdout == ""


def size_of(path: Path) -> str:
    return f"{path.stat().st_size / 1000:.1f} kB"


def test_all_damage_is_shown(path: Path) -> None:
    places = [place_of(path, "layers.0", 1), place_of(path, "layers.2", 2)]
    flip(path, *places)
    result = invoke("verify", path)
    assert result.exit_code == 1
    head, *rows, summary = result.stdout.splitlines()
    assert head.split() == ["code", "layer", "page", "offset", "problem"]
    cells = [row.split()[:4] for row in rows if "snapshot.corrupt" in row]
    assert [row[:3] for row in cells] == [
        ["snapshot.corrupt", "layers.0", "1"],
        ["snapshot.corrupt", "layers.2", "2"],
    ]
    for row, place in zip(cells, places, strict=True):
        assert int(row[3]) <= place < int(row[3]) + 2000
    assert summary.endswith("2 problems")
    result = invoke("verify", path, "--json")
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert [(item["layer"], item["page"]) for item in problems] == [
        ("layers.0", 1),
        ("layers.2", 2),
    ]
    assert set(problems[0]) == {"code", "message", "layer", "page", "offset", "path"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "bytes"),
        (lambda data: data[:-20] + b"?" + data[-19:], "no foot, or a damaged one"),
        (lambda data: data[:-64] + bytes(64), "no foot, or a damaged one"),
    ],
)
def test_a_record_that_is_not_whole(
    path: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    whole = path.read_bytes()
    path.write_bytes(change(whole))
    (problem,) = json.loads(invoke("verify", path, "--json").stdout)["problems"]
    assert problem["message"].endswith(words)
    assert (str(len(whole)) in problem["message"]) == (words == "bytes")


def test_a_torn_file_is_damaged(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data + data[:200])
    result = invoke("verify", path)
    assert result.exit_code == 1
    assert "snapshot.torn" in result.stdout


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGUF" + bytes(60), "GGUF"),
        (b"\x93NUMPY" + bytes(60), "numpy"),
        (b"PK\x03\x04" + bytes(60), "zip"),
        (b"words and words\n" * 9, "text"),
        (onnx.ModelProto(ir_version=10, graph={"name": "g"}).SerializeToString(), "ONNX"),
    ],
)
def test_what_is_no_snapshot_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    result = invoke("verify", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    for text in (str(path), "no snapshot", words, "[snapshot.kind]"):
        assert text in result.stderr


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for missing in (tmp_path / "none", tmp_path):
        result = invoke("verify", missing)
        assert (result.exit_code, result.stdout) == (2, "")
        assert str(missing) in result.stderr


def on_a_terminal(*arguments: str | Path) -> bytes:
    """Standard error of a command whose standard error is a terminal."""
    reader, writer = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=writer,
        env=os.environ | {"TERM": "xterm"},
        check=True,
        timeout=120,
    )
    os.close(writer)
    printed = b""
    try:
        while piece := os.read(reader, 65536):
            printed += piece
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(reader)
    return printed


def test_a_bar_on_a_terminal_only(tmp_path: Path) -> None:
    rows = np.zeros((1, 1, 4096, 1024), np.float32)  # more than one step
    path = tmp_path / "big.kvcache"
    snapshot.save([PagedCache.from_arrays(rows, rows)], path, sync=False)
    assert b"verifying" in on_a_terminal("verify", path)
    assert on_a_terminal("-q", "verify", path) == b""
    result = subprocess.run(
        [sys.executable, "-c", MAIN, "verify", path], capture_output=True, check=True, timeout=120
    )
    assert result.stderr == b""


def test_inspect_shows_model_tokens_and_layers(path: Path) -> None:
    result = invoke("inspect", path)
    assert result.exit_code == 0
    for text in (
        f"{path} snapshot positions [0, 45)  {size_of(path)}",
        "architecture llama",
        "weights sha256:aa",
        "context 96",
        "who m\\x1be",
        "tokens [45]: 7, 8, 9, 10, 11, 12, 13, 14, …",
        "layers.1 [0, 45) batch 1, heads 2, width 8  2.88 kB",
        "[0, 32) 2 pages of 16: float16  2.05 kB",
        "[32, 45) 1 page of 13: float16  832 B",
        "8.64 kB of keys and values",
    ):
        assert text in result.stdout, text
    assert "\x1b" not in result.stdout
    assert "… 1 more" in invoke("inspect", path, "--limit", "2").stdout


def test_inspect_tells_runs_of_formats_apart(tmp_path: Path) -> None:
    rows = np.zeros((1, 1, 8, 4), np.float32)
    cache = PagedCache.from_arrays(rows, rows.astype(ml_dtypes.bfloat16), page_size=4)
    path = tmp_path / "a.kvcache"
    snapshot.save([cache], path)
    data = json.loads(invoke("inspect", path, "--json").stdout)
    assert data["tokens"] is None
    assert data["identity"] == data["metadata"] == {}
    assert data["payload_bytes"] == 8 * 4 * (4 + 2)
    (layer,) = data["layers"]
    assert (layer["key_width"], layer["start"], layer["end"]) == (4, 0, 8)
    assert layer["runs"] == [
        {
            "start": 0,
            "end": 8,
            "pages": 2,
            "capacity": 4,
            "key": "float32",
            "value": "bfloat16",
            "nbytes": 8 * 4 * (4 + 2),
        }
    ]
    assert "2 pages of 4: key float32, value bfloat16" in invoke("inspect", path).stdout


def test_inspect_reads_a_snapshot_from_standard_input(path: Path) -> None:
    from_file = json.loads(invoke("inspect", path, "--json").stdout)
    piped = json.loads(invoke("inspect", "-", "--json", stdin=path.read_bytes()).stdout)
    assert piped == from_file | {"file": "-"}


def test_inspect_shows_what_is_left_of_a_damaged_file(path: Path) -> None:
    flip(path, place_of(path, "layers.1", 0))
    result = invoke("inspect", path)
    assert result.exit_code == 1
    assert "layers.0 [0, 45)" in result.stdout
    assert "[snapshot.corrupt]" in result.stdout
    assert "onnx-light verify" in result.stdout
    data = json.loads(invoke("inspect", path, "--json").stdout)
    assert [bool(layer["problem"]) for layer in data["layers"]] == [False, True, False]
    assert data["damaged"] is True


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data[: len(data) // 2], "snapshot."),
        (lambda data: data + data[:200], "snapshot.torn"),
        (lambda data: data[:20] + b"?" + data[21:], "snapshot.corrupt"),
    ],
)
def test_inspect_of_a_snapshot_that_cannot_be_opened(
    path: Path, change: Callable[[bytes], bytes], code: str
) -> None:
    path.write_bytes(change(path.read_bytes()))
    result = invoke("inspect", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"[{code}" in result.stderr
    assert str(path) in result.stderr


def test_inspect_shows_a_snapshot_as_the_message_that_it_is(path: Path) -> None:
    result = invoke("inspect", path, "--message", "ModelProto")
    assert result.exit_code == 0
    assert "paged_cache_initializer 3 x PagedCacheProto" in result.stdout


def test_quantize_says_what_is_true(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.kvcache"
    policy = "key=int8/channel value=uint4/token:8"
    result = invoke("quantize", path, target, "--policy", policy, "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["policy"] == policy
    assert said["nbytes"] == [path.stat().st_size, target.stat().st_size]
    with snapshot.open(path) as old, snapshot.open(target, verify="full") as new:
        assert (new.identity, new.metadata) == (old.identity, old.metadata)
        assert new.tokens is not None
        assert np.array_equal(new.tokens, np.arange(7, 52))
        for side in ("key", "value"):
            before, after = (
                np.stack([getattr(file[i], f"{side}_array")("float32") for i in range(3)])
                for file in (old, new)
            )
            error = np.linalg.norm(np.float64(after) - before) / np.linalg.norm(np.float64(before))
            assert said[f"{side}_rms_error"] == pytest.approx(error, rel=1e-6)
            assert 0.001 < error < 0.2
        values = sum(old[i].key_array().size + old[i].value_array().size for i in range(3))
        assert said["bits_per_value"] == [
            pytest.approx(file.stat().st_size * 8 / values) for file in (path, target)
        ]
    shown = invoke("quantize", path, target, "--policy", "int8")
    assert "x smaller" in shown.stdout
    assert "key=int8/channel value=int8/token: relative RMS error of keys" in shown.stdout


@pytest.mark.parametrize("policy", ["int9", "", "q8_0"])  # the width is no multiple of 32
def test_quantize_refuses_policies_before_it_writes(policy: str, path: Path) -> None:
    before = path.read_bytes()
    result = invoke("quantize", path, path, "--policy", policy)
    assert result.exit_code == 2
    assert "[quant." in result.stderr
    assert (f"{path}: layers.0.key: width 8" in result.stderr) == (policy == "q8_0")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "option", ["val=int8", "key=int8 key=int4", "recent_tokens=x", "int8 int4"]
)
def test_an_option_of_a_policy_is_named(option: str, path: Path) -> None:
    result = invoke("quantize", path, path, "--policy", option)
    assert result.exit_code == 2
    assert f"{option!r}: {option.split('=')[0].split()[0]}: " in result.stderr


def test_quantize_reads_standard_input(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.kvcache"
    result = invoke("quantize", "-", target, "-p", "int8", stdin=path.read_bytes())
    assert (result.exit_code, result.stderr) == (0, "")
    with snapshot.open(target) as opened:
        assert opened[0] == caches()["layers.0"].quantize("int8")
    result = invoke("quantize", "-", target, "-p", "int8", stdin=b"words and words\n" * 9)
    assert result.exit_code == 2
    assert result.stderr.startswith("onnx-light: -: byte 0: no snapshot")


def test_quantize_writes_to_a_file_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    for target, words in (("-", "DST: "), ("/dev/null", "/dev/null: ")):
        result = invoke("quantize", path.name, target, "-p", "int8")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"onnx-light: {words}")
    assert list(path.parent.iterdir()) == [path]


def test_a_file_takes_its_own_place(path: Path) -> None:
    assert invoke("quantize", path, path, "-p", "int8").exit_code == 0
    with snapshot.open(path, verify="full") as opened:
        assert opened[0] == caches()["layers.0"].quantize("int8")
