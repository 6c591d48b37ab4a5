"""Messages: parsing, writing and Python access beside the package `onnx` (protobuf's upb)."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx as peer
from measuring import Comparison, Report, available_memory, compare

from onnx_light import onnx as ours
from onnx_light.cli.demo_model import find_model
from onnx_light.models import cached_model

_NODES = 100_000
_LOOPS = 20_000


def read_and_write(
    what: str, name: str, data: bytes, reach: tuple[float | None, float | None]
) -> list[Comparison]:
    """Parses and writes a message of the class `name`."""
    our_class, peer_class = getattr(ours, name), getattr(peer, name)
    message, peer_message = our_class.FromString(data), peer_class.FromString(data)
    if message.SerializeToString() != peer_message.SerializeToString():
        raise AssertionError(f"{what}: the two write other bytes")
    return [
        compare(
            f"{what}: parse",
            lambda: our_class.FromString(data),
            lambda: peer_class.FromString(data),
            reach=reach[0],
        ),
        compare(
            f"{what}: write",
            message.SerializeToString,
            peer_message.SerializeToString,
            reach=reach[1],
        ),
    ]


def many_nodes() -> Any:
    model = peer.ModelProto(ir_version=10)
    model.graph.name = "g"
    for i in range(_NODES):
        node = model.graph.node.add(op_type="Conv", name=f"node_{i}", output=[f"x{i + 1}"])
        node.input.extend([f"x{i}", f"w{i}"])
        node.attribute.add(name="kernel_shape", type=7).ints.extend([3, 3])
        node.attribute.add(name="pads", type=7).ints.extend([1, 1, 1, 1])
    return model


def many_tensors() -> Any:
    graph = peer.GraphProto(name="g")
    for i in range(100_000):
        graph.initializer.add(name=f"scale_{i}", data_type=1, dims=[16], raw_data=bytes(64))
    return graph


def many_numbers() -> Any:
    tensor = peer.TensorProto(data_type=7, dims=[10**7])
    tensor.int64_data.extend(np.random.default_rng(0).integers(0, 1 << 28, 10**7).tolist())
    return tensor


def structure() -> list[Comparison]:
    found = read_and_write(
        f"{_NODES:,} nodes", "ModelProto", many_nodes().SerializeToString(), (0.5, 0.5)
    )
    found += read_and_write(
        "100,000 small tensors", "GraphProto", many_tensors().SerializeToString(), (None, None)
    )
    found += read_and_write(
        "10 million packed int64", "TensorProto", many_numbers().SerializeToString(), (1 / 3, None)
    )
    graph = cached_model(find_model(None)).read_bytes()
    what = f"the graph of SmolLM2-135M ({len(graph) / 1e3:.0f} kB)"
    return found + read_and_write(what, "ModelProto", graph, (None, None))


def large_payloads() -> list[Comparison]:
    """1 GiB of raw data in 16 tensors, or an eighth of the memory that is there."""
    size = min(1 << 30, available_memory() // 8) // 16
    graph = peer.GraphProto(name="g")
    for i in range(16):
        graph.initializer.add(name=f"w{i}", data_type=2, dims=[size], raw_data=bytes(size))
    data = graph.SerializeToString()
    del graph
    what = f"{16 * size / 2**30:.2g} GiB of payloads"
    borrow = ours.ParseOptions(no_copy=True)

    def peer_parse() -> object:
        return peer.GraphProto.FromString(data)

    found = [
        compare(
            f"{what}: parse",
            lambda: ours.GraphProto.FromString(data),
            peer_parse,
            rounds=5,
        ),
        compare(
            f"{what}: parse, no copy",
            lambda: ours.GraphProto().ParseFromString(data, borrow),
            peer_parse,
            rounds=5,
            reach=0.1,
        ),
    ]
    message, peer_message = ours.GraphProto(), peer_parse()
    message.ParseFromString(data, borrow)
    found.append(
        compare(
            f"{what}: write",
            message.SerializeToString,
            peer_message.SerializeToString,  # type: ignore[attr-defined]
            rounds=3,
            reach=1 / 3,
        )
    )
    del peer_message
    return [*found, open_file(what, data)]


def open_file(what: str, data: bytes) -> Comparison:
    mapped = ours.ParseOptions(no_copy=True, file_load_mode=ours.FileLoadMode.MMAP)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        path.write_bytes(data)
        return compare(
            f"{what}: open the file, mapped",
            lambda: ours.GraphProto().ParseFromFile(path, mapped),
            lambda: peer.GraphProto.FromString(path.read_bytes()),
            rounds=3,
        )


def loop(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(_LOOPS):
            call()

    return run


def python_access() -> list[Comparison]:
    """Times of a single access; the same code on both."""
    data = many_nodes().SerializeToString()
    graphs = ours.ModelProto.FromString(data).graph, peer.ModelProto.FromString(data).graph

    def both(task: str, make: Callable[[Any, Any], Callable[[], object]]) -> Comparison:
        """`make` gets a module and a graph and returns what is done once."""
        runs = [loop(make(m, g)) for m, g in zip((ours, peer), graphs, strict=True)]
        return compare(task, *runs, calls=_LOOPS, reach=1.0)

    def iterate(graph: Any) -> Callable[[], object]:
        return lambda: [node.op_type for node in graph.node]

    return [
        both("read an attribute", lambda _, g: attribute_reader(g.node[5])),
        both("write an attribute", lambda _, g: attribute_writer(g.node[5])),
        both("len(graph.node)", lambda _, g: lambda: len(g.node)),
        both("graph.node[i]", lambda _, g: lambda: g.node[0]),
        both("node.input[0]", lambda _, g: input_reader(g.node[5])),
        compare(
            "iterate over nodes, one attribute",
            iterate(graphs[0]),
            iterate(graphs[1]),
            calls=_NODES,
            reach=1.0,
        ),
        both("graph.node.add(keywords)", node_adder),
        both("NodeProto(keywords)", node_maker),
        both("HasField", lambda _, g: field_asker(g.node[5])),
    ]


def attribute_reader(node: Any) -> Callable[[], object]:
    return lambda: node.name


def attribute_writer(node: Any) -> Callable[[], object]:
    def write() -> None:
        node.name = "another name"

    return write


def input_reader(node: Any) -> Callable[[], object]:
    return lambda: node.input[0]


def field_asker(node: Any) -> Callable[[], object]:
    return lambda: node.HasField("name")


def node_adder(module: Any, _: Any) -> Callable[[], object]:
    """Adds to one graph that grows; both grow as fast."""
    graph = module.GraphProto()
    return lambda: graph.node.add(op_type="Add", input=["a", "b"], output=["c"], name="n")


def node_maker(module: Any, _: Any) -> Callable[[], object]:
    return lambda: module.NodeProto(op_type="Add", input=["a", "b"], output=["c"], name="n")


def main() -> None:
    report = Report("Messages beside the package onnx.")
    report.comparisons("Structure", "onnx", structure())
    gc.collect()
    report.comparisons("Payloads", "onnx", large_payloads())
    report.comparisons("Python, one access", "onnx", python_access())
    report.finish()


if __name__ == "__main__":
    main()
