"""Whatever can be chosen can be read back exactly, and nothing unused or extreme shows."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_model import TYPE_NAMES, parts_of

from onnx_light import CachePolicy, PagedCache, PageFormat, snapshot
from onnx_light import onnx as ol

SCALE_TYPES = ("float16", "bfloat16", "float32")
SCALES = ("tensor", "channel", "channel:1", "channel:5", "token", "token:7", "token:64")
CODES = ["/".join(parts) for parts in itertools.product(TYPE_NAMES, SCALES, SCALE_TYPES)]
DENSE = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
RECORDS = ["q8_0", "q4_0"]
LARGEST = float(np.finfo("f4").max)


def uneven(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Numbers of all sizes up to 1000, zeros, and constants that every type holds, in both ways."""
    rng = np.random.default_rng(seed)
    array = rng.standard_normal(shape) * np.exp(rng.uniform(-3, 3, (*shape[:3], 1)))
    array[:, :, 1::5] = 0
    array[:, :, 2::5] = -1.5
    array[..., 1::6] = 0
    array[..., 2::6] = 96
    return array.clip(-1000, 1000).astype("f4")


def check_read_back(cache: PagedCache) -> None:
    """That all ways out of a cache lead back to its bits, and that they mean what the rule says."""
    for block, page in zip(cache.to_proto().blocks, cache.pages, strict=True):
        for side in ("key", "value"):
            if not block.WhichOneof(f"{side}_payload").startswith("encoded"):
                continue
            value = getattr(block, f"encoded_{side}")
            if value.has_affine():
                part = cache.slice(page.start, page.end)
                meant = parts_of(value).values()[:, :, : len(page)]
                assert getattr(part, f"{side}_array")("f4").tobytes() == meant.tobytes()
    data = snapshot.dumps([cache])
    with snapshot.open(data, verify="full") as opened:
        ways = [
            opened[0],
            PagedCache.from_proto(cache.to_proto()),
            PagedCache.from_proto(
                ol.PagedCacheProto.FromString(cache.to_proto().SerializeToString())
            ),
            pickle.loads(pickle.dumps(cache)),
        ]
        for again in ways:
            assert again == cache
            assert again.to_proto() == cache.to_proto()
            for found, wanted in zip(again.to_arrays("f4"), cache.to_arrays("f4"), strict=True):
                assert found.tobytes() == wanted.tobytes()
        assert opened[0].policy == cache.policy


def check_error(cache: PagedCache, array: Any) -> None:
    """Codes of 8 bits are half a scale off, and up to one more at the ends of a range, where scale
    and zero point were rounded; the search for fewer bits may cut single numbers off, but not many.
    Subnormal scales are rounded coarsely.
    """
    parts = parts_of(cache.to_proto().blocks[0].encoded_key)
    error = np.abs(cache.key_array().astype("f8") - array)
    if parts.bits == 8:
        reach = 0.501 if parts.signed else 1.51
        assert (error <= reach * parts.scales + 128 * 2.0**-149).all()
    else:
        scales = parts.scales.max() + 2.0**-147
        assert ((error / scales) ** 2).mean() <= 1


@pytest.mark.parametrize("text", [*DENSE, *CODES, *RECORDS])
def test_every_format_is_read_back(text: str) -> None:
    form = PageFormat(text)
    assert PageFormat(str(form)) == form
    width = 96 if text in RECORDS else 33
    key, value = uneven((2, 2, 29, width)), uneven((2, 2, 29, width), 1)
    cache = PagedCache.from_arrays(key, value, page_size=12, policy=CachePolicy(form, form))
    assert [page.key.format.name for page in cache.pages[:2]] == [form.name] * 2
    check_read_back(cache)
    check_read_back(cache.truncate(17))
    decoded = cache.key_array("f4")
    assert not decoded[key == 0].any()


@pytest.mark.parametrize("text", ["int8", "k=uint4/channel:5 v=uint2/token", "k=f16 v=int4/tensor"])
def test_what_lies_past_the_length_is_not_read(text: str) -> None:
    """Dense rows of a message past its length, whatever they hold."""
    key, value = uneven((1, 2, 16, 24)), uneven((1, 2, 16, 24), 1)
    made = []
    for poison in (0, np.nan, np.inf, -3e38):
        proto = ol.PagedCacheProto()
        block = proto.blocks.add(start=0, length=11)
        for side, array in (("key", key), ("value", value)):
            array = array.copy()
            array[:, :, 11:] = poison
            getattr(block, f"add_{side}")().CopyFrom(ol.from_array(array))
        cache = PagedCache.from_proto(proto)
        made.append(cache.quantize(text, pages=[0]))
        made.append(PagedCache(16, text).concat(cache).quantize(text, pages=[0]))
        made.append(cache.slice(0, 11).quantize(text, pages=[0]))
    for other in made:
        assert other == made[0]
        assert other.to_proto().SerializeToString() == made[0].to_proto().SerializeToString()
    assert made[0] == PagedCache.from_arrays(
        key[:, :, :11], value[:, :, :11], page_size=16
    ).quantize(text, pages=[0])


