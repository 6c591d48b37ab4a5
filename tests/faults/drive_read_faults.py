"""Reads with every system call going wrong in turn. Runs with faults.c before libc.

    drive_read_faults.py FOLDER

What must hold: an error is the system's and names the file, leaves the message as it was and no
descriptor open; short reads and interrupts change nothing.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnx_light.onnx_py import _onnxpyprotoop as extension

from onnx_light import onnx

FAIL, SHORT, INTERRUPT = 0, 3, 4
CLOSE, READ, MAP, STAT = 16, 32, 64, 128
SHIM = ctypes.CDLL(None)
MODEL = onnx.ModelProto(ir_version=10, producer_name="p")
for each in ("a", "b"):
    MODEL.graph.initializer.add(name=each, dims=[9000], data_type=2, raw_data=each.encode() * 9000)
KEPT = onnx.ModelProto(domain="kept", graph={"name": "kept"})


def parse(name: str, data: str = "", **options: Any) -> Callable[[Any, Path], None]:
    def read(message: Any, folder: Path) -> None:
        external = folder / data if data else ""
        message.ParseFromFile(folder / name, onnx.ParseOptions(**options), external)

    return read


def copy_from_load(message: Any, folder: Path) -> None:
    message.CopyFrom(onnx.load(folder / "outside.onnx"))


MAPPED: dict[str, Any] = {"no_copy": True, "file_load_mode": onnx.FileLoadMode.MMAP}
STREAMED: dict[str, Any] = {"file_load_mode": onnx.FileLoadMode.STREAM}
TINY = {**STREAMED, "tiny_external_data_threshold": 10_000}
# How a message is read, and which calls that takes at least once.
READERS: dict[str, tuple[Callable[[Any, Path], None], int]] = {
    "streamed": (parse("m.onnx", **STREAMED), READ),
    "mapped": (parse("m.onnx", **MAPPED), MAP),
    "one file of data": (parse("outside.onnx", "m.data", **STREAMED), READ),
    "mapped data": (parse("outside.onnx", "m.data", **MAPPED), MAP),
    "tiny data": (parse("outside.onnx", **TINY), READ),
    "load": (copy_from_load, READ),
}


def left_over() -> Any:
    gc.collect()
    return extension._live_objects(), sorted(os.listdir("/proc/self/fd"))


class Attempt:
    """One read with one fault."""

    def __init__(self, read: Callable[[Any, Path], None], folder: Path, *fault: int) -> None:
        before = left_over()
        message = onnx.ModelProto(KEPT)
        self.error: OSError | None = None
        SHIM.fault_arm(*fault)
        try:
            read(message, folder)
        except OSError as error:
            self.error = error.with_traceback(None)
        self.seen = SHIM.fault_disarm()
        assert message == (KEPT if self.error else MODEL), fault
        del message
        assert left_over() == before, fault


def drive(name: str, folder: Path) -> int:
    read, needed = READERS[name]
    count = 0
    for calls in (READ, MAP, STAT, CLOSE):
        total = Attempt(read, folder, FAIL, calls, 10**6, 0).seen
        assert total > 0 or calls not in (needed, STAT), name
        for nth in range(1, total + 1):
            attempt = Attempt(read, folder, FAIL, calls, nth, errno.EIO)
            count += 1
            if calls == CLOSE:  # of what was only read: it is no matter
                assert attempt.error is None
                continue
            assert attempt.error is not None, (name, calls, nth)
            assert attempt.error.errno == errno.EIO
            assert Path(attempt.error.filename).parent == folder
    for most in (1, 7, 1000):
        assert Attempt(read, folder, SHORT, READ, 1, most).error is None
    for nth in (1, 2):
        assert Attempt(read, folder, INTERRUPT, READ, nth, 0).error is None
    return count


def main() -> None:
    folder = Path(sys.argv[1])
    MODEL.SerializeToFile(folder / "m.onnx")
    MODEL.SerializeToFile(folder / "outside.onnx", external_data_file=folder / "m.data")
    print(sum(drive(name, folder) for name in READERS), "cases")


if __name__ == "__main__":
    main()
