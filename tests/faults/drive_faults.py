"""Saves with every system call going wrong in turn. Runs with faults.c before libc.

    drive_faults.py SAVER FOLDER

Each case happens in a fork, over the files of an older save. What must hold: after an error all old
files are whole, no new one is there and no descriptor is left open; after success all files are
new; after a kill the same, but for temporary files.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from onnx_light import PagedCache, onnx, snapshot

FAIL, KILL, SIGNAL, SHORT, INTERRUPT = range(5)
WRITE, SYNC, RENAME, CREATE, CLOSE = (1, 2, 4, 8, 16)
EVERY = WRITE | SYNC | RENAME | CREATE | CLOSE
SHIM = ctypes.CDLL(None)


def model(fill: int) -> Any:
    made = onnx.ModelProto(ir_version=10, producer_name="p" * fill)
    for name in ("a", "b"):
        size = 3000 + fill
        made.graph.initializer.add(
            name=name, dims=[size], data_type=2, raw_data=bytes([fill]) * size
        )
    return made


def cache(fill: int) -> PagedCache:
    rows = np.full((1, 1, 200 + fill, 8), fill, np.float32)
    return PagedCache.from_arrays(rows, rows)


def save_external(folder: Path, fill: int, **more: Any) -> None:
    onnx.save(model(fill), folder / "m.onnx", save_as_external_data=True, **more)


# What is saved for a number, and how many files a save has.
SAVERS: dict[str, tuple[Callable[[Path, int], Any], int]] = {
    "message": (lambda folder, fill: model(fill).SerializeToFile(folder / "m.onnx"), 1),
    "message with data": (
        lambda folder, fill: model(fill).SerializeToFile(
            folder / "m.onnx",
            onnx.SerializeOptions(max_external_file_size=4000),
            folder / "m.data",
        ),
        3,
    ),
    "save": (lambda folder, fill: onnx.save(model(fill), folder / "m.onnx"), 1),
    "save with data": (save_external, 2),
    "save with own files": (
        lambda folder, fill: save_external(folder, fill, all_tensors_to_one_file=False),
        3,
    ),
    "text": (lambda folder, fill: onnx.save(model(fill), folder / "m.json"), 1),
    "snapshot": (lambda folder, fill: snapshot.save([cache(fill)], folder / "a.kvcache"), 1),
}


def content(folder: Path) -> tuple[dict[str, bytes], int]:
    """The files by name without temporary ones, and how many of those there are."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    temporary = [name for name in files if name.startswith(".onnx_light.")]
    return {name: files[name] for name in files if name not in temporary}, len(temporary)


