"""Snapshots: opening, saving, verifying, loading, and resuming a model beside recomputing."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Comparison, Report, compare, duration, median_time

from onnx_light import PagedCache, snapshot
from onnx_light.cli.demo_model import find_model
from onnx_light.models import from_gguf
from onnx_light.runtime import InferenceSession

_PAGE_SIZE = 64
_CHUNK = 512  # tokens that the model reads at once

Rows = list[tuple[str, str, float]]


def layers(count: int, tokens: int, width: int, heads: int = 1) -> dict[str, PagedCache]:
    """Caches of random numbers, in float16."""
    random = np.random.default_rng(0)
    shape = (1, heads, tokens, width)
    key = random.integers(0, 0x7000, shape, np.uint16).view(np.float16)
    return {
        f"layers.{i}": PagedCache.from_arrays(key, key, page_size=_PAGE_SIZE) for i in range(count)
    }


def open_and_close(path: Path) -> None:
    snapshot.open(path).close()


def opening(folder: Path) -> Rows:
    """Warm, mapped. What a page adds is the slope between files that differ in nothing else."""
    rows: Rows = []
    seconds: dict[int, float] = {}
    for pages, width in ((128, 8), (512, 8), (512, 64), (2048, 8)):
        path = folder / "open.kvcache"
        report = snapshot.save(layers(32, pages * _PAGE_SIZE, width), path, sync=False)
        found = median_time(functools.partial(open_and_close, path), 51)
        rows.append(
            (f"32 layers x {pages} pages, {report.nbytes / 1e6:.0f} MB", duration(found), found)
        )
        if width == 8:
            seconds[pages] = found
        path.unlink()
    slope = (seconds[2048] - seconds[512]) / (32 * (2048 - 512))
    return [*rows, ("each page more", duration(max(slope, 0)), slope)]


def write_raw(data: memoryview, path: Path, sync: bool) -> None:
    """What a save has to do at least: a new file, written by plain calls, and a rename."""
    temporary = path.with_suffix(".temporary")
    with temporary.open("wb", buffering=0) as file:
        left = data
        while left:
            left = left[file.write(left) :]
        if sync:
            os.fsync(file.fileno())
    temporary.rename(path)
    if sync:
        descriptor = os.open(path.parent, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def saving(folder: Path) -> tuple[str, list[Comparison], Path]:
    """The file, too, for what comes next."""
    caches = layers(30, 4096, 64, heads=3)
    path = folder / "saved.kvcache"
    report = snapshot.save(caches, path)
    data = memoryview(path.read_bytes())
    found = [
        compare(
            f"{what}, the checksums known",
            functools.partial(snapshot.save, caches, path, sync=sync),
            functools.partial(write_raw, data, folder / "raw", sync),
            rounds=7,
            reach=1 / 0.95,
        )
        for what, sync in (("in the page cache", False), ("on the disk", True))
    ]
    fresh: dict[str, PagedCache] = {}

    def renew() -> None:
        fresh.clear()
        fresh.update(layers(30, 4096, 64, heads=3))

    found.append(
        compare(
            "in the page cache, the first save",
            lambda: snapshot.save(fresh, path, sync=False),
            lambda: write_raw(data, folder / "raw", False),
            rounds=5,
            before=renew,
        )
    )
    (folder / "raw").unlink()
    return f"{report.nbytes / 1e6:.0f} MB in {report.records} record(s)", found, path


def reading(path: Path) -> Rows:
    size = path.stat().st_size

    def load() -> list[Any]:
        with snapshot.open(path) as opened:
            return [cache.to_arrays() for cache in opened.caches.values()]

    def use() -> list[PagedCache]:
        with snapshot.open(path) as opened:
            return list(opened.caches.values())

    rows: Rows = []
    for what, call in (
        ("verify every byte", lambda: snapshot.verify(path)),
        ("open, all pages verified where they lie", use),
        ("open, verified, copied to arrays", load),
    ):
        seconds = median_time(call, 7)
        rows.append((what, f"{duration(seconds)}, {size / seconds / 1e9:.2f} GB/s", seconds))
    return rows


def run_tokens(session: InferenceSession, tokens: np.ndarray[Any, Any]) -> int:
    """Reads the tokens in chunks; the most likely next one."""
    logits: Any = None
    for first in range(0, len(tokens), _CHUNK):
        chunk = tokens[None, first : first + _CHUNK]
        (logits,) = session.run(["logits"], {"input_ids": chunk})
    return int(np.argmax(logits[0, -1]))


def resuming(folder: Path, lengths: tuple[int, ...] = (1000, 4000)) -> list[Comparison]:
    """From a warm file to the next token, beside reading all tokens, once. Float32 weights."""
    session = InferenceSession(from_gguf(find_model(None)))
    tokens = np.random.default_rng(0).integers(0, 40_000, max(lengths), np.int64)
    run_tokens(session, tokens[:_CHUNK])  # to warm up
    return [resume_at(session, tokens[:length], folder / "resume.kvcache") for length in lengths]


def resume_at(session: InferenceSession, tokens: np.ndarray[Any, Any], path: Path) -> Comparison:
    session.reset()
    begin = time.perf_counter()
    run_tokens(session, tokens[:-1])
    expected = run_tokens(session, tokens[-1:])
    recompute_seconds = time.perf_counter() - begin
    session.truncate(len(tokens) - 1)
    session.save_state(path, sync=False)

    def resume() -> None:
        session.load_state(path)
        if run_tokens(session, tokens[-1:]) != expected:
            raise AssertionError(f"{len(tokens)} tokens: another next token after resuming")

    seconds = median_time(resume, 7)
    reach = 0.01 if len(tokens) == 4000 else None
    ratio = seconds / recompute_seconds
    return Comparison(f"{len(tokens):,} tokens", seconds, recompute_seconds, ratio, reach)


def main() -> None:
    report = Report("Snapshots of caches.")
    with tempfile.TemporaryDirectory(prefix="onnx-light-bench-") as name:
        folder = Path(name)
        report.values("Open a snapshot", opening(folder))
        size, saves, path = saving(folder)
        report.comparisons(f"Save, {size}", "raw writing", saves)
        report.values("Read the same file", reading(path))
        path.unlink()
        report.comparisons(
            "Resume SmolLM2-135M up to the next token", "recomputing", resuming(folder)
        )
    report.finish()


if __name__ == "__main__":
    main()
