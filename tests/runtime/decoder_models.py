"""Small decoders in the forms in which exporters write them, made with the onnx package.

All have input_ids int64 [batch, tokens], caches [batch, heads, past, width] of two layers, and
logits [batch, tokens, VOCABULARY]. Weights are random; positions and masks change the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS = 2
HEADS = 4
KV_HEADS = 2
WIDTH = 16
HIDDEN = HEADS * WIDTH
VOCABULARY = 40
CONTEXT = 48

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


class Graph:
    """Nodes and initializers of a graph in the making."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype = np.dtype(dtype)
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def op(
        self, kind: str, *inputs: str, out: str = "", domain: str = "", **attributes: Any
    ) -> str:
        out = out or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], domain=domain, **attributes))
        return out

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.normal(size=shape) / np.sqrt(shape[0]), self.dtype)

    def input(self, name: str, kind: int, dims: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def output(self, name: str, kind: int, dims: Sequence[int | str]) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def model(self, opset: int, metadata: dict[str, str] | None = None) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        for key, value in (metadata or {}).items():
            model.metadata_props.add(key=key, value=value)
        return model

    # Parts of a decoder

    def split_heads(self, value: str, heads: int) -> str:
        shaped = self.op("Reshape", value, self.constant([0, 0, heads, WIDTH]))
        return self.op("Transpose", shaped, perm=[0, 2, 1, 3])

    def project(self, hidden: str, heads: int) -> str:
        return self.op("MatMul", hidden, self.weight(HIDDEN, heads * WIDTH))

    def embed(self) -> str:
        return self.op("Gather", self.weight(VOCABULARY, HIDDEN), "input_ids")

    def head(self, hidden: str) -> None:
        self.op("MatMul", hidden, self.weight(HIDDEN, VOCABULARY), out="logits")

    def add_attention(self, hidden: str, attended: str) -> str:
        return self.op("Add", hidden, self.op("MatMul", attended, self.weight(HIDDEN, HIDDEN)))

    def size(self, value: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", value), self.constant(axis))

    def cache_inputs(self, dims: Sequence[int | str]) -> None:
        for layer in range(LAYERS):
            for side in ("key", "value"):
                self.input(f"past_key_values.{layer}.{side}", TYPES[self.dtype.name], dims)


def _declare_outputs(graph: Graph, width: int | str, heads: int, by_side: bool) -> None:
    kind = TYPES[graph.dtype.name]
    graph.output("logits", kind, ["batch", "tokens", VOCABULARY])
    names = [(layer, side) for layer in range(LAYERS) for side in ("key", "value")]
    if by_side:
        names.sort(key=lambda item: item[1])
    for layer, side in names:
        graph.output(f"present.{layer}.{side}", kind, ["batch", heads, "total", width])


def optimum(dtype: str = "float32", seed: int = 1, **options: Any) -> onnx.ModelProto:
    """Attention spelled out, with attention_mask and position_ids, as Optimum exports."""
    graph = Graph(dtype, seed)
    graph.input("input_ids", TensorProto.INT64, ["batch", "tokens"])
    graph.input("attention_mask", TensorProto.INT64, ["batch", "past + tokens"])
    graph.input("position_ids", TensorProto.INT64, ["batch", "tokens"])
    graph.cache_inputs(["batch", HEADS, "past", WIDTH])
    zero, one = graph.constant(0), graph.constant(1)
    total = graph.size("attention_mask", 1)
    count = graph.size("input_ids", 1)
    past = graph.op("Sub", total, count)
    rows = graph.op("Unsqueeze", graph.op("Range", past, total, one), graph.constant([1]))
    seen = graph.op("LessOrEqual", graph.op("Range", zero, total, one), rows)
    nothing, hidden_score = graph.constant(0, dtype), graph.constant(-3e4, dtype)
    causal = graph.op("Where", seen, nothing, hidden_score)
    shown = graph.op("Cast", "attention_mask", to=TensorProto.BOOL)
    padding = graph.op("Where", shown, nothing, hidden_score)
    bias = graph.op("Add", causal, graph.op("Unsqueeze", padding, graph.constant([1, 2])))
    positions = graph.op("Gather", graph.weight(CONTEXT, HIDDEN), "position_ids")
    hidden = graph.op("Add", graph.embed(), positions)
    for layer in range(LAYERS):
        query = graph.split_heads(graph.project(hidden, HEADS), HEADS)
        sides = {}
        for side in ("key", "value"):
            new = graph.split_heads(graph.project(hidden, HEADS), HEADS)
            name = f"present.{layer}.{side}"
            sides[side] = graph.op(
                "Concat", f"past_key_values.{layer}.{side}", new, out=name, axis=2
            )
        keys = graph.op("Transpose", sides["key"], perm=[0, 1, 3, 2])
        scores = graph.op("Mul", graph.op("MatMul", query, keys), graph.constant(0.25, dtype))
        # Bounded, so that a row which sees nothing but its own hidden score stays a number.
        shares = graph.op("Softmax", graph.op("Max", graph.op("Add", scores, bias), hidden_score))
        mixed = graph.op("Transpose", graph.op("MatMul", shares, sides["value"]), perm=[0, 2, 1, 3])
        merged = graph.op("Reshape", mixed, graph.constant([0, 0, HIDDEN]))
        hidden = graph.add_attention(hidden, merged)
    graph.head(hidden)
    _declare_outputs(graph, WIDTH, HEADS, by_side=False)
    return graph.model(18, **options)


def genai(
    dtype: str = "float32", seed: int = 2, packed: bool = False, value_info: bool = False
) -> onnx.ModelProto:
    """GroupQueryAttention with rope inside, as onnxruntime-genai's builder writes it.

    No position_ids; a symbolic width; first all keys among the outputs, then all values.

    Args:
        packed: query, key and value come out of one product.
        value_info: the message tells the dims of what goes into attention.
    """
    graph = Graph(dtype, seed)
    graph.input("input_ids", TensorProto.INT64, ["batch", "tokens"])
    graph.input("attention_mask", TensorProto.INT64, ["batch", "total"])
    graph.cache_inputs(["batch", KV_HEADS, "past", "kv_cache_dim"])
    sums = graph.op("ReduceSum", "attention_mask", graph.constant([1]), keepdims=0)
    lengths = graph.op("Cast", graph.op("Sub", sums, graph.constant(1)), to=TensorProto.INT32)
    total = graph.op("Cast", graph.size("attention_mask", 1), to=TensorProto.INT32)
    angles = np.outer(np.arange(CONTEXT), 100.0 ** (-np.arange(0, WIDTH, 2) / WIDTH))
    cosines = graph.constant(np.cos(angles), dtype)
    sines = graph.constant(np.sin(angles), dtype)
    hidden = graph.embed()
    infos = []
    for layer in range(LAYERS):
        if packed:
            sources = [graph.project(hidden, HEADS + 2 * KV_HEADS), "", ""]
        else:
            sources = [graph.project(hidden, heads) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        if value_info:
            # What is behind it does not tell the width any more.
            sources[1:] = [graph.op("Sigmoid", source) for source in sources[1:]]
            infos += [
                helper.make_tensor_value_info(name, TYPES[dtype], ["b", "s", KV_HEADS * WIDTH])
                for name in sources[1:]
            ]
        past = [f"past_key_values.{layer}.{side}" for side in ("key", "value")]
        outputs = [f"attended.{layer}"]
        outputs += [f"present.{layer}.{side}" for side in ("key", "value")]
        graph.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [*sources, *past, lengths, total, cosines, sines],
                outputs,
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
                do_rotary=1,
            )
        )
        hidden = graph.add_attention(hidden, outputs[0])
    graph.head(hidden)
    _declare_outputs(graph, "kv_cache_dim", KV_HEADS, by_side=True)
    model = graph.model(18)
    model.graph.value_info.extend(infos)
    return model


def standard(
    dtype: str = "float32", seed: int = 3, embeds: bool = False, **options: Any
) -> onnx.ModelProto:
    """ONNX's own Attention; positions come from the past's length inside the graph.

    Args:
        embeds: the input is inputs_embeds [batch, tokens, HIDDEN] instead of input_ids.
    """
    graph = Graph(dtype, seed)
    if embeds:
        step = graph.input("inputs_embeds", TYPES[dtype], ["batch", "tokens", HIDDEN])
    else:
        step = graph.input("input_ids", TensorProto.INT64, ["batch", "tokens"])
    graph.cache_inputs(["batch", KV_HEADS, "past", WIDTH])
    past = graph.size("past_key_values.0.key", 2)
    total = graph.op("Add", past, graph.size(step, 1))
    positions = graph.op("Range", past, total, graph.constant(1))
    table = graph.weight(CONTEXT, HIDDEN)
    hidden = graph.op(
        "Add", step if embeds else graph.embed(), graph.op("Gather", table, positions)
    )
    for layer in range(LAYERS):
        sources = [graph.project(hidden, heads) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        sides = ("key", "value")
        graph.nodes.append(
            helper.make_node(
                "Attention",
                [*sources, "", *(f"past_key_values.{layer}.{side}" for side in sides)],
                [f"attended.{layer}", *(f"present.{layer}.{side}" for side in sides)],
                is_causal=1,
                q_num_heads=HEADS,
                kv_num_heads=KV_HEADS,
            )
        )
        hidden = graph.add_attention(hidden, f"attended.{layer}")
    graph.head(hidden)
    _declare_outputs(graph, WIDTH, KV_HEADS, by_side=False)
    return graph.model(23, **options)


FORMS = {"optimum": optimum, "genai": genai, "standard": standard}


def whole_run(model: onnx.ModelProto, ids: np.ndarray) -> dict[str, np.ndarray]:
    """All outputs of one run of plain onnxruntime over all tokens, with nothing before them."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    batch, count = ids.shape
    feed: dict[str, np.ndarray] = {"input_ids": ids}
    for item in session.get_inputs():
        if item.name == "attention_mask":
            feed[item.name] = np.ones((batch, count), np.int64)
        elif item.name == "position_ids":
            feed[item.name] = np.tile(np.arange(count), (batch, 1))
        elif item.name.startswith("past_key_values."):
            dtype = np.float16 if "16" in item.type else np.float32
            feed[item.name] = np.zeros((batch, item.shape[1], 0, WIDTH), dtype)
    outputs = [item.name for item in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feed), strict=True))


def random_ids(batch: int, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (batch, count))
