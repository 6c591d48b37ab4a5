"""Tokens per second of a model that attends on pages, beside other ways to keep its cache.

One model, SmolLM2-135M with float32 weights in ONNX Runtime, whose graphs differ in nothing but
attention: PagedAttention on pages in float32 and in fewer bits; ONNX Runtime's GroupQueryAttention
on a buffer that past and present share, bound once, which is its best case; ONNX's Attention on
tensors that grow. llama.cpp reads the same GGUF file, whose weights have 4 bits there, if
llama_cpp is installed.

Every round lets each of them append the same tokens to the same past, one at a time, after a pause
and a token that is not timed; the next round begins with another one. It is checked that all graphs
give the same next token.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from measuring import Comparison, Report, once
from onnxruntime import OrtValue  # type: ignore[import-untyped]

from onnx_light import PagedCache
from onnx_light.cli.demo_model import find_model
from onnx_light.models import from_gguf
from onnx_light.models.gguf_file import GgufFile
from onnx_light.models.graph_builder import GraphBuilder
from onnx_light.models.llama_config import LlamaConfig, read_config
from onnx_light.models.llama_graph import MICROSOFT
from onnx_light.models.paged_graph import replace_graph
from onnx_light.runtime import InferenceSession

LENGTHS = (128, 1000, 4000)
POLICIES = ("float32", "int8", "int4")
STEPS = 8  # tokens of one variant in one round
ROUNDS = 11
_CHUNK = 512
_PAUSE = 0.3  # seconds, until the threads of the one before have stopped to wait busily

Array = np.ndarray[Any, Any]
Decode = Callable[[Array], int]  # appends tokens one at a time; the most likely next one


class GroupQueryAttention:
    """The state as buffers `keys.N` and `values.N` of fixed capacity; `past` counts their rows."""

    def __init__(self, config: LlamaConfig, capacity: int) -> None:
        self.config = config
        self.capacity = capacity

    def declare_inputs(self, builder: GraphBuilder) -> None:
        for layer in range(self.config.layers):
            for side in ("keys", "values"):
                builder.input(f"{side}.{layer}", "float32", self._dims())
        builder.input("past", "int64", [1])
        builder.graph.input.add(name="last").type.tensor_type.elem_type = 6  # INT32, [1]
        builder.graph.input.add(name="total").type.tensor_type.elem_type = 6  # scalar

    def past_length(self, builder: GraphBuilder) -> str:
        return "past"

    def attend(self, builder: GraphBuilder, layer: int, query: str, key: str, value: str) -> str:
        sides = [f"{side}.{layer}" for side in ("keys", "values")]
        return builder.node(
            "GroupQueryAttention",
            [query, key, value, *sides, "last", "total"],
            [f"layers.{layer}.attention", *(f"present.{side}" for side in sides)],
            domain=MICROSOFT,
            num_heads=self.config.heads,
            kv_num_heads=self.config.kv_heads,
        )

    def declare_outputs(self, builder: GraphBuilder) -> None:
        for layer in range(self.config.layers):
            for side in ("keys", "values"):
                builder.output(f"present.{side}.{layer}", "float32", self._dims())

    def _dims(self) -> list[int | str]:
        return [1, self.config.kv_heads, self.capacity, self.config.width]


class GroupQueryDecoder:
    """A session of onnxruntime with bound buffers."""

    def __init__(self, path: Path, capacity: int) -> None:
        with GgufFile(path) as file:
            self.config = read_config(file)
        state = GroupQueryAttention(self.config, capacity)
        model = from_gguf(path, attention="standard")
        model.opset_import.add(domain=MICROSOFT, version=1)
        replace_graph(model, self.config, state, {})
        self.session = InferenceSession(model)
        self.buffers = {
            f"{side}.{layer}": np.zeros(
                (1, self.config.kv_heads, capacity, self.config.width), np.float32
            )
            for layer in range(self.config.layers)
            for side in ("keys", "values")
        }
        self.past = 0
        self.binding = self.session.io_binding()
        for name, buffer in self.buffers.items():
            value = OrtValue.ortvalue_from_numpy(buffer)
            self.binding.bind_ortvalue_input(name, value)
            self.binding.bind_ortvalue_output(f"present.{name}", value)
        self.binding.bind_output("logits")

    def load(self, caches: Mapping[str, PagedCache], length: int) -> None:
        self.past = length
        for layer, cache in enumerate(caches.values()):
            self.buffers[f"keys.{layer}"][:, :, :length] = cache.key_array()
            self.buffers[f"values.{layer}"][:, :, :length] = cache.value_array()

    def decode(self, tokens: Array) -> int:
        past = self.past
        for token in tokens:
            feeds = {
                "input_ids": np.array([[token]]),
                "past": np.array([past]),
                "last": np.array([past], np.int32),
                "total": np.array(past + 1, np.int32),
            }
            for name, array in feeds.items():
                self.binding.bind_cpu_input(name, array)
            self.session.run_with_iobinding(self.binding)
            past += 1
        return int(self.binding.get_outputs()[-1].numpy()[0, -1].argmax())


def decoder_of(session: InferenceSession) -> Decode:
    """Each call goes on from the state that the session has now."""

    def decode(tokens: Array) -> int:
        fork = session.fork()
        for token in tokens:
            (logits,) = fork.run(["logits"], {"input_ids": np.array([[token]])})
        return int(logits[0, -1].argmax())

    return decode


class LlamaCpp:
    """llama.cpp with a cache in float16, which is its default."""

    def __init__(self, path: Path, capacity: int) -> None:
        llama_cpp = importlib.import_module("llama_cpp")
        cores = len(os.sched_getaffinity(0))
        self.llama = llama_cpp.Llama(
            str(path), n_ctx=capacity, n_threads=cores, n_threads_batch=cores, verbose=False
        )
        self.past = 0

    def load(self, tokens: Array) -> None:
        self.llama.reset()
        self.llama.eval(tokens.tolist())
        self.past = len(tokens)

    def decode(self, tokens: Array) -> None:
        self.llama.n_tokens = self.past  # it drops what lies behind
        for token in tokens.tolist():
            self.llama.eval([token])


def read(session: InferenceSession, tokens: Array) -> None:
    for first in range(0, len(tokens), _CHUNK):
        session.run(["logits"], {"input_ids": tokens[None, first : first + _CHUNK]})


def in_rounds(decoders: Mapping[str, Callable[[Array], object]], tokens: Array) -> Any:
    """Seconds a token of each by round, after a round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in decoders}
    names = list(decoders)
    gc.collect()
    gc.disable()
    try:
        for number in range(-1, ROUNDS):
            turn = number % len(names)
            for name in [*names[turn:], *names[:turn]]:
                time.sleep(_PAUSE)
                decoders[name](tokens[:1])
                seconds = once(functools.partial(decoders[name], tokens)) / len(tokens)
                if number >= 0:
                    times[name].append(seconds)
    finally:
        gc.enable()
    return times


