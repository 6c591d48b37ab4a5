"""Attention beside ONNX Runtime's GroupQueryAttention, torch and ggml, where they are installed.

Decode: one query token, float32 queries, caches that take turns so that none is found in the
processor's cache. Both sides run one after the other in every round. Prefill: 1,024 x 1,024,
causal. In the environment THREADS is how many threads both have, 1 unless it is set, and SHAPE the
only heads, KV heads and width to measure, such as 32/8/128.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import measuring
import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from measuring import Comparison, ggml
from onnx import TensorProto, helper

from onnx_light import PagedCache

Array = Any
WORKING_SET = 96 << 20  # bytes of the caches that take turns
ROUNDS = {512: 31, 4096: 21, 32768: 9}  # of each number of tokens
SHAPES = tuple((*heads, width) for heads in ((32, 8), (8, 8), (9, 3)) for width in (128, 64))
# Our policy, what each peer's cache has beside it, and what our time should be at most.
DENSE, QUANTIZED = 1 / 2.5, 1 / 3
ROWS: tuple[tuple[str, dict[str, str], float], ...] = (
    ("float32", {"ONNX Runtime": "float32", "torch": "float32", "ggml": "float32"}, DENSE),
    ("float16", {"ONNX Runtime": "float16", "ggml": "float16"}, DENSE),
    ("bfloat16", {"torch": "bfloat16", "ggml": "bfloat16"}, DENSE),
    ("int8", {"ONNX Runtime": "int8", "ggml": "q8_0"}, QUANTIZED),
    ("int4", {"ONNX Runtime": "int8", "ggml": "q4_0"}, QUANTIZED),
    ("q8_0", {"ONNX Runtime": "int8", "ggml": "q8_0"}, QUANTIZED),
)
KINDS = {
    "float32": (TensorProto.FLOAT, np.float32),
    "float16": (TensorProto.FLOAT16, np.float16),
    "int8": (TensorProto.INT8, np.int8),
}


def in_turn(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """A call that is the next one of these every time."""
    state = {"next": 0}

    def run() -> object:
        state["next"] = (state["next"] + 1) % len(calls)
        return calls[state["next"]]()

    return run


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    random = np.random.default_rng(1)
    if dtype == np.int8:
        return random.integers(-127, 128, shape, np.int8)
    return random.standard_normal(shape, np.float32).astype(dtype)


def ours(
    heads: int, kv_heads: int, width: int, tokens: int, queries: int, policy: str, threads: int
) -> Callable[[], object]:
    rows = numbers(1, kv_heads, tokens, width)
    query = numbers(1, heads, queries, width)
    caches = [PagedCache.from_arrays(rows, rows, policy=policy)]
    if queries == 1:
        for _ in range(WORKING_SET // caches[0].nbytes):
            caches.append(PagedCache.from_arrays(rows, rows, policy=policy))
    return in_turn([functools.partial(c.attend, query, num_threads=threads) for c in caches])


def onnx_runtime(
    heads: int, kv_heads: int, width: int, tokens: int, queries: int, kind: str
) -> Callable[[], object]:
    """GroupQueryAttention with one buffer for past and present, where the new rows go last."""
    code, dtype = KINDS[kind]
    rows_kind = TensorProto.FLOAT if kind == "int8" else code
    rows_dtype = np.float32 if kind == "int8" else dtype
    inputs = {
        "q": (rows_kind, [1, queries, heads * width]),
        "k": (rows_kind, [1, queries, kv_heads * width]),
        "v": (rows_kind, [1, queries, kv_heads * width]),
        "pk": (code, [1, kv_heads, tokens, width]),
        "pv": (code, [1, kv_heads, tokens, width]),
        "lengths": (TensorProto.INT32, [1]),
        "total": (TensorProto.INT32, []),
    }
    names = list(inputs)
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads}
    if kind == "int8":
        inputs["ks"] = inputs["vs"] = (TensorProto.FLOAT, [1])
        names += [""] * 5 + ["ks", "vs"]
        kinds = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
        attributes |= {**kinds, "kv_cache_bit_width": 8}
    outputs = {"y": inputs["q"], "present_k": inputs["pk"], "present_v": inputs["pv"]}
    node = helper.make_node(
        "GroupQueryAttention", names, list(outputs), domain="com.microsoft", **attributes
    )
    infos = [
        [helper.make_tensor_value_info(name, *typed) for name, typed in side.items()]
        for side in (inputs, outputs)
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node], "graph", infos[0], infos[1]), opset_imports=opsets, ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False  # pools of several sessions would disturb each other
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    feeds = {
        name: value(numbers(*shape, dtype=rows_dtype))
        for name, (_, shape) in inputs.items()
        if name in ("q", "k", "v")
    }
    feeds["lengths"] = value(np.array([tokens - 1], np.int32))
    feeds["total"] = value(np.array(tokens, np.int32))
    if kind == "int8":
        feeds["ks"] = feeds["vs"] = value(np.array([0.02], np.float32))
    feeds["y"] = value(np.zeros(inputs["q"][1], rows_dtype))
    size = 2 * kv_heads * tokens * width * np.dtype(dtype).itemsize
    bindings = []
    for _ in range(1 + (WORKING_SET // size if queries == 1 else 0)):
        binding = session.io_binding()
        for name, array in feeds.items():
            bind = binding.bind_ortvalue_output if name == "y" else binding.bind_ortvalue_input
            bind(name, array)
        for past, present in (("pk", "present_k"), ("pv", "present_v")):
            array = value(numbers(*inputs[past][1], dtype=dtype))
            binding.bind_ortvalue_input(past, array)
            binding.bind_ortvalue_output(present, array)
        bindings.append(binding)
    return in_turn([functools.partial(session.run_with_iobinding, b) for b in bindings])


def torch_attention(
    heads: int, kv_heads: int, width: int, tokens: int, queries: int, kind: str, threads: int
) -> Callable[[], object]:
    """scaled_dot_product_attention; in decode with the group folded into the query's rows.

    That is the same and quicker than enable_gqa. The query has the type of the cache.
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    group = heads // kv_heads
    dtype = getattr(torch, kind)
    rows = torch.tensor(numbers(1, kv_heads, tokens, width)).to(dtype)
    count = 1 + (WORKING_SET // (2 * rows.nbytes) if queries == 1 else 0)
    pairs = [(rows.clone(), rows.clone()) for _ in range(count)]
    attend = torch.nn.functional.scaled_dot_product_attention
    if queries == 1:
        query = torch.tensor(numbers(1, kv_heads, group, width)).to(dtype)
        return in_turn([functools.partial(attend, query, *pair) for pair in pairs])
    query = torch.tensor(numbers(1, heads, queries, width)).to(dtype)
    return functools.partial(attend, query, *pairs[0], is_causal=True, enable_gqa=True)


def ggml_attention(
    heads: int, kv_heads: int, width: int, tokens: int, queries: int, kind: str, threads: int
) -> Callable[[], object]:
    rows = numbers(1, kv_heads, tokens, width)
    query = numbers(1, heads, queries, width)
    bits = {"float32": 32, "float16": 16, "bfloat16": 16, "q8_0": 8.5, "q4_0": 4.5}[kind]
    count = 1 + int(WORKING_SET // (2 * rows.size * bits / 8)) if queries == 1 else 1
    return in_turn(ggml.attention(query, rows, rows, kind, threads, count, is_causal=queries > 1))


def peer_call(
    peer: str, shape: tuple[int, int, int], tokens: int, queries: int, kind: str, threads: int
) -> Callable[[], object]:
    if peer == "ONNX Runtime":
        return onnx_runtime(*shape, tokens, queries, kind)
    make = torch_attention if peer == "torch" else ggml_attention
    return make(*shape, tokens, queries, kind, threads)


def peers() -> list[str]:
    """Those that are installed (make peers)."""
    found = {"torch": importlib.util.find_spec("torch") is not None, "ggml": ggml.is_built()}
    return ["ONNX Runtime", *(name for name, is_there in found.items() if is_there)]


def pause_for(threads: int) -> Callable[[], object] | None:
    """Until no thread of the other side waits actively, on a core that this one needs."""
    return functools.partial(time.sleep, 0.005) if threads > 1 else None


def shapes() -> list[tuple[int, int, int]]:
    chosen = os.environ.get("SHAPE")
    return [s for s in SHAPES if chosen in (None, "/".join(map(str, s)))]


def decode(threads: int) -> dict[str, list[Comparison]]:
    found: dict[str, list[Comparison]] = {peer: [] for peer in peers()}
    before = pause_for(threads)
    for shape, (tokens, rounds) in itertools.product(shapes(), ROUNDS.items()):
        label = f"{shape[0]}/{shape[1]} heads of {shape[2]}, {tokens} tokens, {threads} threads"
        for policy, kinds, reach in ROWS:
            mine = ours(*shape, tokens, 1, policy, threads)
            for peer in found.keys() & kinds.keys():
                call = peer_call(peer, shape, tokens, 1, kinds[peer], threads)
                task = f"{label}: {policy}, {kinds[peer]}"
                found[peer].append(
                    measuring.compare(task, mine, call, rounds=rounds, reach=reach, before=before)
                )
    return found


def prefill(threads: int) -> dict[str, list[Comparison]]:
    found: dict[str, list[Comparison]] = {peer: [] for peer in peers()}
    before = pause_for(threads)
    for shape in shapes():
        label = f"{shape[0]}/{shape[1]} heads of {shape[2]}, 1,024 x 1,024, {threads} threads"
        mine = ours(*shape, 1024, 1024, "float32", threads)
        for peer, comparisons in found.items():
            call = peer_call(peer, shape, 1024, 1024, "float32", threads)
            comparisons.append(
                measuring.compare(label, mine, call, rounds=7, reach=1.25, before=before)
            )
    return found


def main() -> None:
    report = measuring.Report(__doc__ or "")
    threads = int(os.environ.get("THREADS", "1"))
    # Threads of torch and ggml would wait actively for longer than a pause.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    onnxruntime.set_global_thread_pool_sizes(threads, 1)
    for what, found in (("decode", decode(threads)), ("prefill", prefill(threads))):
        for peer, comparisons in found.items():
            if comparisons:
                report.comparisons(f"attention, {what}, beside {peer}", peer, comparisons)
    report.finish()


if __name__ == "__main__":
    main()
