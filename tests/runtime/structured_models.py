"""Models with caches as values, and what they should compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_light.onnx import ModelProto
from onnx_light.runtime import cache_type

QUERY_HEADS, HEADS, WIDTH = 4, 2, 8
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
value_info = helper.make_tensor_value_info


def cache(name: str) -> Any:
    """A placeholder for a value whose type becomes that of a cache."""
    return value_info(name, INT64, ["cache"])


def rows(name: str, heads: int = HEADS) -> Any:
    return value_info(name, FLOAT, [1, heads, None, WIDTH])


def paged(names: str, outputs: str, name: str = "", **attributes: Any) -> Any:
    """PagedAttention with inputs and outputs as words."""
    return helper.make_node(
        "PagedAttention", names.split(), outputs.split(), name or None, domain="ai.rt", **attributes
    )


def _set_types(values: Any, **dims: int) -> None:
    for value in values:
        dim = value.type.tensor_type.shape.dim
        if len(dim) == 1 and dim[0].dim_param == "cache":
            value.type = cache_type(**dims)


def _in_subgraphs(nodes: Any) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                for values in (attribute.g.input, attribute.g.output, attribute.g.value_info):
                    _set_types(values)
                _in_subgraphs(attribute.g.node)


def make(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    bind: dict[str, str] | None = None,
    functions: Sequence[Any] = (),
    initializers: Sequence[Any] = (),
    dims: dict[str, int] | None = None,
) -> ModelProto:
    graph = helper.make_graph(list(nodes), "main", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.rt", 1)]
    opsets += [helper.make_opsetid("local", 1)] if functions else []
    made = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)
    model = ModelProto.FromString(made.SerializeToString())
    for values in (model.graph.input, model.graph.output, model.graph.value_info):
        _set_types(values, **(dims or {}))
    _in_subgraphs(model.graph.node)
    for function in model.functions:
        _in_subgraphs(function.node)
    for past, present in (bind or {}).items():
        model.graph.persistent_bindings.add(input_name=past, output_name=present)
    return model


def subgraph(name: str, nodes: Any, inputs: Any, outputs: Any) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs))


def decoder(layers: int = 2, **attributes: Any) -> ModelProto:
    """Layers of attention, one after the other: q, k, v in, y out, caches bound."""
    nodes, caches, presents = [], [], []
    query = "q"
    for layer in range(layers):
        past, present = f"layers.{layer}", f"present.layers.{layer}"
        nodes.append(
            paged(f"{query} k v {past}", f"y.{layer} {present}", f"attention.{layer}", **attributes)
        )
        query = f"y.{layer}"
        caches.append(cache(past))
        presents.append(cache(present))
    nodes.append(helper.make_node("Identity", [query], ["y"]))
    return make(
        nodes,
        [rows("q", QUERY_HEADS), rows("k"), rows("v"), *caches],
        [rows("y", QUERY_HEADS), *presents],
        bind={f"layers.{layer}": f"present.layers.{layer}" for layer in range(layers)},
        dims={"batch": 1, "heads": HEADS, "key_width": WIDTH, "value_width": WIDTH},
    )


def feeds(tokens: int, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal((1, heads, tokens, WIDTH)).astype(np.float32)
        for name, heads in (("q", QUERY_HEADS), ("k", HEADS), ("v", HEADS))
    }
