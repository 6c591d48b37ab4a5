"""Caches whose pages are encoded: growing, cutting, joining, changing formats."""

import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_model import parts_of

from onnx_light import CachePolicy, PagedCache, PageFormat
from onnx_light import onnx as ol
from onnx_light.errors import CodedError

POLICIES = (
    "int8",
    "int4",
    "k=uint2/token:7 v=int4/tensor",
    "k=f16 v=uint8/channel:5",
    "v=int2/channel",
    "q8_0",
    "k=q4_0 v=bf16",
)


def raises(code: str, path: str, call: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(CodedError) as error:
        call(*args, **kwargs)
    assert (error.value.code, error.value.path) == (code, path), error.value


def tokens(count: int, *, seed: int = 0, batch: int = 2, width: int = 32) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((batch, 3, count, width)).astype("f4") for _ in range(2))  # type: ignore[return-value]


def grown(policy: Any, count: int, *steps: int, page_size: int = 16) -> PagedCache:
    key, value = tokens(count)
    cache, done = PagedCache(page_size, policy), 0
    while done < count:
        n = steps[done % len(steps)] if steps else count
        cache = cache.append(key[:, :, done : done + n], value[:, :, done : done + n])
        done += n
    return cache


def kinds(cache: PagedCache) -> str:
    """A letter for each page: e(ncoded), d(ense), of keys then of values."""
    sides = [[getattr(p, side).codes is None for p in cache.pages] for side in ("key", "value")]
    return " ".join("".join("ed"[dense] for dense in side) for side in sides)


@pytest.mark.parametrize("policy", POLICIES)
def test_growing_in_any_steps_gives_the_same_pages(policy: str) -> None:
    whole = grown(policy, 70)
    for steps in ((1,), (3, 17, 1), (16,), (40, 5)):
        again = grown(policy, 70, *steps)
        assert again == whole
        assert again.to_proto().SerializeToString() == whole.to_proto().SerializeToString()
    assert [len(page) for page in whole.pages] == [16] * 4 + [6]
    parsed = CachePolicy.parse(policy)
    for side, letters in zip((parsed.key, parsed.value), kinds(whole).split(), strict=True):
        assert letters == ("ddddd" if side is None or side.is_dense else "eeeed")


def test_sinks_and_recent_tokens_stay_dense_in_whole_pages() -> None:
    policy = "k=int8/token v=int8/token sink_tokens={} recent_tokens={}"
    for sinks, recent, letters in (
        (0, 0, "eeeeed"),
        (1, 0, "deeeed"),
        (16, 0, "deeeed"),
        (17, 0, "ddeeed"),
        (0, 8, "eeeeed"),
        (0, 9, "eeeedd"),
        (0, 24, "eeeedd"),
        (0, 25, "eeeddd"),
        (1000, 0, "dddddd"),
        (0, 2**63 - 1, "dddddd"),
    ):
        for steps in ((), (1,), (7,)):
            cache = grown(policy.format(sinks, recent), 88, *steps)
            assert kinds(cache) == f"{letters} {letters}", (sinks, recent, steps)
        assert grown(None, 88).quantize(policy.format(sinks, recent)) == cache


def test_dense_rows_keep_their_bits_and_encoded_ones_are_replaced_once() -> None:
    key, value = tokens(40)
    cache = PagedCache(16, "int8").append(key, value)
    assert cache.key_array()[:, :, 32:].tobytes() == key[:, :, 32:].tobytes()
    assert not np.array_equal(cache.key_array()[:, :, :32], key[:, :, :32])
    assert np.abs(cache.key_array() - key).max() < 0.03
    later = cache.append(key, value)
    assert later.key_array()[:, :, :32].tobytes() == cache.key_array()[:, :, :32].tobytes()


