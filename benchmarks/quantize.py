"""Quantizing and decoding pages, against reading the same numbers from memory.

A cache that is larger than any cache of the processor is quantized and decoded: page by page, as a
cache does while it grows, where the memory of one result serves the next; and all of it at once by
all cores, where every page of memory is new. In turns with that, numpy reads the float32 pages,
and ggml's quantize_row_q8_0 encodes them into memory that stays, where a package that carries ggml
is installed: llama-cpp-python, else pywhispercpp (make peers). A ratio is the median over the
rounds of a task's speed, in float32 bytes a second, to that of reading; all but the tasks that say
otherwise are one thread's.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine
from rich.console import Console
from rich.table import Table

from onnx_light import CachePolicy, PagedCache

_HEADS, _WIDTH = 8, 128
_FORMATS = (*CachePolicy.presets, "q8_0", "q4_0")

Pages = list[np.ndarray[Any, np.dtype[np.float32]]]


def read(pages: Pages) -> None:
    for page in pages:
        np.bitwise_or.reduce(page.reshape(-1).view(np.uint64))


def ggml_library() -> tuple[str, Path] | None:
    """ggml's kernels for this processor in an installed package, and the package's name."""
    for package in ("llama-cpp-python", "pywhispercpp"):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            # pywhispercpp has a second copy, which does not find the libraries that it needs.
            if file.name.startswith("libggml-cpu") and ".so" in file.name and len(file.parts) > 1:
                version = importlib.metadata.version(package)
                return f"{package} {version}", Path(str(file.locate()))
    return None


def ggml(pages: Pages) -> Callable[[], None] | None:
    """ggml's own function over all pages, into memory that stays."""
    found = ggml_library()
    if found is None:
        return None
    library = ctypes.CDLL(str(found[1]))
    function = library.quantize_row_q8_0
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function.restype = None
    target = np.ones((len(pages), pages[0].size // 32 * 34), np.uint8)

    def run() -> None:
        for page, row in zip(pages, target, strict=True):
            function(page.ctypes.data, row.ctypes.data, page.size)

    return run


def single_pages(cache: PagedCache) -> list[PagedCache]:
    return [cache.slice(page.start, page.end) for page in cache.pages]


def seconds(task: str, call: Callable[[], object]) -> float:
    """What one thread needs is told by its own clock, which other load hardly moves."""
    clock = time.perf_counter if task.endswith("all cores") else time.thread_time
    begin = clock()
    kept = call()
    end = clock()
    del kept
    return end - begin


def measure(cache: PagedCache, format_name: str, rounds: int) -> dict[str, Any]:
    pages = [side.array for page in cache.pages for side in (page.key, page.value)]
    quantized = cache.quantize(format_name)
    parts, quantized_parts = (single_pages(whole) for whole in (cache, quantized))

    def quantize_pages() -> None:
        for part in parts:
            part.quantize(format_name, num_threads=1)

    def decode_pages() -> None:
        for part in quantized_parts:
            part.dequantize(num_threads=1)

    tasks: dict[str, Callable[[], object]] = {
        "read": lambda: read(pages),
        "quantize": quantize_pages,
        "decode": decode_pages,
        "quantize at once, all cores": lambda: cache.quantize(format_name),
        "decode at once, all cores": lambda: quantized.dequantize(),
    }
    peer = ggml(pages)
    if peer is not None and format_name in ("q8_0", "int8"):
        tasks["ggml q8_0"] = peer
    times: dict[str, list[float]] = {task: [] for task in tasks}
    for number in range(-1, rounds):
        for task, call in tasks.items():
            taken = seconds(task, call)
            if number >= 0:
                times[task].append(taken)
    nbytes = sum(page.nbytes for page in pages)
    return {
        "format": format_name,
        "tasks": {
            task: {
                "gb_per_second": nbytes / statistics.median(own) / 1e9,
                "of_reading": statistics.median(
                    a / b for a, b in zip(times["read"], own, strict=True)
                ),
            }
            for task, own in times.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="four times the tokens and rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there, too")
    options = parser.parse_args()
    tokens, rounds = (65_536, 21) if options.full else (16_384, 5)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1, _HEADS, tokens, _WIDTH), dtype=np.float32)
    cache = PagedCache.from_arrays(rows, rows[:, :, ::-1])
    del rows
    results = [measure(cache, name, rounds) for name in _FORMATS]
    shown = Table("format", "task", "GB/s of float32", "of reading", box=None)
    for result in results:
        for task, own in result["tasks"].items():
            speed, share = own["gb_per_second"], own["of_reading"]
            shown.add_row(result["format"], task, f"{speed:.2f}", f"{share:.0%}")
    console = Console(width=110, highlight=False)
    console.print(shown)
    found = ggml_library()
    console.print(f"ggml is that of {found[0]}" if found else "ggml is not installed: make peers")
    if options.json is not None:
        data = {"machine": machine(), "nbytes": cache.nbytes, "results": results}
        data["ggml"] = found[0] if found else None
        options.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
