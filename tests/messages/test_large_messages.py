"""Payloads and messages above 2 and 4 GiB, made of holes: neither memory nor disk is needed."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from message_apis import Api, lengthed, varint

GIB = 1 << 30
ALLOWED = 300 << 20  # bytes of memory of our own
MARK = b"mark"


def anonymous() -> int:
    """Bytes of memory that no file stands behind."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith("Anonymous:"))
    return int(line.split()[1]) * 1024


def available() -> int:
    """Bytes of memory that the machine has left."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


@pytest.fixture(autouse=True)
def _no_memory_is_taken() -> Iterator[None]:
    before = anonymous()
    yield
    assert anonymous() - before < ALLOWED


def marks_of(size: int) -> list[int]:
    """Places in a payload: its ends, and where numbers of 31 and 32 bits end."""
    return [p for p in (0, 2**31 - 2, 2**31 + 4096, 2**32 - 2, size - 4) if p <= size - 4]


def holes(path: Path, size: int) -> None:
    """A file of zeros and marks that takes no room."""
    with path.open("wb") as file:
        file.truncate(size)
        for place in marks_of(size):
            file.seek(place)
            file.write(MARK)


class SparseFile:
    """A stream into a file in which zeros stay holes."""

    STEP = 1 << 20

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")

    def write(self, data: Any) -> None:
        view = np.frombuffer(data, np.uint8)
        for start in range(0, len(view), self.STEP):
            piece = view[start : start + self.STEP]
            if piece.any():
                self.file.write(piece)
            else:
                self.file.seek(len(piece), os.SEEK_CUR)

    def close(self) -> None:
        self.file.truncate()
        self.file.close()


def message_of(ours: Api, folder: Path, size: int, count: int) -> Any:
    """A graph of `count` payloads that share the bytes of one file of holes."""
    holes(folder / "data", size)
    graph = ours.GraphProto(name="after the payloads")
    for i in range(count):
        entries = {"location": "data", "length": str(size)}.items()
        graph.initializer.add(
            name=str(i),
            data_location=ours.TensorProto.EXTERNAL,
            external_data=[{"key": key, "value": value} for key, value in entries],
        )
    graph.SerializeToFile(folder / "references")
    graph = ours.GraphProto()
    graph.ParseFromFile(folder / "references", mapped(ours), folder / "data")
    return graph


def mapped(ours: Api, **more: Any) -> Any:
    return ours.ParseOptions(no_copy=True, file_load_mode=ours.FileLoadMode.MMAP, **more)


def tensor_head(size: int, name: str) -> bytes:
    """What stands before a payload of a graph's initializer, by hand."""
    inner = lengthed(8, name.encode()) + b"\x4a" + varint(size)  # name, raw_data
    return b"\x2a" + varint(len(inner) + size) + inner


def heads(size: int, count: int) -> tuple[bytes, list[bytes]]:
    return lengthed(2, b"after the payloads"), [tensor_head(size, str(i)) for i in range(count)]


def check_file(path: Path, size: int, count: int) -> None:
    """The bytes of the file, as the wire format says."""
    first, others = heads(size, count)
    with path.open("rb") as file:
        assert file.read(len(first)) == first
        for head in others:
            assert file.read(len(head)) == head
            start = file.tell()
            for place in marks_of(size):
                file.seek(start + place)
                assert file.read(4) == MARK
            file.seek(start + size)
        assert file.read() == b""


def check_message(graph: Any, size: int, count: int) -> None:
    assert graph.name == "after the payloads"
    assert len(graph.initializer) == count
    for i, tensor in enumerate(graph.initializer):
        view = tensor.payload("raw_data")
        assert (tensor.name, len(view)) == (str(i), size)
        for place in marks_of(size):
            assert view[place : place + 4] == MARK
            assert view[max(place - 3, 0) : place] == bytes(min(place, 3))


