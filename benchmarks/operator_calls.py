"""Operators in ONNX Runtime: a call of ours beside the same without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from measuring import Call, Report, compare
from onnx import ModelProto, NodeProto, TensorProto, helper

from onnx_light import PagedCache
from onnx_light.cache import paged_attention
from onnx_light.runtime import get_library_path, handle

_NODES = 200  # in one model, so that what the run itself takes does not count
_RUNS = 50
_WIDTH = 8  # so little that the kernel's own work is small


def model(nodes: Sequence[NodeProto], output: str, kind: Any) -> ModelProto:
    """A model of `nodes` that take Q, K, V and the handle `past`."""
    row = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 1, 1, _WIDTH])
    cache = helper.make_tensor_type_proto(TensorProto.INT64, [])
    inputs = {"Q": row, "K": row, "V": row, "past": cache}
    graph = helper.make_graph(
        nodes,
        "calls",
        [helper.make_value_info(name, its) for name, its in inputs.items()],
        [helper.make_value_info(output, kind)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.rt", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def runs(operator: str, domain: str, inputs: Sequence[str], past: PagedCache) -> Call:
    """Runs a model that has the operator _NODES times, with one thread, _RUNS times."""
    nodes = [
        helper.make_node(operator, inputs, [f"result{n}"], domain=domain) for n in range(_NODES)
    ]
    attends = operator == "PagedAttention"
    kind = TensorProto.FLOAT if attends else TensorProto.INT64
    output = f"result{_NODES - 1}"
    type_proto = helper.make_tensor_type_proto(kind, [1, 1, 1, _WIDTH] if attends else [])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.register_custom_ops_library(get_library_path())
    session = onnxruntime.InferenceSession(
        model(nodes, output, type_proto).SerializeToString(), options
    )
    row = np.ones((1, 1, 1, _WIDTH), np.float32)
    feed = {"Q": row, "K": row, "V": row, "past": np.array(handle(past))}

    def run() -> None:
        for _ in range(_RUNS):
            session.run([output], feed)

    return run


def function(past: PagedCache) -> Call:
    """The function that PagedAttention calls, as often, from Python."""
    row = np.ones((1, 1, 1, _WIDTH), np.float32)

    def run() -> None:
        for _ in range(_RUNS * _NODES):
            paged_attention(row, row, row, past, num_threads=1)

    return run


def main() -> None:
    report = Report(__doc__)
    rows = np.ones((1, 1, 8, _WIDTH), np.float32)
    past = PagedCache.from_arrays(rows, rows)
    calls = _RUNS * _NODES
    attention = runs("PagedAttention", "ai.rt", ["Q", "K", "V", "past"], past)
    length = runs("PagedCacheLength", "ai.rt", ["past"], past)
    identity = runs("Identity", "", ["past"], past)
    report.comparisons(
        "A node with next to nothing to do, one thread",
        "the other",
        [
            compare("PagedCacheLength, and Identity", length, identity, calls=calls),
            compare("PagedAttention, and its function", attention, function(past), calls=calls),
        ],
    )
    report.finish()


if __name__ == "__main__":
    main()
