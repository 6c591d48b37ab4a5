"""Calls in which one request to the system after the other goes wrong, in processes of their own.

Saves: drive_faults.py. Reads: drive_read_faults.py. Memory: drive_no_memory.py.
"""

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


def run(source: str, driver: str, folder: Path, *arguments: str) -> tuple[int, str]:
    """What the driver prints last, a number and a word; `source` stands before libc."""
    library = folder / "shim.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", library, HERE / source, "-ldl"]
    subprocess.run(command, check=True)
    work = folder / "work"
    work.mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, str(HERE / driver), *arguments, str(work)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    count, word = result.stdout.split()
    return int(count), word


SHORT = ("message", "save with own files", "snapshot")


@pytest.mark.parametrize(
    "saver", [s if s in SHORT else pytest.param(s, marks=pytest.mark.long) for s in SAVERS]
)
def test_every_system_call_of_a_save(tmp_path: Path, saver: str) -> None:
    count, word = run("faults.c", "drive_faults.py", tmp_path, saver)
    assert word == "cases"
    assert count > 30


def test_every_system_call_of_a_read(tmp_path: Path) -> None:
    count, word = run("faults.c", "drive_read_faults.py", tmp_path)
    assert word == "cases"
    assert count > 30


def test_every_request_for_memory(tmp_path: Path) -> None:
    count, word = run("no_memory.c", "drive_no_memory.py", tmp_path)
    assert word == "failures"
    assert count > 500


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