def write_and_read(ours: Api, folder: Path, size: int, count: int) -> None:
    graph = message_of(ours, folder, size, count)
    check_message(graph, size, count)
    first, others = heads(size, count)
    total = len(first) + sum(len(head) + size for head in others)
    sizes = graph.SerializeSize()
    assert (sizes.size(), graph.ByteSize(), sizes.big_data_size) == (total, total, size * count)
    stream = SparseFile(folder / "whole")
    graph.SerializeToOstream(stream)
    stream.close()
    assert (folder / "whole").stat().st_blocks * 512 < 100 << 20
    check_file(folder / "whole", size, count)

    read = ours.GraphProto()
    read.ParseFromFile(folder / "whole", mapped(ours))
    check_message(read, size, count)
    assert read.ByteSize() == total
    copied = ours.GraphProto(read)  # payloads are shared
    del read
    check_message(copied, size, count)
    with (folder / "whole").open("rb") as file:
        source = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    read = ours.GraphProto()
    read.ParseFromString(source, ours.ParseOptions(no_copy=True))
    check_message(read, size, count)

    limits = ours.SerializeOptions(max_serialized_size_bytes=total - 1)
    with pytest.raises(ValueError, match=f"{total}.*{total - 1}"):
        read.SerializeToString(limits)
    with pytest.raises(ours.ParseError, match=str(size - 1)):
        ours.GraphProto().ParseFromFile(
            folder / "whole", mapped(ours, max_tensor_size_bytes=size - 1)
        )
    skipped = ours.GraphProto()
    skipped.ParseFromFile(
        folder / "whole",
        ours.ParseOptions(skip_raw_data=True, file_load_mode=ours.FileLoadMode.MMAP),
    )
    assert [tensor.HasField("raw_data") for tensor in skipped.initializer] == [False] * count


def test_a_payload_of_three_gibibytes(ours: Api, tmp_path: Path) -> None:
    write_and_read(ours, tmp_path, 3 * GIB, 1)


@pytest.mark.long
def test_a_payload_of_five_gibibytes(ours: Api, tmp_path: Path) -> None:
    write_and_read(ours, tmp_path, 5 * GIB, 1)


@pytest.mark.long
def test_a_message_of_five_gibibytes(ours: Api, tmp_path: Path) -> None:
    write_and_read(ours, tmp_path, GIB, 5)


@pytest.mark.long
def test_five_gibibytes_through_a_pipe(ours: Api, tmp_path: Path) -> None:
    """Many calls of the system, each of which takes what a pipe takes."""
    graph = message_of(ours, tmp_path, 5 * GIB, 1)
    first, (second,) = heads(5 * GIB, 1)
    places = [len(first) + len(second) + place for place in marks_of(5 * GIB)]
    reader, writer = os.pipe()
    found: list[int] = []
    received = 0

    def receive() -> None:
        nonlocal received
        tail = b""
        while piece := os.read(reader, 1 << 20):
            together = tail + piece
            start = received - len(tail)
            at = together.find(MARK)
            while at >= 0:
                found.append(start + at)
                at = together.find(MARK, at + 1)
            received += len(piece)
            tail = together[-3:]

    thread = threading.Thread(target=receive)
    thread.start()
    graph.SerializeToFileDescriptor(writer)
    os.close(writer)
    thread.join()
    os.close(reader)
    assert received == graph.ByteSize()
    assert found == places


@pytest.mark.long
def test_a_file_of_three_gibibytes(ours: Api, tmp_path: Path) -> None:
    """SerializeToFile makes no holes: this one takes its room on the disk."""
    message_of(ours, tmp_path, 3 * GIB, 1).SerializeToFile(tmp_path / "whole")
    check_file(tmp_path / "whole", 3 * GIB, 1)
    read = ours.GraphProto()
    read.ParseFromFile(tmp_path / "whole", mapped(ours))
    check_message(read, 3 * GIB, 1)


