"""Saves in which one system call after the other goes wrong: see drive_faults.py and faults.c."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from drive_faults import SAVERS

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "faults.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"]
    subprocess.run(command, check=True)
    return library


SHORT = ("message", "save with own files", "snapshot")


@pytest.mark.parametrize(
    "saver", [s if s in SHORT else pytest.param(s, marks=pytest.mark.long) for s in SAVERS]
)
def test_every_system_call(shim: Path, tmp_path: Path, saver: str) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(shim), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "drive_faults.py"), saver, str(tmp_path)]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    count, word = result.stdout.split()
    assert word == "cases"
    assert int(count) > 30