@pytest.mark.parametrize("policy", POLICIES)
def test_operations_match_numpy_on_the_decoded_arrays(policy: str) -> None:
    cache = grown(policy, 70)
    key, value = cache.to_arrays("f4")

    def check(result: PagedCache, k: Any, v: Any) -> None:
        result.validate()
        got = result.to_arrays("f4")
        assert got[0].tobytes() == np.ascontiguousarray(k).tobytes()
        assert got[1].tobytes() == np.ascontiguousarray(v).tobytes()
        proto = ol.PagedCacheProto.FromString(result.to_proto().SerializeToString())
        assert PagedCache.from_proto(proto) == result
        assert pickle.loads(pickle.dumps(result)) == result
        assert not any(e.key_max or e.value_max for e in result.compare(result).pages)

    check(cache, key, value)
    for end in (1, 16, 20, 64, 69):
        check(cache.truncate(end), key[:, :, :end], value[:, :, :end])
        more = cache.truncate(end).append(key[:, :, :3], value[:, :, :3])
        check(
            more,
            np.concatenate([key[:, :, :end], key[:, :, :3]], 2),
            np.concatenate([value[:, :, :end], value[:, :, :3]], 2),
        )
    check(cache.slice(5, 41), key[:, :, 5:41], value[:, :, 5:41])
    check(cache.slice(16, 32), key[:, :, 16:32], value[:, :, 16:32])
    check(cache.gather([1, 0, 1]), key[[1, 0, 1]], value[[1, 0, 1]])
    check(cache.truncate(20).gather([1]), key[[1], :, :20], value[[1], :, :20])
    check(cache.concat(cache), *(np.concatenate([a, a], 2) for a in (key, value)))
    check(cache.drop_before(40), key[:, :, 32:], value[:, :, 32:])
    check(cache.dequantize(), key, value)
    assert set(kinds(cache.dequantize())) <= {"d", " "}
    assert cache.dequantize().policy is None
    assert kinds(cache.gather([1, 1])) == kinds(cache)


def test_repage_is_as_if_the_tokens_were_appended_again() -> None:
    cache = grown("int8", 70)
    again = PagedCache.from_arrays(*cache.to_arrays("f4"), page_size=32, policy="int8")
    assert cache.repage(32) == again
    assert cache.repage(16) == cache


def test_quantize_keeps_what_has_the_format() -> None:
    cache = grown("int4", 70)
    assert cache.quantize("int4") == cache
    assert cache.quantize("k=uint4/channel:99 v=uint4/token:77") == cache
    other = cache.quantize("k=int8/token v=f16")
    assert kinds(other) == "eeeed ddddd"
    assert str(other.policy) == "key=int8/token value=float16"
    assert np.abs(other.key_array() - cache.key_array()).max() < 0.05
    assert np.array_equal(
        other.value_array("f4"), cache.value_array("f4").astype("f2").astype("f4")
    )
    assert cache.quantize(PageFormat("f16")).key_array().dtype == np.float16


def test_chosen_pages() -> None:
    cache = grown("recent_tokens=3", 70)
    part = cache.quantize("k=int8/token", pages=[4, 1])
    assert kinds(part) == "dedde ddddd"
    assert part.policy == cache.policy
    assert part.pages[4].capacity == 6
    assert cache.quantize("int8", []) == cache
    back = part.dequantize("float16", pages=[1])
    assert [str(page.key.format) for page in back.pages[1:5:3]] == ["float16", "int8/token"]
    for wrong in ([5], [-1]):
        raises("cache.page_index", "pages[0]", cache.quantize, "int8", wrong)
        raises("cache.page_index", "pages[0]", cache.dequantize, "float32", wrong)
    raises("cache.page_index", "pages[2]", cache.quantize, "int8", [1, 2, 1])


def test_one_side_of_a_truncated_page_is_encoded_later() -> None:
    cache = grown("k=int8/channel", 32).truncate(20)
    key, value = cache.to_arrays()
    both = cache.quantize("v=uint4/token", pages=[1])
    assert (kinds(both), both.pages[1].capacity) == ("ee de", 16)
    assert both.key_array().tobytes() == key.tobytes()
    alone = PagedCache.from_arrays(key[:, :, 16:], value[:, :, 16:], page_size=4, policy="int4")
    wanted = alone.quantize("v=uint4/token", pages=[0]).value_array()
    assert both.value_array()[:, :, 16:].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("policy", ["int8/token", "uint4/token:8", "int2/token", "q8_0", "q4_0"])
def test_rows_that_were_cut_off_are_not_written(policy: str) -> None:
    key, value = tokens(16)
    other_key, other_value = key.copy(), value.copy()
    other_key[:, :, 5:] = other_value[:, :, 5:] = 7
    messages = [
        PagedCache(16, policy).append(k, v).truncate(5).to_proto()
        for k, v in ((key, value), (other_key, other_value))
    ]
    assert messages[0].SerializeToString() == messages[1].SerializeToString()
    for block in messages[0].blocks:
        if policy.startswith("q"):
            continue
        parts = parts_of(block.encoded_key)
        assert (parts.codes == parts.zero_points)[:, :, 5:].all()
        assert not parts.scales[:, :, 5:].any()


def test_forks_encode_a_waiting_page_once() -> None:
    key, value = tokens(40)
    past = PagedCache(16, "k=int8/token v=int8/token recent_tokens=20").append(key, value)
    assert kinds(past) == "edd edd"
    forks = [past.append(key[:, :, :16], value[:, :, :16]) for _ in range(2)]
    assert kinds(forks[0]) == "eedd eedd"
    first, second = (fork.pages[1].key.codes for fork in forks)
    assert first.__array_interface__["data"] == second.__array_interface__["data"]


