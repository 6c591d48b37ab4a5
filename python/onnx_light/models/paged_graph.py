"""Decoders that attend on paged caches."""

from __future__ import annotations

from collections.abc import Mapping

from onnx_light.models._messages import ModelProto, TensorProto, ValueInfoProto
from onnx_light.models.coded_weights import CodedMatrix
from onnx_light.models.graph_builder import GraphBuilder
from onnx_light.models.llama_config import LlamaConfig
from onnx_light.models.llama_graph import AttentionState, LlamaGraph
from onnx_light.runtime.cache_type import cache_type
from onnx_light.runtime.flow import DOMAIN

_OPSET = 1


class PagedAttentionState:
    """The state as caches `layers.N`, attended by PagedAttention.

    The new ones are `present.layers.N`, which are bound to the inputs.
    """

    def __init__(self, config: LlamaConfig, page_size: int, policy: str) -> None:
        self.config = config
        self.page_size = page_size
        self.policy = policy

    def declare_inputs(self, builder: GraphBuilder) -> None:
        for layer in range(self.config.layers):
            self._declare(builder.graph.input.add(name=f"layers.{layer}"))

    def past_length(self, builder: GraphBuilder) -> str:
        end = builder.node("PagedCacheLength", ["layers.0"], "past_end", domain=DOMAIN)
        return builder.node("Unsqueeze", [end, "zero"], "past_length")

    def attend(self, builder: GraphBuilder, layer: int, query: str, key: str, value: str) -> str:
        return builder.node(
            "PagedAttention",
            [query, key, value, f"layers.{layer}"],
            [f"layers.{layer}.attention", f"present.layers.{layer}"],
            domain=DOMAIN,
            q_num_heads=self.config.heads,
            kv_num_heads=self.config.kv_heads,
            block_size=self.page_size,
            max_tokens=self.config.context,
            policy=self.policy,
        )

    def declare_outputs(self, builder: GraphBuilder) -> None:
        for layer in range(self.config.layers):
            past, present = f"layers.{layer}", f"present.layers.{layer}"
            self._declare(builder.graph.output.add(name=present))
            builder.graph.persistent_bindings.add(input_name=past, output_name=present)

    def _declare(self, value: ValueInfoProto) -> None:
        config = self.config
        value.type = cache_type(1, config.kv_heads, config.width, config.width)


def with_paged_attention(
    model: ModelProto,
    config: LlamaConfig,
    coded: Mapping[str, CodedMatrix],
    page_size: int,
    policy: str,
) -> None:
    """Gives a model of the same weights the graph that attends on paged caches."""
    model.opset_import.add(domain=DOMAIN, version=_OPSET)
    replace_graph(model, config, PagedAttentionState(config, page_size, policy), coded)


def replace_graph(
    model: ModelProto,
    config: LlamaConfig,
    state: AttentionState,
    coded: Mapping[str, CodedMatrix],
) -> None:
    """Gives a model of the same weights another graph, which keeps its state as `state` says."""
    graph = model.graph
    for field in ("node", "input", "output"):
        graph.ClearField(field)
    # What stays are the weights; the constants of the graph are integers, and are made anew.
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].data_type == TensorProto.INT64:
            del graph.initializer[index]
    LlamaGraph(GraphBuilder(graph), config, state, coded).build()