class Case:
    """One save in a fork, with one fault."""

    def __init__(self, save: Callable[[Path, int], Any], folder: Path, old: Path) -> None:
        self._save, self._folder, self._old = save, folder, old

    def run(self, action: int, calls: int, nth: int, value: int) -> dict[str, Any]:
        """Outcome and number of calls as the child tells, or that it was killed; the files."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._old, self._folder)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            report = json.dumps(self._attempt(action, calls, nth, value)).encode()
            os.write(writer, report)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        report = json.loads(text) if text else {"killed": os.WTERMSIG(status)}
        files, temporary = content(self._folder)
        return {**report, "files": files, "temporary": temporary}

    def _attempt(self, action: int, calls: int, nth: int, value: int) -> dict[str, Any]:
        open_before = len(os.listdir("/proc/self/fd"))
        outcome = "saved"
        SHIM.fault_arm(action, calls, nth, value)
        try:
            self._save(self._folder, 2)
        except OSError as error:
            outcome = errno.errorcode[error.errno or 0]
        except KeyboardInterrupt:
            outcome = "KeyboardInterrupt"
        seen = SHIM.fault_disarm()
        leaked = len(os.listdir("/proc/self/fd")) - open_before
        return {"outcome": outcome, "seen": seen, "leaked": leaked}


class Drive:
    def __init__(self, saver: str, folder: Path) -> None:
        save, self.file_count = SAVERS[saver]
        old, new = folder / "old", folder / "new"
        for place, fill in ((old, 1), (new, 1), (new, 2)):
            place.mkdir(exist_ok=True)
            save(place, fill)
        self.old, self.new = content(old)[0], content(new)[0]
        assert len(self.old) == self.file_count
        assert all(self.old[name] != self.new[name] for name in self.old)
        self.case = Case(save, folder / "case", old)
        self.count = 0

    def run(self, action: int, calls: int, nth: int, value: int = 0) -> dict[str, Any]:
        self.count += 1
        result = self.case.run(action, calls, nth, value)
        files = result["files"]
        state = "old" if files == self.old else "new" if files == self.new else "mixed"
        result["state"] = state
        result["text"] = f"{action=} {calls=} {nth=} {value=}: {result['state']}, " + str(
            {key: value for key, value in result.items() if key != "files"}
        )
        if "killed" not in result:
            assert result["leaked"] == 0, result["text"]
            assert result["temporary"] == 0, result["text"]
            if result["outcome"] == "saved":
                assert state == "new", result["text"]
        return result

    def calls_of(self, calls: int) -> int:
        result = self.run(FAIL, calls, 10**6)
        assert result["outcome"] == "saved", result["text"]
        return int(result["seen"])

    def errors(self) -> None:
        """Errors before the first rename leave all that is old."""
        numbers = [errno.ENOSPC, errno.EIO, errno.EDQUOT]
        for calls in (WRITE, CREATE):
            total = self.calls_of(calls)
            assert total >= self.file_count
            for nth in range(1, total + 1):
                number = numbers[nth % 3]
                result = self.run(FAIL, calls, nth, number)
                assert result["outcome"] == errno.errorcode[number], result["text"]
                assert result["state"] == "old", result["text"]
        for nth in range(1, self.calls_of(CLOSE) + 1):  # of what was only read, it is no matter
            result = self.run(FAIL, CLOSE, nth, errno.EIO)
            expected = {"saved": "new", "EIO": "old"}[result["outcome"]]
            assert result["state"] == expected, result["text"]

    def failed_syncs(self) -> None:
        """Of the files: all is old. Of folders, after the renames: all is new, and it is told."""
        total = self.calls_of(SYNC)
        assert total > self.file_count
        for nth in range(1, total + 1):
            result = self.run(FAIL, SYNC, nth, errno.EIO)
            assert result["outcome"] == "EIO", result["text"]
            assert result["state"] == ("old" if nth <= self.file_count else "new"), result["text"]

    def failed_renames(self) -> None:
        """The first one leaves all that is old; a later one comes too late for that."""
        assert self.calls_of(RENAME) == self.file_count
        for nth in range(1, self.file_count + 1):
            result = self.run(FAIL, RENAME, nth, errno.EACCES)
            assert result["outcome"] == "EACCES", result["text"]
            assert result["state"] == ("old" if nth == 1 else "mixed"), result["text"]

    def what_is_no_error(self) -> None:
        for action, value in ((SHORT, 1), (SHORT, 1000), (INTERRUPT, 0)):
            calls = WRITE if action == SHORT else WRITE | SYNC
            for nth in (1, 2):
                result = self.run(action, calls, nth, value)
                assert result["outcome"] == "saved", result["text"]

    def kills(self) -> None:
        total = self.calls_of(EVERY)
        states = []
        for nth in range(1, total + 1):
            result = self.run(KILL, EVERY, nth)
            assert result.get("killed") == signal.SIGKILL, result["text"]
            assert result["temporary"] <= self.file_count, result["text"]
            states.append(result["state"])
        # One step from old to new; between the renames of several files there is no other way.
        mixed = self.file_count - 1
        assert states.count("mixed") <= 3 * mixed
        order = {"old": 0, "mixed": 1, "new": 2}
        assert states == sorted(states, key=order.__getitem__), states
        assert states[0] == "old"
        assert states[-1] in ("old", "new")

    def interrupts(self) -> None:
        """Ctrl-C before or in the middle of any call: all old or, from the first rename on, new."""
        total = self.calls_of(EVERY)
        outcomes = []
        for nth in range(1, total + 1):
            result = self.run(SIGNAL, EVERY, nth, signal.SIGINT)
            assert result["outcome"] == "KeyboardInterrupt", result["text"]
            assert result["state"] in ("old", "new"), result["text"]
            outcomes.append(result["state"])
        assert outcomes == sorted(outcomes, reverse=True), outcomes
        assert outcomes[0] == "old"
        for nth in range(1, self.calls_of(WRITE) + 1):
            assert self.run(SIGNAL, WRITE, nth, signal.SIGINT)["state"] == "old"


def main() -> None:
    saver, folder = sys.argv[1:]
    drive = Drive(saver, Path(folder))
    drive.what_is_no_error()
    drive.errors()
    drive.failed_syncs()
    drive.failed_renames()
    drive.kills()
    drive.interrupts()
    print(drive.count, "cases")


if __name__ == "__main__":
    main()
