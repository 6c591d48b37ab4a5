"""Attention in float64 on decoded values, and how far float32 may be from it.

The bound is the theory's worst case and holds for every order of additions that a kernel may take.
u is half a unit in the last place of float32. With at least four sums side by side, a product of D
numbers errs by at most (D/4 + 8) u sum|q k|, the query's rounded scaling included. Softcap and mask
add 4 u of their size. An error d of every score makes at most e^2d - 1 of every weight. The
weighted sum runs over tiles of 64 tokens and then over tiles; exp, division and corrections add
16 u.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_light import PagedCache

U = 2.0**-24
Array = NDArray[Any]
ULPS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    is_causal: bool = True,
    left_window_size: int = -1,
    softcap: float = 0.0,
    scale: float | None = None,
    attn_mask: Array | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Array]:
    """The result and the bound of its error, both [batch, query_heads, query_tokens, width]."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (query, key, value))
    tokens, width, length = q.shape[2], q.shape[3], k.shape[2]
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    factor = width**-0.5 if scale is None else scale
    score = q @ k.swapaxes(2, 3) * factor
    error = (width / 4 + 8) * U * abs(factor) * (np.abs(q) @ np.abs(k).swapaxes(2, 3))
    if softcap:
        score = softcap * np.tanh(score / softcap)
        error += 4 * U * softcap
    position = length - tokens + np.arange(tokens)[:, None]
    places = np.arange(length)[None]
    seen = np.ones((tokens, length), bool)
    if is_causal:
        seen &= places <= position
    if left_window_size >= 0:
        seen &= places >= position - left_window_size
    seen = np.broadcast_to(seen, score.shape)
    if attn_mask is not None and attn_mask.dtype == bool:
        seen = seen & attn_mask
    elif attn_mask is not None:
        added = np.broadcast_to(attn_mask.astype(np.float64), score.shape)
        seen = seen & (added != -np.inf)
        score = score + np.where(seen, added, 0)
        error += 4 * U * np.abs(np.where(seen, added, 0))
    score = np.where(seen, score, -np.inf)
    largest = score.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink = np.asarray(sinks, np.float64).reshape(1, -1, 1, 1)
        largest = np.maximum(largest, np.where(np.isfinite(largest), sink, largest))
    largest = np.where(np.isfinite(largest), largest, 0)
    weight = np.exp(score - largest)
    total = weight.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.where(total > 0, np.exp(sink - largest), 0)
    weight /= np.where(total == 0, 1, total)
    result = weight @ v
    spread = np.expm1(2 * np.where(seen, error, 0).max(-1, keepdims=True, initial=0))
    reach = np.where(seen[..., None], np.abs(v)[:, :, None], 0).max(3, initial=0)
    rounding = (64 + length / 64 + 16) * U + 2.0**-60 * length
    bound = spread * (reach + np.abs(result)) + rounding * (weight @ np.abs(v))
    name = query.dtype.name
    if name != "float32":
        bound = bound + ULPS[name] * np.abs(result) + (2.0**-25 if name == "float16" else 0)
    return result, bound


def check(cache: PagedCache, query: Array, what: str = "", **options: Any) -> Array:
    """attend() of the cache, after a comparison with the oracle on its decoded values."""
    key, value = cache.to_arrays("float32")
    actual = cache.attend(query, **options)
    expected, bound = attend(query, key, value, **options)
    assert actual.shape == expected.shape, what
    assert actual.dtype == query.dtype, what
    error = np.abs(actual.astype(np.float64) - expected)
    worst = np.max(error / np.maximum(bound, 1e-300), initial=0)
    assert np.all(error <= bound), f"{what} {options}: {worst:.2f} times the bound"
    return actual
