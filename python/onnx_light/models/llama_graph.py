"""The ONNX graph of a llama-architecture decoder.

Inputs: `input_ids` int64 [1, tokens]; the state of every layer; `num_logits`, an int64 scalar with
an initializer of 1: for how many of the last tokens logits are wanted. Outputs: `logits` float32
[1, num_logits, vocabulary] and the new state. Positions follow from the length of the state, inside
the graph. More logits than tokens, an id past the vocabulary and a position past the rope tables
make the run fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from onnx_light.models.coded_weights import BLOCK, CodedMatrix, CodedPart
from onnx_light.models.graph_builder import GraphBuilder
from onnx_light.models.llama_config import LlamaConfig

MICROSOFT = "com.microsoft"  # the domain of onnxruntime's own operators

# The least accurate type that MatMulNBits may compute in; without it, it may round to 8 bits.
_FLOAT32 = 1


class AttentionState(Protocol):
    """How the graph keeps keys and values between runs."""

    def declare_inputs(self, builder: GraphBuilder) -> None:
        """Adds the graph's inputs for the state."""

    def past_length(self, builder: GraphBuilder) -> str:
        """The number of tokens in the state, an int64 [1]."""

    def attend(self, builder: GraphBuilder, layer: int, query: str, key: str, value: str) -> str:
        """Attention of one layer over past and new tokens, causal.

        Args:
            query: float32 [1, tokens, heads * width], rotated.
            key: float32 [1, tokens, kv_heads * width], rotated.
            value: float32 [1, tokens, kv_heads * width].

        Returns:
            float32 [1, tokens, heads * width].
        """

    def declare_outputs(self, builder: GraphBuilder) -> None:
        """Adds the graph's outputs for the state."""


class StandardAttention:
    """The state as tensors `past_key_values.N.key` and `.value`, attended by ONNX Attention.

    They are float32 [1, kv_heads, past, width]; the new ones are `present.N.key` and `.value`.
    """

    def __init__(self, config: LlamaConfig) -> None:
        self.config = config

    def declare_inputs(self, builder: GraphBuilder) -> None:
        for layer in range(self.config.layers):
            for side in ("key", "value"):
                builder.input(f"past_key_values.{layer}.{side}", "float32", self._dims("past"))

    def past_length(self, builder: GraphBuilder) -> str:
        return builder.node("Shape", ["past_key_values.0.key"], "past_length", start=2, end=3)

    def attend(self, builder: GraphBuilder, layer: int, query: str, key: str, value: str) -> str:
        past = [f"past_key_values.{layer}.{side}" for side in ("key", "value")]
        present = [f"present.{layer}.{side}" for side in ("key", "value")]
        return builder.node(
            "Attention",
            [query, key, value, "", *past],
            [f"layers.{layer}.attention", *present],
            is_causal=1,
            q_num_heads=self.config.heads,
            kv_num_heads=self.config.kv_heads,
        )

    def declare_outputs(self, builder: GraphBuilder) -> None:
        for layer in range(self.config.layers):
            for side in ("key", "value"):
                builder.output(f"present.{layer}.{side}", "float32", self._dims("total"))

    def _dims(self, tokens: str) -> list[int | str]:
        return [1, self.config.kv_heads, tokens, self.config.width]


