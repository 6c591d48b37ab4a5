"""PagedCache.attend() against float64 on the decoded values."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_oracle import Array, attend, check

from onnx_light import PagedCache
from onnx_light.cache import paged_attention
from onnx_light.errors import CodedError
from onnx_light.onnx import PagedCacheProto

POLICIES = (
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "key=int8/channel value=int8/token",
    "key=uint8/channel value=uint8/token",
    "key=int8/tensor value=uint8/tensor",
    "key=uint4/channel:32 value=uint4/token:64",
    "key=int4/channel value=int4/token",
    "key=int4/token:32 value=int8/token:32",
    "key=uint8/token:16 value=int4/tensor",
    "key=uint2/channel value=int2/token",
    "key=q8_0 value=q4_0",
    "key=int8/channel:3/float32 value=uint4/channel:5/bfloat16",
)
BORDERS = (1, 15, 16, 17, 63, 64, 65, 127, 129, 511, 512, 513, 1025)


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def make(
    tokens: int,
    width: int = 64,
    value_width: int | None = None,
    *,
    batch: int = 1,
    heads: int = 2,
    seed: int = 0,
    **options: Any,
) -> PagedCache:
    key = normal(seed, batch, heads, tokens, width)
    value = normal(seed + 1, batch, heads, tokens, value_width or width)
    return PagedCache.from_arrays(key, value, **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_formats(policy: str) -> None:
    for page_size, tokens in itertools.product((16, 48, 64, 100), (130, 200)):
        cache = make(tokens, 64, 128, page_size=page_size, policy=policy)
        what = f"{policy} {page_size} {tokens}"
        check(cache, normal(5, 1, 6, 1, 64), what)
        check(cache, normal(6, 1, 2, 40, 64), what, left_window_size=70)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 12, 17])
def test_groups(group: int) -> None:
    for policy in ("float32", "bfloat16", "key=int8/channel value=uint4/token:32"):
        cache = make(150, 64, heads=2, policy=policy, page_size=32)
        for tokens in (1, 9):
            check(cache, normal(8, 1, 2 * group, tokens, 64), f"{policy} {group}")


@pytest.mark.parametrize(
    "width", [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 48, 72, 80, 96, 112, 128, 192, 256, 576]
)
def test_widths(width: int) -> None:
    for policy in ("float32", "float16", "bfloat16", "int8/channel", "uint4/token"):
        for widths in ((width, 64), (64, width)):
            cache = make(70, *widths, heads=1, policy=policy, page_size=32)
            check(cache, normal(9, 1, 3, 1, widths[0]), f"{policy} {widths}")
            check(cache, normal(10, 1, 1, 20, widths[0]), f"{policy} {widths}")


@pytest.mark.parametrize("tokens", BORDERS)
def test_lengths(tokens: int) -> None:
    for policy, page_size in itertools.product(("float16", "int8"), (16, 64, 512)):
        cache = make(tokens, 32, heads=1, policy=policy, page_size=page_size)
        for queries in (1, 17):
            for left in (-1, 0, 63, 64, 511, 512, 10**15):
                check(cache, normal(11, 1, 2, queries, 32), left_window_size=left)


@pytest.mark.parametrize("queries", [1, 3, 70])
def test_options(queries: int) -> None:
    random = np.random.default_rng(3)
    length = 140
    cache = make(
        length, 48, 32, batch=2, heads=3, page_size=24, policy="key=int8/channel value=f32"
    )
    query = normal(12, 2, 6, queries, 48)
    added = random.standard_normal((2, 1, queries, length)).astype(np.float32)
    added[..., ::7] = -np.inf
    every: list[dict[str, Any]] = [
        {"is_causal": False},
        {"is_causal": False, "left_window_size": 9},
        {"scale": 0.5},
        {"scale": -0.5},
        {"scale": 0.0},
        {"softcap": 2.0},
        {"softcap": 50.0, "left_window_size": 33},
        {"sinks": normal(13, 6)},
        {"sinks": np.array([-np.inf, 50, -50, 0, 1, 2], np.float32), "left_window_size": 3},
        {"attn_mask": random.random((queries, length)) < 0.7},
        {"attn_mask": random.random((2, 6, 1, length)) < 0.1},
        {"attn_mask": random.random((6, queries, 1)) < 0.5},
        {"attn_mask": np.array(True)},
        {"attn_mask": added},
        {"attn_mask": added.astype(np.float64), "is_causal": False},
        {"attn_mask": added.astype(np.float16)},
        {"attn_mask": added.astype(">f4"), "sinks": normal(14, 6).astype(">f4")},
        {"attn_mask": added.astype(">f2")},
        {"attn_mask": added.astype(">f8")},
        {"attn_mask": added.astype(ml_dtypes.bfloat16), "softcap": 1.0, "sinks": normal(14, 6)},
        {"attn_mask": np.broadcast_to(added[:, :, :1, ::-1], (2, 6, queries, length))},
    ]
    for options in every:
        check(cache, query, **options)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_queries_of_any_type_and_strides(dtype: str) -> None:
    cache = make(77, 40, policy="float16")
    query = normal(15, 1, 4, 6, 40).astype(dtype)
    expected = check(cache, query)
    views = (
        np.asfortranarray(query),
        np.repeat(query, 2, axis=3)[..., ::2],
        query[:, ::-1, ::-1, ::-1].copy()[:, ::-1, ::-1, ::-1],
    )
    for view in views:
        assert cache.attend(view).tobytes() == expected.tobytes()
    same = np.broadcast_to(query[:, :, :1], query.shape)
    assert cache.attend(same).tobytes() == cache.attend(same.copy()).tobytes()


def test_positions_are_absolute() -> None:
    cache = make(200, page_size=16).drop_before(90)
    assert cache.start == 80
    for queries in (1, 4, 130):
        for left in (-1, 5, 119, 120, 121):
            check(cache, normal(16, 1, 2, queries, 64), left_window_size=left)
    far = PagedCache.from_arrays(
        *cache.to_arrays(), start=2**62 + 77, page_size=16, policy="key=int8 value=bf16"
    )
    for left in (-1, 30, 2**63 - 1):
        check(far, normal(17, 1, 4, 5, 64), left_window_size=left)


def test_mixed_formats_in_one_cache() -> None:
    cache = make(64, page_size=16)
    formats = (
        "float16",
        "int8/channel",
        "uint4/token:32",
        "q8_0",
        "bfloat16",
        "key=int2 value=f32",
    )
    for index, policy in enumerate(formats):
        cache = cache.concat(make(20 + index, seed=index, page_size=16, policy=policy))
    for queries in (1, 5, 60):
        check(cache, normal(18, 1, 6, queries, 64))
        check(cache, normal(18, 1, 6, queries, 64), left_window_size=100)


@pytest.mark.parametrize("policy", ["float32", "bfloat16", "int8", "int4"])
def test_bits_do_not_depend_on_threads(policy: str) -> None:
    cache = make(1500, heads=3, policy=policy)
    for queries in (1, 7, 100):
        query = normal(19, 1, 9, queries, 64)
        results = {
            cache.attend(query, num_threads=threads).tobytes() for threads in (0, 1, 2, 3, -1)
        }
        assert len(results) == 1


def test_bits_depend_on_nothing_but_the_pages() -> None:
    cache = make(700, page_size=64)
    key, value = cache.to_arrays()
    query = normal(20, 1, 6, 3, 64)
    pieces = PagedCache(page_size=64)
    for token in range(700):
        pieces = pieces.append(key[:, :, token : token + 1], value[:, :, token : token + 1])
    assert pieces.attend(query).tobytes() == cache.attend(query).tobytes()


def test_batch_entries_and_heads_are_apart() -> None:
    cache = make(90, batch=3, heads=2, policy="int8")
    query = normal(21, 3, 4, 2, 64)
    whole = cache.attend(query)
    for batch in range(3):
        alone = cache.gather([batch]).attend(query[batch : batch + 1])
        assert alone.tobytes() == whole[batch : batch + 1].tobytes()


def poisoned(lengths: tuple[int, ...], bad: tuple[int, ...], width: int = 32) -> PagedCache:
    """Pages with room after their rows that is full of NaN, as are the pages `bad`."""
    proto = PagedCacheProto()
    start = 0
    for index, length in enumerate(lengths):
        block = proto.blocks.add(start=start, length=length)
        for side in (block.key, block.value):
            array = np.full((1, 1, 40, width), np.nan, np.float32)
            if index not in bad:
                array[:, :, :length] = normal(index, length, width)
            side.data_type = 1
            side.dims.extend(array.shape)
            side.raw_data = array.tobytes()
        start += length
    return PagedCache.from_proto(proto)


def test_what_no_query_sees_is_not_read() -> None:
    cache = poisoned((33, 40, 17, 5), (0,))
    query = normal(22, 1, 3, 4, 32)
    key, value = (np.nan_to_num(x) for x in cache.to_arrays())
    for left in (0, 20, 58):
        expected, bound = attend(query, key, value, left_window_size=left)
        actual = cache.attend(query, left_window_size=left)
        assert np.all(np.abs(actual - expected) <= bound)
    assert np.isnan(cache.attend(query)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_one_query_sees_does_not_leak_into_others(bad: float, dtype: str) -> None:
    key, value = (normal(seed, 1, 1, 100, 32).astype(dtype) for seed in (0, 1))
    for side, queries, masked in itertools.product((0, 1), (1, 9, 50), (False, True)):
        arrays = [key.copy(), value.copy()]
        arrays[side][:, :, 80] = bad
        cache = PagedCache.from_arrays(*arrays, page_size=32)
        query = normal(23, 1, 2, queries, 32)
        mask = np.ones((queries, 100), bool)
        mask[::2, 80] = not masked
        actual = cache.attend(query, attn_mask=mask, is_causal=not masked)
        sees = mask[:, 80] & (masked | (100 - queries + np.arange(queries) >= 80))
        expected, bound = attend(query, key, value, attn_mask=mask, is_causal=not masked)
        assert np.all((np.abs(actual - expected) <= bound)[:, :, ~sees])
        if side == 1 or np.isnan(bad):
            assert not np.isfinite(actual[:, :, sees]).any()


def test_rows_without_keys_are_zero() -> None:
    cache = make(70, policy="int8")
    query = normal(24, 1, 4, 3, 64)
    none = {
        "bools": np.zeros((3, 70), bool),
        "numbers": np.full((1, 70), -np.inf, np.float32),
    }
    for mask in none.values():
        for sinks in (None, np.ones(4, np.float32)):
            assert not cache.attend(query, attn_mask=mask, sinks=sinks).any()
    more = cache.slice(60, 70).attend(normal(25, 1, 2, 14, 64))  # four come before the first key
    assert not more[:, :, :4].any()
    assert more[:, :, 4:].all()
    one = np.zeros((3, 70), bool)
    one[1, 5] = True
    actual = cache.attend(query, attn_mask=one)
    assert not actual[:, :, [0, 2]].any()
    assert np.allclose(actual[0, :, 1], cache.value_array()[0, [0, 0, 1, 1], 5], rtol=1e-6)
    assert cache.attend(query[:, :, :0]).shape == (1, 4, 0, 64)


def test_large_scores_and_constant_values() -> None:
    key = np.zeros((1, 1, 300, 16), np.float32)
    key[0, 0, ::2] = 1e4
    value = normal(26, 1, 1, 300, 16)
    cache = PagedCache.from_arrays(key, value)
    for sign, rows in ((1, value[0, 0, ::2]), (-1, value[0, 0, 1::2])):
        actual = cache.attend(np.full((1, 1, 1, 16), 10.0 * sign, np.float32))
        assert np.allclose(actual[0, 0, 0], rows.astype(np.float64).mean(0), atol=1e-6)
    constant = PagedCache.from_arrays(normal(27, 1, 2, 300, 16), np.full((1, 2, 300, 16), 3, "f4"))
    for queries in (1, 30):
        actual = constant.attend(normal(28, 1, 4, queries, 16) * 30)
        assert np.allclose(actual, 3, rtol=1e-6)
    # A number that is added to all scores changes nothing.
    query, cache = normal(29, 1, 2, 5, 64), make(200)
    plain = cache.attend(query)
    for shift in (-1e4, 1e4):
        moved = cache.attend(query, attn_mask=np.full((1, 200), shift, np.float32))
        # Scores near 1e4 are whole multiples of 2^-10.
        assert np.abs(moved - plain).max() <= np.expm1(2 * 2.0**-10) * 2 * 5


def bad(code: str, path: str, cache: PagedCache, query: Array, **options: Any) -> str:
    with pytest.raises(CodedError) as error:
        cache.attend(query, **options)
    assert (error.value.code, error.value.path) == (code, path)
    return str(error.value)


def test_bad_input() -> None:
    cache = make(20, 8, heads=2)
    query = normal(30, 1, 4, 3, 8)
    assert "[1, 4, 3, 9]" in bad("attention.shape", "query", cache, normal(0, 1, 4, 3, 9))
    for shape in ((2, 4, 3, 8), (1, 3, 3, 8), (1, 0, 3, 8)):
        bad("attention.shape", "query", cache, np.zeros(shape, np.float32))
    bad("cache.shape", "query", cache, np.zeros((4, 3, 8), np.float32))
    for dtype in (np.int32, np.float64):
        error = bad("cache.dtype", "query", cache, np.zeros((1, 4, 3, 8), dtype))
        assert error.endswith("is none of float32, float16, bfloat16")
    bad("attention.dtype", "query", cache, np.zeros((1, 4, 3, 8), ml_dtypes.float8_e5m2))
    for mask in ((3, 19), (2, 20), (1, 1, 4, 3, 20), (3, 3, 20), (2, 1, 1, 20), (0, 20)):
        bad("attention.shape", "attn_mask", cache, query, attn_mask=np.ones(mask, bool))
    text = bad("attention.shape", "attn_mask", cache, query, attn_mask=np.ones((3, 19), bool))
    assert "[1, 1, 3, 19]" in text
    assert "[1, 4, 3, 20]" in text
    bad("attention.dtype", "attn_mask", cache, query, attn_mask=np.ones((3, 20), np.int64))
    for sinks in (np.ones(3), np.ones((1, 4)), np.ones(0)):
        bad("attention.shape", "sinks", cache, query, sinks=sinks)
    bad("attention.option", "left_window_size", cache, query, left_window_size=-2)
    for softcap in (-1.0, np.nan, np.inf, 1e-45):
        bad("attention.option", "softcap", cache, query, softcap=softcap)
    bad("attention.option", "scale", cache, query, scale=np.nan)
    bad("attention.shape", "query", PagedCache(), query)
    for wrong in (None, "query", 3):
        with pytest.raises((TypeError, ValueError)):
            cache.attend(wrong)
    with pytest.raises((TypeError, ValueError)):
        cache.attend(query, attn_mask="mask")
    with pytest.raises(TypeError):
        cache.attend(query, sinks=object())


ISAS = [
    ("scalar", ""),
    ("avx2", " avx2 "),
    ("avx512", " avx512bw "),
    ("avx512vnni", " avx512_vnni "),
]


def forced(isa: str, flag: str, chosen: str) -> None:
    """The tests of this folder's grid and of this file, with an instruction set forced."""
    if flag not in Path("/proc/cpuinfo").read_text():
        pytest.skip("not on this machine")
    files = [__file__, str(Path(__file__).with_name("test_attend_grid.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        [*command, "-k", chosen],
        env={**os.environ, "ONNX_LIGHT_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize(("isa", "flag"), ISAS)
def test_every_instruction_set(isa: str, flag: str) -> None:
    forced(isa, flag, "formats or options or leak or zero or part_of_the_grid")


@pytest.mark.long
@pytest.mark.parametrize(("isa", "flag"), ISAS)
def test_every_instruction_set_in_all_tests(isa: str, flag: str) -> None:
    forced(isa, flag, "not instruction_set")


@pytest.mark.parametrize("policy", [None, "int8", "key=uint4/channel:8 value=q8_0 recent_tokens=9"])
def test_paged_attention_attends_before_it_encodes(policy: str | None) -> None:
    key, value = normal(31, 1, 2, 70, 32), normal(32, 1, 2, 70, 32)
    past = PagedCache()
    for start, end in itertools.pairwise((0, 40, 41, 47, 48, 49, 70)):
        query = normal(start, 1, 4, end - start, 32)
        new = (key[:, :, start:end], value[:, :, start:end])
        actual, present = paged_attention(query, *new, past, policy=policy)
        # Old pages are as the policy left them, the new tokens as they came.
        old = past.to_arrays("float32") if start else (key[:, :, :0], value[:, :, :0])
        seen = [np.concatenate(pair, axis=2) for pair in zip(old, new, strict=True)]
        expected, bound = attend(query, *seen)
        assert np.all(np.abs(actual - expected) <= bound)
        assert present == PagedCache.from_arrays(
            key[:, :, :end], value[:, :, :end], page_size=16, policy=policy
        )
        past = present
    assert past.page_size == 16


def test_bad_input_of_paged_attention() -> None:
    past = make(20, 8, page_size=16)
    query, rows = normal(0, 1, 2, 1, 8), normal(1, 1, 2, 3, 8)

    def refuse(code: str, path: str, *arrays: Array, **options: Any) -> None:
        with pytest.raises(CodedError) as error:
            paged_attention(*arrays, past, **options)
        assert (error.value.code, error.value.path) == (code, path)

    refuse("runtime.max_tokens", "K", query, rows, rows, max_tokens=22)
    refuse("attention.shape", "query", normal(0, 1, 3, 1, 8), rows, rows)
    refuse("cache.shape", "value", query, rows, rows[:, :, :2])
    refuse("attention.shape", "attn_mask", query, rows, rows, attn_mask=np.ones(20, bool))
    assert len(paged_attention(query, rows, rows, past, max_tokens=23)[1]) == 23
    assert len(paged_attention(query, rows, rows, past, max_tokens=0)[1]) == 23
    assert len(past) == 20
