"""Saves in which one system call after the other goes wrong: see drive_faults.py and faults.c."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from drive_faults import SAVERS

from onnx_light import onnx

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


class AlarmError(Exception):
    pass


def raise_alarm(*_: object) -> None:
    raise AlarmError


@pytest.mark.parametrize("blocking", [True, False])
def test_a_signal_ends_a_write_that_waits(blocking: bool) -> None:
    """Nobody reads the pipe; what the handler of the signal raises comes out."""
    message = onnx.TensorProto(raw_data=b"x" * 3_000_000)
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    before = signal.signal(signal.SIGALRM, raise_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(AlarmError):
            message.SerializeToFileDescriptor(writer)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(reader)
        os.close(writer)
    assert message == onnx.TensorProto(raw_data=b"x" * 3_000_000)