class LlamaGraph:
    """Builds the graph; the weights named in `weights.weight_sources` are added by the caller."""

    def __init__(
        self,
        builder: GraphBuilder,
        config: LlamaConfig,
        state: AttentionState,
        coded: Mapping[str, CodedMatrix],
    ) -> None:
        """`coded`: the matrices whose weights are those of `coded_arrays`."""
        self.builder = builder
        self.config = config
        self.state = state
        self.coded = coded

    def build(self) -> None:
        """Adds everything but the weights and the rope tables `rope.cos` and `rope.sin`."""
        builder, config = self.builder, self.config
        builder.input("input_ids", "int64", [1, "tokens"])
        self.state.declare_inputs(builder)
        builder.input("num_logits", "int64", [])
        builder.constant("num_logits", np.array(1, np.int64))
        builder.constant("zero", np.array([0], np.int64))
        builder.constant("one", np.array(1, np.int64))
        self._rope_rows()
        hidden = builder.node("Gather", ["token_embd.weight", "input_ids"], "embedding")
        for layer in range(config.layers):
            hidden = self._attention_block(layer, hidden)
            hidden = self._feed_forward_block(layer, hidden)
        self._head(hidden)
        builder.output("logits", "float32", [1, "num_logits", config.vocabulary])
        self.state.declare_outputs(builder)

    def _rope_rows(self) -> None:
        """`cos` and `sin` [1, tokens, width / 2] of the new tokens' positions."""
        builder = self.builder
        first = self.state.past_length(builder)
        tokens = builder.node("Shape", ["input_ids"], "tokens", start=1, end=2)
        end = builder.node("Add", [first, tokens], "total_length")
        first = builder.node("Squeeze", [first], "first_position")
        end = builder.node("Squeeze", [end], "end_position")
        positions = builder.node("Range", [first, end, "one"], "position_row")
        positions = builder.node("Unsqueeze", [positions, "zero"], "position_ids")
        builder.node("Gather", ["rope.cos", positions], "cos")
        builder.node("Gather", ["rope.sin", positions], "sin")

    def _norm(self, weight: str, hidden: str, output: str) -> str:
        return self.builder.node(
            "RMSNormalization", [hidden, weight], output, axis=-1, epsilon=self.config.epsilon
        )

    def _project(self, values: str, weight: str, output: str) -> str:
        """[..., in] to [..., out] by the matrix `weight`."""
        if weight in self.coded:
            return self._coded_project(values, weight, output)
        return self.builder.node("MatMul", [values, weight], output)

    def _coded_project(self, values: str, weight: str, output: str) -> str:
        form = self.coded[weight]
        if len(form.parts) == 1:
            return self._part_project(values, weight, form.parts[0], output)
        summands = [
            self._part_project(values, weight, part, output + part.suffix) for part in form.parts
        ]
        return self.builder.node("Add", summands, output)

    def _part_project(self, values: str, weight: str, part: CodedPart, output: str) -> str:
        form, name = self.coded[weight], weight + part.suffix
        zeros = [] if part.zero else [name + ".zeros"]
        return self.builder.node(
            "MatMulNBits",
            [values, name + ".codes", name + ".scales", *zeros],
            output,
            domain=MICROSOFT,
            K=form.columns,
            N=form.rows,
            bits=4,
            block_size=BLOCK,
            accuracy_level=_FLOAT32,
        )

    def _rotate(self, values: str, heads: int, output: str) -> str:
        return self.builder.node(
            "RotaryEmbedding", [values, "cos", "sin"], output, interleaved=0, num_heads=heads
        )

    def _attention_block(self, layer: int, hidden: str) -> str:
        builder, config = self.builder, self.config
        block, name = f"blk.{layer}.", f"layers.{layer}."
        normed = self._norm(block + "attn_norm.weight", hidden, name + "attention_norm")
        query = self._project(normed, block + "attn_q.weight", name + "query")
        key = self._project(normed, block + "attn_k.weight", name + "key")
        value = self._project(normed, block + "attn_v.weight", name + "value")
        query = self._rotate(query, config.heads, name + "query_rotated")
        key = self._rotate(key, config.kv_heads, name + "key_rotated")
        mixed = self.state.attend(builder, layer, query, key, value)
        out = self._project(mixed, block + "attn_output.weight", name + "attention_out")
        return builder.node("Add", [hidden, out], name + "after_attention")

    def _feed_forward_block(self, layer: int, hidden: str) -> str:
        builder = self.builder
        block, name = f"blk.{layer}.", f"layers.{layer}."
        normed = self._norm(block + "ffn_norm.weight", hidden, name + "feed_forward_norm")
        gate = self._project(normed, block + "ffn_gate.weight", name + "gate")
        sigmoid = builder.node("Sigmoid", [gate], name + "gate_sigmoid")
        gate = builder.node("Mul", [gate, sigmoid], name + "gate_silu")
        up = self._project(normed, block + "ffn_up.weight", name + "up")
        product = builder.node("Mul", [gate, up], name + "gated")
        out = self._project(product, block + "ffn_down.weight", name + "down")
        return builder.node("Add", [hidden, out], name + "after_feed_forward")

    def _head(self, hidden: str) -> None:
        """Logits of the last tokens. Split, unlike Slice, refuses a wrong number of them."""
        builder = self.builder
        wanted = builder.node("Unsqueeze", ["num_logits", "zero"], "num_logits_row")
        skipped = builder.node("Sub", ["tokens", wanted], "num_skipped")
        sizes = builder.node("Concat", [skipped, wanted], "split_sizes", axis=0)
        # The first one names the node, and so onnxruntime's error.
        builder.node("Split", [hidden, sizes], ["hidden_before_num_logits", "hidden_last"], axis=1)
        normed = self._norm("output_norm.weight", "hidden_last", "output_norm")
        rows = builder.node("Squeeze", [normed, "zero"], "output_rows")
        table = "token_embd.weight" if self.config.tied else "output.weight"
        if table in self.coded:
            logits = self._coded_project(rows, table, "logits_rows")
        else:
            logits = builder.node("Gemm", [rows, table], "logits_rows", transB=1)
        builder.node("Unsqueeze", [logits, "zero"], "logits")
