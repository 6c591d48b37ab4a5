"""The command line: what it prints, where, and with which status."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

import onnx_light
from onnx_light import PagedCache, onnx
from onnx_light.cli.app import app
from onnx_light.cli.output import format_size, format_time, printable

_WIDTHS = (2, 3, 10, 8)  # batch, heads, tokens, width
_MAIN = "from onnx_light.cli import main; main()"


def _command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", _MAIN, *arguments], capture_output=True, timeout=120, **options
    )


def _invoke(*arguments: str, stdin: bytes | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), input=stdin)


@pytest.fixture
def model() -> onnx.ModelProto:
    array = np.arange(np.prod(_WIDTHS), dtype=np.float32).reshape(_WIDTHS)
    cache = PagedCache.from_arrays(array, array, page_size=4)
    model = onnx.ModelProto(ir_version=10, producer_name="test")
    model.graph.name = "g"
    model.graph.paged_cache_initializer.append(cache.to_proto("layers.0"))
    for i in range(20):
        model.graph.node.add(op_type="Relu", input=[f"x{i}"], output=[f"x{i + 1}"])
    return model


@pytest.fixture
def path(model: onnx.ModelProto, tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    model.SerializeToFile(path)
    return path


def test_version() -> None:
    result = _invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"onnx-light {onnx_light.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("inspect",),
        ("-q", "-v", "demo"),
        ("demo", "--messages", "--question", "Why?"),
        ("demo", "--model", "missing.gguf"),
        ("demo", "--document", "missing.txt"),
        ("inspect", "x", "--depth", "-1"),
        ("inspect", "x", "--message", "SomeProto"),
        ("inspect", "x", "--message", "load"),
    ],
)
def test_wrong_usage_is_2_and_says_why_on_standard_error(arguments: tuple[str, ...]) -> None:
    result = _command(*arguments)
    assert result.returncode == 2
    assert result.stderr
    assert b"Traceback" not in result.stderr + result.stdout


def test_inspect_shows_every_level(path: Path) -> None:
    result = _invoke("inspect", str(path))
    assert result.exit_code == 0
    for text in (
        'ModelProto ir_version=10 producer_name="test"',
        'GraphProto "g"',
        'paged_cache_initializer[0] PagedCacheProto "layers.0" 10 tokens',
        "blocks[2] PagedCacheBlockProto [8, 10)",
        "TensorProto FLOAT [2, 3, 4, 8]",
        "NodeProto Relu(x0) -> (x1)",
        "… 12 more",
    ):
        assert text in result.stdout
    assert "\x1b" not in result.stdout


def test_inspect_json_has_the_sizes_of_protobuf(path: Path, model: onnx.ModelProto) -> None:
    result = _invoke("inspect", str(path), "--json", "--limit", "0")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    payload = 2 * int(np.prod(_WIDTHS)) * 4
    assert data["bytes"] == path.stat().st_size == data["message"]["bytes"]
    assert data["payload_bytes"] == payload
    assert data["external_files"] == []
    graph = data["message"]["children"][0]
    assert [child["field"] for child in graph["children"]] == ["node", "paged_cache_initializer"]
    nodes, caches = graph["children"]
    assert nodes["count"] == len(nodes["children"]) == 20
    # op_type "Relu", a name of input and of output, each with tag and length
    assert nodes["children"][0]["bytes"] == (2 + 4) + (2 + 2) + (2 + 2)
    assert [block["detail"] for block in caches["children"][0]["children"][0]["children"]] == [
        "[0, 4)",
        "[4, 8)",
        "[8, 10)",
    ]


def test_inspect_limits_levels_and_lists(path: Path) -> None:
    data = json.loads(_invoke("inspect", str(path), "--json", "-d", "2", "-n", "3").stdout)
    nodes, caches = data["message"]["children"][0]["children"]
    assert (len(nodes["children"]), nodes["hidden"]) == (3, 17)
    assert caches["children"][0]["hidden"] == 1
    assert "children" not in caches["children"][0]


def test_inspect_names_external_data_without_reading_it(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    model.SerializeToFile(path, None, tmp_path / "model.data")
    (tmp_path / "model.data").unlink()
    data = json.loads(_invoke("inspect", str(path), "--json").stdout)
    assert data["payload_bytes"] == 0
    assert data["external_bytes"] == 2 * int(np.prod(_WIDTHS)) * 4
    assert data["external_files"] == ["model.data"]
    assert "in model.data at 0" in _invoke("inspect", str(path)).stdout


def test_inspect_shows_external_data_that_is_refused() -> None:
    tensor = onnx.TensorProto(dims=[1], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret")
    model = onnx.ModelProto()
    model.graph.initializer.append(tensor)
    result = _invoke("inspect", "-", stdin=model.SerializeToString())
    assert result.exit_code == 0
    assert "in ../secret at 0" in result.stdout
    assert "[external.path]" in result.stdout


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_has_colours_unless_told(path: Path, no_color: str) -> None:
    reader, writer = pty.openpty()
    environment = os.environ | {"NO_COLOR": no_color, "TERM": "xterm"}
    code = "from onnx_light.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", code, "inspect", str(path), "-d", "0"],
        stdout=writer,
        env=environment,
        check=True,
        timeout=120,
    )
    os.close(writer)
    printed = os.read(reader, 10_000)
    os.close(reader)
    assert b"ModelProto" in printed
    assert (b"\x1b[" in printed) is (no_color == "")


def test_inspect_reads_standard_input(path: Path) -> None:
    from_file = json.loads(_invoke("inspect", str(path), "--json").stdout)
    result = _command("inspect", "-", "--json", input=path.read_bytes())
    assert result.returncode == 0
    assert json.loads(result.stdout)["message"] == from_file["message"]


def test_inspect_of_another_class(model: onnx.ModelProto) -> None:
    cache = model.graph.paged_cache_initializer[0].SerializeToString()
    result = _invoke("inspect", "-", "-m", "PagedCacheProto", stdin=cache)
    assert result.exit_code == 0
    assert '- PagedCacheProto "layers.0" 10 tokens' in result.stdout


def test_inspect_says_that_a_class_does_not_fit() -> None:
    fields = bytes([0xF2, 0x3F, 1, 0])  # field 1022, one byte
    result = _invoke("inspect", "-", stdin=fields)
    assert result.exit_code == 0
    assert "no field of ModelProto" in result.stdout


def test_a_damaged_file_is_2_with_file_field_and_offset(path: Path) -> None:
    damaged = path.read_bytes()[:-1]
    path.write_bytes(damaged)
    result = _command("inspect", str(path))
    assert (result.returncode, result.stdout) == (2, b"")
    error = result.stderr.decode()
    assert len(error.splitlines()) == 1
    for text in (str(path), "graph", "byte ", "[wire.truncated]"):
        assert text in error


@pytest.mark.parametrize("stdin", [False, True])
def test_a_gguf_file_is_named(stdin: bool, tmp_path: Path) -> None:
    data = b"GGUF" + bytes(20)
    (tmp_path / "model.gguf").write_bytes(data)
    place = "-" if stdin else str(tmp_path / "model.gguf")
    result = _invoke("inspect", place, stdin=data if stdin else None)
    assert result.exit_code == 2
    assert "a GGUF file" in result.stderr


def test_what_is_no_message_is_named(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("words and words\n" * 9)
    for options, name in (((), "ModelProto"), (("--message", "GraphProto"), "GraphProto")):
        result = _invoke("inspect", str(path), *options)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"onnx-light: {path}: byte ")
        assert f"this is no whole {name} [wire." in result.stderr
    result = _invoke("inspect", "/dev/null")
    assert result.stderr == "onnx-light: /dev/null: not a regular file [file.not_regular]\n"


def test_a_missing_file_is_2(tmp_path: Path) -> None:
    for missing in (tmp_path / "missing.onnx", tmp_path):
        result = _command("inspect", str(missing))
        assert (result.returncode, result.stdout) == (2, b"")
        assert str(missing) in result.stderr.decode()
        assert len(result.stderr.splitlines()) == 1


def test_names_in_files_cannot_reach_the_terminal() -> None:
    model = onnx.ModelProto(producer_name="\x1b[31m[bold]\n")
    result = _invoke("inspect", "-", stdin=model.SerializeToString())
    assert "\\x1b[31m[bold]\\n" in result.stdout
    assert "\x1b" not in result.stdout


def test_quiet_prints_nothing_and_verbose_speaks_on_standard_error(path: Path) -> None:
    quiet = _command("-q", "inspect", str(path))
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")
    verbose = _command("-v", "inspect", str(path), "--json")
    assert str(path).encode() in verbose.stderr
    assert json.loads(verbose.stdout)["file"] == str(path)


def test_an_interrupt_while_the_command_is_loaded() -> None:
    program = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from onnx_light.cli import main
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams(closed: str, path: Path) -> None:
    line = f'exec "$0" -c "{_MAIN}" "$@" {closed}'
    for argument in (str(path), "-"):
        command = ["sh", "-c", line, sys.executable, "inspect", argument]
        result = subprocess.run(command, input=b"", capture_output=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, b"")
        assert (result.stdout == b"") == ("1>" in closed)


@pytest.mark.parametrize("words", ["--help", "inspect --help", "--version", "inspect {}"])
def test_a_full_disk(words: str, path: Path) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-c", _MAIN, *words.format(path).split()],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert result.returncode == 2
    assert result.stderr.startswith(b"onnx-light: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_reader_that_stops_is_no_error(path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from onnx_light.cli import main; main()"
    for options in ((), ("--json",)):
        result = subprocess.run(
            [sys.executable, "-c", code, "inspect", str(path), *options],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=120,
        )
        assert (result.returncode, result.stderr) == (0, b"")
    os.close(writer)


def test_output_in_a_locale_without_these_characters(path: Path) -> None:
    result = _command("inspect", str(path), env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, b"")


def test_demo_holds_what_it_says() -> None:
    result = _command("demo", "--messages", "--json")
    assert result.returncode == 0, result.stderr.decode()
    data = json.loads(result.stdout)
    assert data["ok"] is True
    assert all(way["equal"] for way in data["ways"])
    assert len({way["name"] for way in data["ways"]}) == 6
    # keys and values, 8 layers of 4 heads, 1000 tokens, 64 wide, 2 bytes each
    assert data["tree"]["payload_bytes"] == 2 * 8 * 4 * 1000 * 64 * 2
    assert data["fork"]["tokens"] == [1000, 1001, 1001]
    assert [failure["code"] for failure in data["failures"]] == [
        "wire.truncated",
        "wire.tag",
        "external.path",
        "cache.length",
    ]
    has_onnx = importlib.util.find_spec("onnx") is not None
    assert bool(data["comparisons"]) is has_onnx
    assert data["same_bytes"] is (True if has_onnx else None)


def test_demo_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnx" else find_spec(name)
    )
    result = _invoke("demo", "--messages")
    assert result.exit_code == 0
    assert "all checks hold" in result.stdout
    assert "onnx is not installed" in result.stdout
    assert "NO" not in result.stdout.replace("NodeProto", "")


def test_demo_fails_if_a_bit_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = importlib.import_module("onnx_light.cli.demo_messages")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    honest = demo._make_model

    def lossy(caches: list[PagedCache]) -> onnx.ModelProto:
        model: onnx.ModelProto = honest(caches)
        key = model.graph.paged_cache_initializer[7].blocks[15].key
        key.raw_data = key.raw_data[:-1] + bytes([key.raw_data[-1] ^ 1])
        return model

    monkeypatch.setattr(demo, "_make_model", lossy)
    result = _invoke("demo", "--messages")
    assert result.exit_code == 1
    assert "A CHECK FAILED" in result.stdout


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (8_197_901, "8.20 MB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.5e-6, "1.50 us"), (2.34e-2, "23.4 ms"), (0.9996, "1.00 s")]
)
def test_times(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


def test_printable_text() -> None:
    assert printable("a\tb\u202ec") == "a\\tb\\u202ec"
    assert printable("abcdef", 4) == "abc…"