def test_threads_append_to_one_value() -> None:
    key, value = tokens(64)
    past = grown("k=int8/token v=uint4/token recent_tokens=20", 40)
    wanted = past.append(key, value)
    results: list[PagedCache] = []
    threads = [
        threading.Thread(target=lambda: results.append(past.append(key, value))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(result == wanted for result in results)


def test_what_the_policy_cannot_store_is_refused_at_the_append() -> None:
    key, value = tokens(3)
    cache = grown("k=int8/channel v=q8_0", 20)
    for wrong in (np.nan, np.inf, -np.inf):
        bad = key.copy()
        bad[1, 2, 0, 5] = wrong
        raises("quant.not_finite", "key", cache.append, bad, value)
        raises("quant.not_finite", "value", cache.append, key, bad)
        assert len(PagedCache(policy="v=int8").append(bad, value)) == 3
        dense = PagedCache().append(bad, bad)
        raises("quant.not_finite", "key", dense.quantize, "int8", [0])
    raises("quant.width", "value", PagedCache(policy="v=q4_0").append, key, value[..., :31])
    assert cache == grown("k=int8/channel v=q8_0", 20)


def test_equality_is_about_formats_too() -> None:
    array = np.zeros((1, 1, 16, 8), "f4")
    dense = PagedCache.from_arrays(array, array, page_size=16)
    variants = [dense, *(dense.quantize(text) for text in ("int8", "int8/token", "uint4", "i2"))]
    for i, a in enumerate(variants):
        for j, b in enumerate(variants):
            assert (a == b) == (i == j)


def test_sizes_count_scales() -> None:
    cache = grown("k=int8/token v=int4/token:16", 32)
    assert cache.bits_per_value == (8 + 16 / 32 + 4 + 16 / 16) / 2
    assert cache.nbytes * 8 == cache.bits_per_value * 2 * 2 * 3 * 32 * 32
    assert "key int8/token, value int4/token:16" in repr(cache)


scale_types = st.sampled_from(("float16", "bfloat16", "float32"))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_shapes_formats_and_cuts(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(("int8", "uint8", "int4", "uint4", "int2", "uint2")))
    scale = data.draw(st.sampled_from(("tensor", "channel", "token")))
    group = None if scale == "tensor" else data.draw(st.none() | st.integers(1, 20))
    form = PageFormat(name, scale, group, data.draw(scale_types))
    width = data.draw(st.sampled_from((1, 2, 7, 16, 33, 64, 80, 96, 128, 576)))
    count = data.draw(st.integers(1, 50))
    page_size = data.draw(st.integers(1, 24))
    key, value = tokens(count, seed=data.draw(st.integers(0, 99)), batch=1, width=width)
    policy = CachePolicy(form, form, recent_tokens=data.draw(st.integers(0, 30)))
    cache = PagedCache.from_arrays(key, value, page_size=page_size, policy=policy)
    decoded = cache.key_array()
    assert np.isfinite(decoded).all()
    for block in cache.to_proto().blocks:
        if block.has_encoded_key():
            parts = parts_of(block.encoded_key).values()
            rows = decoded[:, :, block.start : block.start + block.length]
            assert parts.tobytes() == np.ascontiguousarray(rows).tobytes()
    cut = data.draw(st.integers(0, count))
    rest = cache.truncate(cut).append(key[:, :, cut:], value[:, :, cut:])
    assert rest.key_array()[:, :, :cut].tobytes() == decoded[:, :, :cut].tobytes()
    assert PagedCache.from_proto(cache.truncate(cut).to_proto()) == cache.truncate(cut) or cut == 0


@pytest.mark.parametrize("policy", ["int8", "int4", "k=q4_0 v=bf16"])
def test_any_number_of_threads_gives_the_same_pages(policy: str) -> None:
    dense = grown(None, 16 * 40 + 3)
    serial = dense.quantize(policy, num_threads=1)
    for num_threads in (0, 3, -1):
        assert dense.quantize(policy, num_threads=num_threads) == serial
        again = serial.dequantize(num_threads=num_threads)
        assert again == serial.dequantize(num_threads=1)
    assert dense.quantize(policy, [5, 2], num_threads=2) == dense.quantize(policy, [5, 2])


def test_the_first_page_that_cannot_be_encoded_is_named_whatever_the_threads() -> None:
    key, value = tokens(64)
    key[0, 1, 20, 3] = np.nan
    key[1, 2, 50, 4] = np.inf
    cache = PagedCache.from_arrays(key, value, page_size=16)
    for num_threads in (1, 4):
        with pytest.raises(CodedError, match="batch 0, head 1, token 4, index 3") as error:
            cache.quantize("int8", num_threads=num_threads)
        assert error.value.code == "quant.not_finite"
