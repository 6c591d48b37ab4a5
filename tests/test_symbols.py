"""What the compiled modules show to the process: another protobuf in it must not meet ours."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import onnx_light

FOLDER = Path(onnx_light.__file__).parent
LIBRARIES = sorted(FOLDER.rglob("*.so"))
# Entry points, our own names, and what templates of the standard library and nanobind leave.
EXPECTED = re.compile(r"PyInit_|RegisterCustomOps$|.*\b(onnx_light|std|__gnu_cxx|nanobind)::")


def names(path: Path, *options: str) -> list[str]:
    command = ["nm", "-D", "-C", *options, path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [re.sub(r"^\S* +\w ", "", line) for line in text.splitlines()]


def test_there_are_libraries() -> None:
    assert len(LIBRARIES) >= 3


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_no_symbol_of_another_library(path: Path) -> None:
    shown = names(path, "--defined-only")
    assert shown
    assert [name for name in shown if not EXPECTED.match(name)] == []
    assert [name for name in names(path) if re.search("google::|upb_|protobuf", name)] == []
