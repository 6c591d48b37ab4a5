"""The steps of the demo: a model with a KV cache inside, written, mapped, measured and damaged."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_light import PagedCache, onnx
from onnx_light.cli import inspect
from onnx_light.cli.demo_damage import Failure, damaged_files
from onnx_light.cli.demo_timing import Comparison, compare_with_onnx

LAYERS, HEADS, TOKENS, WIDTH, PAGE_SIZE = 8, 4, 1000, 64, 64
_MAPPED = onnx.ParseOptions(no_copy=True, file_load_mode=onnx.FileLoadMode.MMAP)

_Array = npt.NDArray[np.float16]
_Log = Callable[[str], None]


@dataclass
class Way:
    """One way to write the model and to read it back.

    Attributes:
        name: how it was written.
        nbytes: of the file, or of all files together.
        write_seconds, read_seconds: of one run.
        equal: whether every key and value of every layer came back bit for bit.
    """

    name: str
    nbytes: int
    write_seconds: float
    read_seconds: float
    equal: bool


@dataclass
class Fork:
    """What two continuations of one cache cost.

    Attributes:
        tokens: in the common past and in each of the two.
        seconds: of one append of one token.
        separate_nbytes: the messages of past and both continuations.
        unchanged: whether the past still holds what it held.
    """

    tokens: list[int]
    seconds: float
    separate_nbytes: list[int]
    unchanged: bool


@dataclass
class Report:
    """All that the demo found; `ok` if everything that was checked is true."""

    cache: str
    tree: inspect.Inspection
    ways: list[Way]
    fork: Fork
    comparisons: list[Comparison]
    onnx_version: str
    same_bytes: bool | None
    failures: list[Failure]
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return (
            all(way.equal for way in self.ways)
            and self.fork.unchanged
            and self.same_bytes is not False
            and all(failure.refused for failure in self.failures)
        )

    def to_dict(self) -> dict[str, Any]:
        result = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"ok": self.ok, **result, "tree": self.tree.to_dict()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def run(log: _Log) -> Report:
    """Does everything in a temporary folder, which is gone afterwards."""
    begin = time.perf_counter()
    log("building the model")
    arrays = _make_arrays()
    caches = [PagedCache.from_arrays(k, v, page_size=PAGE_SIZE) for k, v in arrays]
    model = _make_model(caches)
    with tempfile.TemporaryDirectory(prefix="onnx-light-demo-") as name:
        folder = Path(name)
        log(f"writing and reading in {folder}")
        ways = _write_every_way(model, arrays, folder)
        tree = inspect.inspect_message(model, "model.onnx", depth=8, limit=2)
        fork = _fork(caches[0], arrays[0])
        log("damaging files")
        failures = damaged_files(model, folder)
        comparisons: list[Comparison] = []
        version, same_bytes = "", None
        if importlib.util.find_spec("onnx") is not None:
            log("measuring beside onnx")
            comparisons, version, same_bytes = compare_with_onnx(model, folder)
    report = Report(repr(caches[0]), tree, ways, fork, comparisons, version, same_bytes, failures)
    report.seconds = time.perf_counter() - begin
    return report


def _make_arrays() -> list[tuple[_Array, _Array]]:
    random = np.random.default_rng(1)
    shape = (1, HEADS, TOKENS, WIDTH)
    return [
        (
            random.standard_normal(shape, np.float32).astype(np.float16),
            random.standard_normal(shape, np.float32).astype(np.float16),
        )
        for _ in range(LAYERS)
    ]


def _make_model(caches: list[PagedCache]) -> onnx.ModelProto:
    model = onnx.ModelProto(ir_version=10, producer_name="onnx-light demo")
    model.opset_import.add(domain="", version=23)
    model.add_graph().name = "state"
    for i, cache in enumerate(caches):
        model.graph.paged_cache_initializer.append(cache.to_proto(f"layers.{i}"))
    return model


def _write_every_way(
    model: onnx.ModelProto, arrays: list[tuple[_Array, _Array]], folder: Path
) -> list[Way]:
    path, data = folder / "model.onnx", folder / "model.data"
    serialized = b""

    def to_string() -> None:
        nonlocal serialized
        serialized = model.SerializeToString()

    def to_stream() -> None:
        with path.open("wb") as stream:
            model.SerializeToOstream(stream)

    def to_descriptor() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            model.SerializeToFileDescriptor(descriptor)
        finally:
            os.close(descriptor)

    def read_file(options: onnx.ParseOptions | None = None) -> onnx.ModelProto:
        result = onnx.ModelProto()
        result.ParseFromFile(path, options)
        return result

    def read_external() -> onnx.ModelProto:
        result = onnx.ModelProto()
        result.ParseFromFile(path, external_data_file=data)
        return result

    aligned = onnx.SerializeOptions(alignment=64)
    ways: list[tuple[str, Callable[[], None], Callable[[], onnx.ModelProto]]] = [
        ("string", to_string, lambda: onnx.ModelProto.FromString(serialized)),
        ("file", lambda: model.SerializeToFile(path), read_file),
        ("file, mapped back", lambda: model.SerializeToFile(path), lambda: read_file(_MAPPED)),
        (
            "file and external data",
            lambda: model.SerializeToFile(path, aligned, data),
            read_external,
        ),
        ("stream", to_stream, read_file),
        ("file descriptor", to_descriptor, read_file),
    ]
    result = []
    for name, write, read in ways:
        path.unlink(missing_ok=True)
        write_seconds = _seconds(write)
        written = [file.stat().st_size for file in (path, data) if file.exists()]
        begin = time.perf_counter()
        back = read()
        read_seconds = time.perf_counter() - begin
        nbytes = sum(written) if written else len(serialized)
        result.append(Way(name, nbytes, write_seconds, read_seconds, _holds(back, arrays)))
        data.unlink(missing_ok=True)
    return result


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _holds(model: onnx.ModelProto, arrays: list[tuple[_Array, _Array]]) -> bool:
    caches = [PagedCache.from_proto(proto) for proto in model.graph.paged_cache_initializer]
    return len(caches) == len(arrays) and all(
        _same_bits(cache.key_array(), key) and _same_bits(cache.value_array(), value)
        for cache, (key, value) in zip(caches, arrays, strict=True)
    )


def _same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _fork(past: PagedCache, arrays: tuple[_Array, _Array]) -> Fork:
    row = np.ones((1, HEADS, 1, WIDTH), np.float16)
    first = past.append(row, row)
    begin = time.perf_counter()
    second = past.append(-row, row)
    seconds = time.perf_counter() - begin
    sizes = []
    for cache in (past, first, second):
        buffer = io.BytesIO()
        cache.to_proto().SerializeToOstream(buffer)
        sizes.append(buffer.tell())
    unchanged = _same_bits(past.key_array(), arrays[0]) and _same_bits(
        past.value_array(), arrays[1]
    )
    return Fork([len(past), len(first), len(second)], seconds, sizes, unchanged)