@pytest.mark.long
def test_three_gibibytes_in_memory(ours: Api, tmp_path: Path) -> None:
    """Copied into memory from a file, written as bytes, and read from them: no borrowing."""
    if available() < 11 * GIB:
        pytest.skip("the file, the bytes and two messages need 11 GiB of memory")
    first, (head,) = heads(3 * GIB, 1)
    with (tmp_path / "whole").open("wb") as file:
        file.write(first + head)
        start = file.tell()
        for place in marks_of(3 * GIB):
            file.seek(start + place)
            file.write(MARK)
        file.truncate(start + 3 * GIB)
    options = ours.ParseOptions(num_threads=2, file_load_mode=ours.FileLoadMode.STREAM)
    graph = ours.GraphProto()
    graph.ParseFromFile(tmp_path / "whole", options)
    check_message(graph, 3 * GIB, 1)
    data = graph.SerializeToString(ours.SerializeOptions(num_threads=2))
    del graph
    assert len(data) == start + 3 * GIB
    assert data[:start] == first + head
    read = ours.GraphProto()
    read.ParseFromString(data, ours.ParseOptions(num_threads=2))
    del data
    check_message(read, 3 * GIB, 1)


def test_threads_copy_large_payloads(ours: Api) -> None:
    rng = np.random.default_rng(3)
    payloads = [rng.bytes(size) for size in (20_000_000, 1, 7_000_001, 0, 3_000_000, 64, 63)]
    data = b"".join(lengthed(5, lengthed(9, payload)) for payload in payloads)
    for threads in (1, 2, 5, -1):
        options = ours.ParseOptions(num_threads=threads)
        graph = ours.GraphProto()
        graph.ParseFromString(data, options)
        assert [tensor.raw_data for tensor in graph.initializer] == payloads
        written = graph.SerializeToString(ours.SerializeOptions(num_threads=threads))
        assert written == data


@pytest.mark.parametrize(("limit", "files"), [(1999, 2), (2000, 1), (2001, 1), (1, 2), (999, 2)])
def test_the_limit_of_external_files(ours: Api, tmp_path: Path, limit: int, files: int) -> None:
    graph = ours.GraphProto(initializer=[{"raw_data": b"a" * 1000}, {"raw_data": b"b" * 1000}])
    options = ours.SerializeOptions(max_external_file_size=limit)
    graph.SerializeToFile(tmp_path / "m", options, tmp_path / "d")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [*["d", "d.1"][:files], "m"]
    read = ours.GraphProto()
    read.ParseFromFile(tmp_path / "m", external_data_file=tmp_path / "d")
    assert read == graph


@pytest.mark.parametrize("change", [-1, 0, 1])
def test_limits_count_exactly(ours: Api, tmp_path: Path, change: int) -> None:
    """Each limit one below, at and one above what there is."""
    tensor = ours.TensorProto(raw_data=b"r" * 5000, name="n")
    size, data = tensor.ByteSize(), tensor.SerializeToString()
    path = tmp_path / "m"

    def works(call: Any) -> bool:
        try:
            call()
        except ValueError:
            return False
        return True

    write = ours.SerializeOptions(max_serialized_size_bytes=size + change)
    read = ours.ParseOptions(max_tensor_size_bytes=5000 + change)
    assert works(lambda: tensor.SerializeToString(write)) == (change >= 0)
    assert works(lambda: tensor.SerializeToFile(path, write)) == (change >= 0)
    assert path.exists() == (change >= 0)
    assert works(lambda: ours.TensorProto().ParseFromString(data, read)) == (change >= 0)
    threshold = ours.ParseOptions(skip_raw_data=True, raw_data_threshold=5000 + change)
    kept = ours.TensorProto()
    kept.ParseFromString(data, threshold)
    assert kept.HasField("raw_data") == (change > 0)
    tensor.SerializeToFile(
        path, ours.SerializeOptions(raw_data_threshold=5000 + change), tmp_path / "d"
    )
    assert (tmp_path / "d").exists() == (change <= 0)
    tiny = ours.ParseOptions(tiny_external_data_threshold=5000 + change)
    (tmp_path / "d").write_bytes(b"r" * 5000)
    tensor.SerializeToFile(path, ours.SerializeOptions(raw_data_threshold=0), tmp_path / "d")
    kept.ParseFromFile(path, tiny)
    assert kept.HasField("raw_data") == (change > 0)