@pytest.mark.parametrize("storage", TYPE_NAMES)
def test_codes_and_scales_past_the_length_are_not_read(storage: str) -> None:
    """Encoded rows of a message past its length: any codes, and scales that are no numbers."""
    array = uneven((2, 2, 16, 24))
    whole = PagedCache.from_arrays(array, array, page_size=16, policy=f"{storage}/token:8/float32")
    wanted = PagedCache.from_proto(whole.truncate(11).to_proto())  # without a policy
    proto = whole.to_proto()
    proto.blocks[0].length = 11
    for value in (proto.blocks[0].encoded_key, proto.blocks[0].encoded_value):
        scale = np.array(ol.to_array(value.affine.scale))
        scale[:, :, 11:] = [np.nan, np.inf, -np.inf]
        value.affine.scale.raw_data = scale.tobytes()
        codes = np.frombuffer(value.raw_data, "u1").reshape(2, 2, 16, -1).copy()
        codes[:, :, 11:] ^= 0xFF
        value.raw_data = codes.tobytes()
    cache = PagedCache.from_proto(proto)
    assert cache == wanted
    written = cache.to_proto().SerializeToString()
    assert written == wanted.to_proto().SerializeToString()
    for call in (
        lambda c: c.key_array(),
        lambda c: c.slice(3, 11).key_array(),
        lambda c: c.gather([1, 0]).key_array(),
        lambda c: c.repage(4).key_array(),
        lambda c: c.append(array, array).key_array()[:, :, :11],
        lambda c: c.quantize("uint8/channel", pages=[0]).key_array(),
        lambda c: c.dequantize().key_array(),
        lambda c: c.attend(array[:, :, :2]),
    ):
        assert np.isfinite(call(cache)).all()
        assert call(cache).tobytes() == call(wanted).tobytes()


@pytest.mark.parametrize("scale_type", SCALE_TYPES)
@pytest.mark.parametrize("name", TYPE_NAMES)
def test_the_largest_floats_stay_finite(name: str, scale_type: str) -> None:
    """And about as near to what they were as numbers of any other size."""
    for scale in ("tensor", "channel", "channel:3", "token", "token:5"):
        for low, high in ((-1, 1), (0, 1), (-1, 0), (-1, 0.5), (-0.3, 1)):
            for factor in (1, 0.999, 0.97, 0.5, 0.1):
                rng = np.random.default_rng(7)
                array = rng.uniform(low, high, (1, 1, 20, 20))
                array.flat[[0, -1]] = low, high
                array[0, 0, 3], array[0, 0, :, 7] = high, low
                array = (array * factor * LARGEST).astype("f4")
                policy = f"{name}/{scale}/{scale_type}"
                cache = PagedCache.from_arrays(array, array, page_size=20, policy=policy)
                decoded = cache.key_array()
                assert np.isfinite(decoded).all(), (policy, low, high, factor)
                check_error(cache, array)


@pytest.mark.parametrize("text", ["int4/channel", "uint4/token", "int2/token:8", "uint2/channel:8"])
def test_the_search_is_the_same_for_numbers_of_any_size(text: str) -> None:
    """All of it is products and quotients, so a power of two changes nothing but the scales."""
    array = np.random.default_rng(3).standard_normal((1, 2, 32, 32)).astype("f4")
    plain = PagedCache.from_arrays(array, array, page_size=32, policy=f"{text}/float32")
    for power in (-100, -60, 60, 100, 115):
        moved = np.ldexp(array, power).astype("f4")
        cache = PagedCache.from_arrays(moved, moved, page_size=32, policy=f"{text}/float32")
        page, other = cache.pages[0].key, plain.pages[0].key
        np.testing.assert_array_equal(page.codes, other.codes)
        np.testing.assert_array_equal(page.scales, np.ldexp(other.scales, power))


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_finite_numbers(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(tuple(TYPE_NAMES)))
    text = f"{name}/{data.draw(st.sampled_from(SCALES))}/{data.draw(st.sampled_from(SCALE_TYPES))}"
    tokens, width = data.draw(st.tuples(st.integers(1, 9), st.sampled_from((1, 7, 16, 33))))
    special = st.sampled_from((0.0, -0.0, 1e-45, -1e-40, 1e-30, 1.0, 65504.0, LARGEST, -LARGEST))
    numbers = data.draw(st.lists(finite | special, min_size=1, max_size=12))
    order = np.random.default_rng(0).integers(0, len(numbers), (1, 1, tokens, width))
    array = np.array(numbers, "f4")[order]
    cache = PagedCache.from_arrays(array, array, page_size=tokens, policy=text)
    check_read_back(cache)
    decoded = cache.key_array()
    assert np.isfinite(decoded).all()
    check_error(cache, array)
    assert not decoded[array == 0].any()
