"""ggml's flash attention, of the libraries that scripts/build_ggml builds, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[2] / "build" / "peers" / "ggml"
# Numbers of ggml's types.
TYPES = {"float32": 0, "float16": 1, "bfloat16": 30, "q8_0": 8, "q4_0": 2}


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class _Plan(ctypes.Structure):
    _fields_ = (
        ("work_size", ctypes.c_size_t),
        ("work_data", ctypes.c_void_p),
        ("n_threads", ctypes.c_int),
        ("threadpool", ctypes.c_void_p),
        ("abort_callback", ctypes.c_void_p),
        ("abort_callback_data", ctypes.c_void_p),
        ("use_ref", ctypes.c_bool),
    )


def is_built() -> bool:
    return (FOLDER / "libggml-cpu.so").exists()


def _libraries() -> tuple[Any, Any]:
    base = ctypes.CDLL(str(FOLDER / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(FOLDER / "libggml-cpu.so"))
    base.ggml_init.argtypes = [_InitParams]
    size = ctypes.c_int64
    base.ggml_new_tensor_4d.argtypes = [ctypes.c_void_p, ctypes.c_int, size, size, size, size]
    base.ggml_flash_attn_ext.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_float] * 3
    base.ggml_get_data.argtypes = [ctypes.c_void_p]
    base.ggml_nbytes.argtypes = [ctypes.c_void_p]
    base.ggml_nbytes.restype = ctypes.c_size_t
    base.ggml_new_graph_custom.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_bool]
    base.ggml_build_forward_expand.argtypes = [ctypes.c_void_p] * 2
    base.ggml_build_forward_expand.restype = None
    base.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    base.ggml_quantize_chunk.argtypes += [size, size, size, ctypes.c_void_p]
    base.ggml_quantize_chunk.restype = ctypes.c_size_t
    for name in (
        "ggml_init",
        "ggml_new_tensor_4d",
        "ggml_flash_attn_ext",
        "ggml_get_data",
        "ggml_new_graph_custom",
    ):
        getattr(base, name).restype = ctypes.c_void_p
    cpu.ggml_graph_plan.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    cpu.ggml_graph_plan.restype = _Plan
    cpu.ggml_graph_compute.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Plan)]
    cpu.ggml_graph_compute.restype = ctypes.c_int
    cpu.ggml_cpu_init()
    return base, cpu


def attention(
    query: Any, key: Any, value: Any, kind: str, threads: int, copies: int, *, is_causal: bool
) -> list[Callable[[], Any]]:
    """`copies` calls on caches of their own; each gives the result [tokens, heads, width].

    Rows lie head by head, which ggml is quicker at than llama.cpp's order, token by token.
    """
    base, cpu = _libraries()
    _, heads, tokens, width = query.shape
    _, kv_heads, length, _ = key.shape
    room = copies * (2 * key.nbytes + 3 * query.nbytes + (1 << 20)) + 2 * tokens * length
    context = base.ggml_init(_InitParams(room + (64 << 20), None, False))
    if not context:
        raise MemoryError("ggml_init")

    def tensor(kind: int, *dims: int) -> Any:
        return base.ggml_new_tensor_4d(context, kind, *dims)

    def fill(target: Any, array: Any) -> None:
        data = np.ascontiguousarray(array)
        if data.nbytes != base.ggml_nbytes(target):
            raise ValueError(f"{data.nbytes} bytes for a tensor of {base.ggml_nbytes(target)}")
        ctypes.memmove(base.ggml_get_data(target), data.ctypes.data, data.nbytes)

    def encode(target: Any, array: Any) -> None:
        if kind == "float32":
            return fill(target, array)
        rows = array.size // width
        base.ggml_quantize_chunk(
            TYPES[kind], array.ctypes.data, base.ggml_get_data(target), 0, rows, width, None
        )
        return None

    mask = None
    if is_causal:
        hidden = np.triu(np.full((tokens, length), -np.inf, np.float16), 1 + length - tokens)
        mask = tensor(TYPES["float16"], length, tokens, 1, 1)
        fill(mask, hidden)
    calls = []
    for _ in range(copies):
        q = tensor(TYPES["float32"], width, tokens, heads, 1)
        k, v = (tensor(TYPES[kind], width, length, kv_heads, 1) for _ in range(2))
        fill(q, query)
        encode(k, key)
        encode(v, value)
        result = base.ggml_flash_attn_ext(context, q, k, v, mask, width**-0.5, 0, 0)
        graph = base.ggml_new_graph_custom(context, 16, False)
        base.ggml_build_forward_expand(graph, result)
        plan = cpu.ggml_graph_plan(graph, threads, None)
        work = np.empty(max(1, plan.work_size), np.uint8)
        plan.work_data = work.ctypes.data
        calls.append(_call(base, cpu, graph, plan, work, result, (tokens, heads, width)))
    return calls


def _call(
    base: Any, cpu: Any, graph: Any, plan: _Plan, work: Any, result: Any, shape: tuple[int, ...]
) -> Callable[[], Any]:
    data = ctypes.cast(base.ggml_get_data(result), ctypes.POINTER(ctypes.c_float))
    view = np.ctypeslib.as_array(data, shape)

    def run() -> Any:
        status = cpu.ggml_graph_compute(graph, ctypes.byref(plan))
        if status != 0:
            raise RuntimeError(f"ggml_graph_compute: {status}")
        return view

    run.work = work  # type: ignore[attr-defined]
    return run
