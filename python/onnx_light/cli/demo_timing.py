"""Times of this library beside those of the `onnx` package: medians of interleaved runs."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_light import onnx

RUNS = 15
_NODES = 20_000


@dataclass
class Comparison:
    """One task done by both.

    Attributes:
        task: what was done.
        seconds, onnx_seconds: medians of runs that alternate.
        ratio: onnx's time over ours; over 1 we are faster.
    """

    task: str
    seconds: float
    onnx_seconds: float
    ratio: float


def compare_with_onnx(model: onnx.ModelProto, folder: Path) -> tuple[list[Comparison], str, bool]:
    """Times, the version of `onnx`, and whether it writes the bytes back that we wrote."""
    peer: Any = importlib.import_module("onnx")
    payloads = model.SerializeToString()
    same_bytes = peer.ModelProto.FromString(payloads).SerializeToString() == payloads
    nodes = _many_nodes().SerializeToString()
    comparisons = []
    for what, data in (("KV cache", payloads), (f"{_NODES:,} nodes", nodes)):
        comparisons += _compare_model(peer, what, data, folder / "timed.onnx")
    comparisons += _compare_python(peer, nodes)
    return comparisons, peer.__version__, same_bytes


def _many_nodes() -> onnx.ModelProto:
    model = onnx.ModelProto(ir_version=10)
    graph = model.graph
    graph.name = "chain"
    for i in range(_NODES):
        node = graph.node.add(name=f"node_{i}", op_type="Gemm")
        node.input.extend([f"x{i}", f"w{i}"])
        node.output.append(f"x{i + 1}")
        node.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, f=0.5)
    return model


def _compare_model(peer: Any, what: str, data: bytes, path: Path) -> list[Comparison]:
    ours = onnx.ModelProto.FromString(data)
    theirs = peer.ModelProto.FromString(data)
    path.write_bytes(data)
    mapped = onnx.ParseOptions(no_copy=True, file_load_mode=onnx.FileLoadMode.MMAP)

    def open_mapped() -> None:
        onnx.ModelProto().ParseFromFile(path, mapped)

    def open_with_peer() -> None:
        peer.ModelProto.FromString(path.read_bytes())

    def write(message: Any) -> Callable[[], object]:
        return lambda: message.SerializeToString()

    return [
        _compare(
            f"{what}: parse",
            lambda: onnx.ModelProto.FromString(data),
            lambda: peer.ModelProto.FromString(data),
        ),
        _compare(f"{what}: write", write(ours), write(theirs)),
        _compare(f"{what}: open a file (ours mapped)", open_mapped, open_with_peer),
    ]


def _compare_python(peer: Any, nodes: bytes) -> list[Comparison]:
    def walk(model: Any) -> Callable[[], object]:
        return lambda: sum(len(node.name) + len(node.input[0]) for node in model.graph.node)

    def build(module: Any) -> Callable[[], object]:
        def make() -> None:
            graph = module.GraphProto()
            for _ in range(_NODES // 4):
                node = graph.node.add()
                node.op_type = "Relu"
                node.input.append("x")

        return make

    return [
        _compare(
            f"{_NODES:,} nodes: read names in Python",
            walk(onnx.ModelProto.FromString(nodes)),
            walk(peer.ModelProto.FromString(nodes)),
        ),
        _compare(f"{_NODES // 4:,} nodes: build in Python", build(onnx), build(peer)),
    ]


def _compare(task: str, ours: Callable[[], object], theirs: Callable[[], object]) -> Comparison:
    times: tuple[list[float], list[float]] = ([], [])
    for run in range(RUNS + 1):
        for seconds, call in zip(times, (ours, theirs), strict=True):
            begin = time.perf_counter()
            result = call()
            duration = time.perf_counter() - begin
            del result
            if run > 0:  # the first warms caches
                seconds.append(duration)
    mine, other = (statistics.median(seconds) for seconds in times)
    return Comparison(task, mine, other, other / mine)
