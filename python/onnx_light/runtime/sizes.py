"""Heads and width of a cache where the dims of the model's input leave them open."""

from __future__ import annotations

import json
import math
from typing import Any

from onnx_light.errors import CodedError
from onnx_light.onnx import AttributeProto, GraphProto, NodeProto
from onnx_light.runtime.bindings import Binding
from onnx_light.runtime.model import Model

_CONFIG = "genai_config.json"
_CONFIG_KEYS = {"heads": "num_key_value_heads", "width": "head_size"}
# Where com.microsoft's GroupQueryAttention has its inputs.
_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE = range(5)
# Nodes that keep the last dim of their first input.
_KEEPS_WIDTH = {"Add", "Cast", "Identity", "Mul"}


def cache_sizes(binding: Binding, model: Model) -> tuple[int, int]:
    """The number of heads and the width of the keys or values of a layer.

    They come from the dims of the input or of the output, from the GroupQueryAttention node that
    takes the input, or from genai_config.json beside the model.

    Raises:
        CodedError: ``runtime.size``: nothing tells.
    """
    heads = _known(binding, 1)
    width = _known(binding, 3)
    node = _attention_node(binding, model.graph)
    if node is not None and model.graph is not None:
        heads = heads or _integer_attribute(node, "kv_num_heads")
        width = width or _width_at(node, binding.side, model.graph)
    heads = heads or _from_config(model, "heads")
    width = width or _from_config(model, "width")
    if heads is None or width is None:
        what = "number of heads" if heads is None else "width"
        raise CodedError(
            "runtime.size",
            binding.input,
            f"dims {list(binding.dims)}: nothing tells the {what} of an empty cache; feed one "
            f"[batch, heads, 0, width] in the first run, or put {_CONFIG} beside the model",
        )
    return heads, width


def _known(binding: Binding, axis: int) -> int | None:
    for dims in (binding.dims, binding.present_dims):
        size = dims[axis] if len(dims) == 4 else None
        if isinstance(size, int):
            return size
    return None


def _from_config(model: Model, name: str) -> int | None:
    if model.path is None:
        return None
    path = model.path.parent / _CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CodedError("runtime.config", str(path), f"not JSON: {error}") from error
    value: Any = config
    for key in ("model", "decoder", _CONFIG_KEYS[name]):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int) and value > 0 else None


def _attention_node(binding: Binding, graph: GraphProto | None) -> NodeProto | None:
    index = _PAST_KEY if binding.side == "key" else _PAST_VALUE
    for node in graph.node if graph is not None else ():
        is_attention = node.op_type == "GroupQueryAttention"
        if is_attention and len(node.input) > index and node.input[index] == binding.input:
            return node
    return None


def _attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((item for item in node.attribute if item.name == name), None)


def _integer_attribute(node: NodeProto, name: str) -> int | None:
    attribute = _attribute(node, name)
    return attribute.i if attribute is not None else None


def _width_at(node: NodeProto, side: str, graph: GraphProto) -> int | None:
    """From the last dim of what the attention node takes, and its numbers of heads."""
    heads = _integer_attribute(node, "num_heads")
    kv_heads = _integer_attribute(node, "kv_num_heads")
    if not heads or not kv_heads:
        return None
    source = node.input[_KEY if side == "key" else _VALUE]
    parts = kv_heads
    if not source:  # query, key and value in one tensor
        source = node.input[_QUERY]
        parts = heads + 2 * kv_heads
    total = _last_dim(source, graph)
    return total // parts if total is not None and total % parts == 0 else None


def _last_dim(name: str, graph: GraphProto) -> int | None:
    """The last dim of a value, as far as the message tells it."""
    declared = {value.name: value for value in graph.value_info}
    producers = {output: node for node in graph.node for output in node.output}
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for _ in range(len(graph.node) + 1):  # a cycle is no valid model, and no endless loop here
        if name in declared:
            shape = declared[name].type.tensor_type.shape.dim
            if len(shape) and shape[-1].HasField("dim_value"):
                return shape[-1].dim_value
        node = producers.get(name)
        if node is None:
            return None
        if node.op_type == "MatMulNBits":
            return _integer_attribute(node, "N")
        if node.op_type == "MatMul":
            dims = weights.get(node.input[1], ())
            return dims[-1] if dims else None
        if node.op_type not in _KEEPS_WIDTH:
            return None
        for other in node.input[1:]:  # a bias
            if math.prod(weights.get(other, ())) > 1:
                return weights[other][-1]
        name = node.input[0]
    return None
