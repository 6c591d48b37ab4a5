"""What the benchmarks share: timing in turns, tables, the machine.

Two things are compared by the median of ratios: in every round each of them runs once, right after
the other, and the next round begins with the other one. What else the machine does meanwhile then
hits both. A time is the median of the same rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Call = Callable[[], object]

_PACKAGES = ("onnx_light", "onnx", "protobuf", "numpy", "onnxruntime")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two things that were timed in turns.

    Attributes:
        task: what was done.
        seconds, peer_seconds: medians, of one run.
        ratio: the median of seconds / peer_seconds of each round; below 1 we are faster.
        reach: what the ratio should be at most, or None.
    """

    task: str
    seconds: float
    peer_seconds: float
    ratio: float
    reach: float | None = None


def compare(
    task: str,
    ours: Call,
    peer: Call,
    *,
    rounds: int = 9,
    calls: int = 1,
    reach: float | None = None,
    before: Call | None = None,
) -> Comparison:
    """Times both in turns, after a round to warm up.

    `calls` is how often one run does its task: times are divided by it. `before` runs ahead of each
    run and is not timed.
    """
    times: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.disable()
    try:
        for number in range(-1, rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                if before is not None:
                    before()
                seconds = once((ours, peer)[which])
                if number >= 0:
                    times[which].append(seconds / calls)
    finally:
        gc.enable()
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    return Comparison(task, statistics.median(times[0]), statistics.median(times[1]), ratio, reach)


def once(call: Call) -> float:
    """How long one run takes; what it makes goes away before the clock stops."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def median_time(call: Call, rounds: int = 9) -> float:
    """The median time of a run, after one to warm up."""
    call()
    return statistics.median(once(call) for _ in range(rounds))


def available_memory() -> int:
    """Bytes that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    return {
        "processor": cpu[0] if cpu else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.0f} GiB",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()}",
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
    }


def duration(seconds: float) -> str:
    """Three digits with a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e9:.3g} ns"


class Report:
    """Tables, printed as they come and kept for --json FILE."""

    def __init__(self, description: str) -> None:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="write all numbers there, too"
        )
        self._file: Path | None = parser.parse_args().json
        self._console = Console(width=110, highlight=False, markup=False)
        self._data: dict[str, Any] = {"machine": machine(), "tables": {}}
        grid = Table.grid(padding=(0, 2))
        for name, value in self._data["machine"].items():
            grid.add_row(name, value)
        self._console.print(grid)

    def comparisons(self, title: str, peer: str, found: Sequence[Comparison]) -> None:
        """A table of ours beside a peer's."""
        rows = [
            (
                item.task,
                duration(item.seconds),
                duration(item.peer_seconds),
                f"{item.ratio:.2g}" if item.ratio < 0.1 else f"{item.ratio:.2f}",
                "" if item.reach is None else f"{item.reach:.2g}",
            )
            for item in found
        ]
        self._print(title, ("", "onnx_light", peer, "ratio", "reach"), rows)
        self._data["tables"][title] = [dataclasses.asdict(item) for item in found]

    def values(self, title: str, rows: Sequence[tuple[str, str, float]]) -> None:
        """A table of numbers: what, as text, and as it is."""
        self._print(title, ("", "measured"), [row[:2] for row in rows])
        self._data["tables"][title] = {what: value for what, _, value in rows}

    def _print(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold", box=None)
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print()
        self._console.print(table)

    def finish(self) -> None:
        """Writes the file, if there is to be one."""
        if self._file is not None:
            self._file.write_text(json.dumps(self._data, indent=2) + "\n", encoding="utf-8")