class Bench:
    """All decoders of one model, and the past that they go on from."""

    def __init__(self, path: Path) -> None:
        random = np.random.default_rng(0)
        self.tokens = random.integers(0, 40_000, max(LENGTHS) + STEPS, np.int64)
        capacity = len(self.tokens)
        self.paged = InferenceSession(from_gguf(path))
        read(self.paged, self.tokens[: max(LENGTHS)])
        self.standard = InferenceSession(from_gguf(path, attention="standard"))
        self.group_query = GroupQueryDecoder(path, capacity)
        self.llama: LlamaCpp | None = None
        if importlib.util.find_spec("llama_cpp"):
            self.llama = LlamaCpp(path, capacity)

    def at(self, length: int) -> Any:
        """Seconds a token by round, of each decoder."""
        state = cast("Mapping[str, PagedCache]", self.paged.state)
        caches = {name: cache.truncate(length) for name, cache in state.items()}
        self.standard.state = caches
        self.group_query.load(caches, length)
        decoders: dict[str, Decode] = {}
        for policy in POLICIES:
            session = self.paged.fork()
            session.state = {
                name: cache if policy == "float32" else cache.quantize(policy)
                for name, cache in caches.items()
            }
            decoders[policy] = decoder_of(session)
        decoders["Attention-23"] = decoder_of(self.standard)
        decoders["GroupQueryAttention"] = self.group_query.decode
        tokens = self.tokens[length : length + STEPS]
        found = {name: decode(tokens) for name, decode in decoders.items()}
        exact = {found[name] for name in ("float32", "Attention-23", "GroupQueryAttention")}
        if len(exact) != 1:
            raise AssertionError(f"{length} tokens: not all give the same next token: {found}")
        timed: dict[str, Callable[[Array], object]] = dict(decoders)
        if self.llama is not None:
            self.llama.load(self.tokens[:length])
            timed["llama.cpp"] = self.llama.decode
        return in_rounds(timed, tokens)


def main() -> None:
    report = Report(__doc__.partition("\n")[0] if __doc__ else "")
    bench = Bench(find_model(None))
    times = {length: bench.at(length) for length in LENGTHS}
    rows = []
    for length, found in times.items():
        for name, rounds in found.items():
            speed = 1 / statistics.median(rounds)
            rows.append((f"{length:,} tokens: {name}", f"{speed:.1f} tokens/s", speed))
    report.values("Tokens a second", rows)
    for peer in [name for name in times[LENGTHS[0]] if name not in POLICIES]:
        comparisons = []
        for length, found in times.items():
            for policy in POLICIES:
                ours, theirs = found[policy], found[peer]
                ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
                reach = 1.0 if peer == "GroupQueryAttention" else None
                task = f"{length:,} tokens, {policy}"
                medians = statistics.median(ours), statistics.median(theirs)
                comparisons.append(Comparison(task, *medians, ratio, reach))
        report.comparisons("Time of a token", peer, comparisons)
    report.finish()


if __name__ == "__main__":
    main()
