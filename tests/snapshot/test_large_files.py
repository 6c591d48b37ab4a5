"""Opening touches no page; files above 2 GiB are written, opened and read."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from onnx_light import PagedCache, snapshot

STEP = 1 << 16
_PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def mapped_bytes(path: Path) -> int:
    """What the process has touched of its mappings of a file: their resident pages."""
    text = Path("/proc/self/smaps").read_text()
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)
    own = [part for part in parts if part.splitlines()[:1] and str(path) in part.splitlines()[0]]
    return sum(1024 * int(re.findall(r"^Rss: +(\d+) kB", part, re.MULTILINE)[0]) for part in own)


def bytes_read() -> int:
    """By system calls of this process."""
    text = Path("/proc/self/io").read_text()
    return int(re.findall(r"rchar: (\d+)", text)[0])


def write(path: Path, page_size: int) -> list[PagedCache]:
    """8 layers of 16 pages; a page has page_size times 512 bytes."""
    rows = np.ones((1, 1, 16 * page_size, 64), np.float32)
    cache = PagedCache.from_arrays(rows, rows, page_size=page_size)
    snapshot.save([cache] * 8, path, tokens=np.zeros(16 * page_size, int), sync=False)
    return [cache] * 8


def test_opening_touches_no_page(tmp_path: Path) -> None:
    touched, read, faults = [], [], []
    for page_size in (64, 2048):
        path = tmp_path / f"{page_size}.kvcache"
        caches = write(path, page_size)
        nbytes = sum(cache.nbytes for cache in caches)
        assert nbytes == 8 * 16 * page_size * 64 * 4 * 2
        before, faults_before = bytes_read(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with snapshot.open(path) as opened:
            assert len(opened) == 16 * page_size
            assert list(opened.caches) == [f"layers.{i}" for i in range(8)]
            assert opened.nbytes == nbytes
            read.append(bytes_read() - before)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before)
            touched.append(mapped_bytes(path))
            assert opened["layers.3"] == caches[3]
            assert mapped_bytes(path) >= touched[-1] + nbytes // 8
    # Head, index and foot. The kernel maps what it has in memory around each touch, up to some
    # hundred KiB; with 32 times the payload it is no more.
    assert max(touched) <= 2 << 20
    assert abs(touched[1] - touched[0]) <= 1 << 18
    assert abs(faults[1] - faults[0]) <= 64
    assert max(read) < 100_000  # reading /proc itself counts


def punch(handle: int, start: int, length: int) -> None:
    """Gives the blocks of a part of a file back; it reads as zeros."""
    if length <= 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_int(_PUNCH_HOLE), ctypes.c_int64(start), ctypes.c_int64(length))
    if libc.fallocate(ctypes.c_int(handle), *arguments):
        code = ctypes.get_errno()
        if code == errno.EOPNOTSUPP:
            pytest.skip("the file system has no holes")
        raise OSError(code, os.strerror(code))


def hole_maker(folder: Path) -> Callable[[int, int], None]:
    """A `progress` that makes a hole of every 64 KiB of zeros as soon as they are written."""
    place = 0

    def advance(done: int, total: int) -> None:
        nonlocal place
        (file,) = folder.iterdir()
        handle = os.open(file, os.O_RDWR)
        try:
            end = done // STEP * STEP
            data = os.pread(handle, end - place, place)
            start = place
            while place < end:
                offset = place - (end - len(data))
                if data.count(0, offset, offset + STEP) != STEP:
                    punch(handle, start, place - start)
                    start = place + STEP
                place += STEP
            punch(handle, start, place - start)
        finally:
            os.close(handle)

    return advance


def data_after(path: Path, place: int) -> Iterator[tuple[int, bytes]]:
    """The parts of a sparse file that are no holes."""
    with path.open("rb") as file:
        size = path.stat().st_size  # the end of a file is a hole, and a foot comes before it
        while place < size:
            start = os.lseek(file.fileno(), place, os.SEEK_DATA)
            place = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield start, os.pread(file.fileno(), place - start, start)


@pytest.mark.long
def test_a_file_above_two_gibibytes(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "large.kvcache"
    tokens = 16384
    rows = np.zeros((1, 8, tokens, 64), np.float32)  # 32 MiB
    marks = np.arange(1, 65, dtype=np.float32)
    rows[0, 7, -1] = marks
    cache = PagedCache.from_arrays(rows, rows, page_size=8192)
    caches = [cache] * 48
    saved = snapshot.save(caches, path, tokens=range(tokens), progress=hole_maker(folder))
    size = path.stat().st_size
    assert size == saved.nbytes > 3 << 30
    assert saved.records > 1  # none is over 1 GiB
    assert path.stat().st_blocks * 512 < size // 8
    with snapshot.open(path) as opened:
        assert (len(opened), opened.nbytes) == (tokens, 48 * cache.nbytes)
        assert np.array_equal(opened.tokens, np.arange(tokens))
        for layer in (0, 23, 47):
            read = opened[layer]
            assert np.array_equal(read.key_array()[0, 7, -1], marks)
            assert not read.value_array()[0, 7, :-1].any()
            assert np.array_equal(read.key_array(), rows)  # records may cut pages
    # The marks of the last layer lie where 31 bits do not reach, on 64 bytes.
    places = [
        start + found.start()
        for start, data in data_after(path, 2**31)
        for found in re.finditer(re.escape(marks.tobytes()), data)
    ]
    assert places
    assert all(place % 64 == 0 for place in places)
    report = snapshot.verify(path)
    assert report.ok
    assert report.bytes_checked == size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 8 * 2**30
