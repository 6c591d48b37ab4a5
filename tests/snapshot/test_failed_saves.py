"""Saves that fail, are interrupted or killed leave the old file whole."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnx_light import PagedCache, snapshot

# Saves 32 MiB of ones; EXTRA is put in before.
SAVE = """
import os, resource, signal, sys
import numpy as np
from onnx_light import PagedCache, snapshot
rows = np.ones((1, 1, 4096, 1024), np.float32)
progress = None
{extra}
snapshot.save([PagedCache.from_arrays(rows, rows)], sys.argv[1], progress=progress)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.kvcache"
    snapshot.save([small()], path, tokens=range(45))
    return path


def small() -> PagedCache:
    rows = np.random.default_rng(1).standard_normal((2, 1, 2, 45, 8)).astype(np.float16)
    return PagedCache.from_arrays(*rows)


def big() -> PagedCache:
    rows = np.ones((1, 1, 4096, 1024), np.float32)
    return PagedCache.from_arrays(rows, rows)


def save_elsewhere(path: Path, extra: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", SAVE.format(extra=extra), str(path)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_save(path: Path, exists: bool, error: type[BaseException]) -> None:
    before = path.read_bytes() if exists else path.unlink()
    seen: list[int] = []

    def interrupt(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == 2:
            raise error

    with pytest.raises(error):
        snapshot.save([big()], path, progress=interrupt)
    assert len(seen) == 2  # nothing is written after it
    assert list(path.parent.iterdir()) == ([path] if exists else [])
    if exists:
        assert path.read_bytes() == before


def test_a_signal_while_saving(path: Path) -> None:
    before = path.read_bytes()
    result = save_elsewhere(
        path, "progress = lambda done, total: os.kill(os.getpid(), signal.SIGINT)"
    )
    assert result.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in result.stderr
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("limit", [0, 1000, 1_000_000, 33_000_000])
def test_a_full_disk(path: Path, limit: int) -> None:
    before = path.read_bytes()
    result = save_elsewhere(
        path, f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))"
    )
    assert result.returncode == 1
    error = result.stderr.strip().splitlines()[-1]
    assert error.startswith("OSError: [Errno 27]")
    assert "File too large" in error
    assert str(path) in error
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_in_this_process(path: Path) -> None:
    """The state after the error is fit for the next save."""
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            snapshot.save([big()], path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    snapshot.save([big()], path)
    assert snapshot.open(path)[0] == big()
    assert list(path.parent.iterdir()) == [path]


def test_a_killed_process(path: Path) -> None:
    before = path.read_bytes()
    result = save_elsewhere(
        path,
        "progress = lambda done, total: done > total // 2 and os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert result.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert snapshot.open(path, verify="full")[0] == small()
    left = [file for file in path.parent.iterdir() if file != path]
    assert len(left) <= 1
    assert not any(file.name.endswith(".kvcache") for file in left)
    snapshot.save([big()], path)
    assert snapshot.open(path)[0] == big()
