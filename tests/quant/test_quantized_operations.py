"""Random operations on caches of any formats, each beside the numbers that it must hold.

What an operation keeps, it keeps bit for bit. Where it may encode, a page either has the bits of
before, or what encoding by the rules makes of them, which is computed here.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule
from quant_model import CODE_TYPES, TYPE_NAMES, by_range, quantized

from onnx_light import CachePolicy, PagedCache, PageFormat, snapshot

SIDES = ("key", "value")
RECORDS = ("q8_0", "q4_0")
DENSE: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
WIDTHS = ((32, 64), (64, 64), (96, 32), (128, 576), (64, 96), (1, 80), (7, 33))
MOST = {"float8_e4m3fn": 448, "float8_e5m2": 57344}  # where float8 saturates

codes = st.builds(
    lambda name, scale, group: PageFormat(name, scale, None if scale == "tensor" else group),
    st.sampled_from(tuple(TYPE_NAMES)),
    st.sampled_from(("tensor", "channel", "token")),
    st.none() | st.sampled_from((1, 3, 8, 16, 32)),
)
plain = st.sampled_from(tuple(DENSE)).map(PageFormat)
records = st.sampled_from(RECORDS).map(PageFormat)


def policies(widths: tuple[int, int]) -> st.SearchStrategy[CachePolicy]:
    forms = codes | plain if any(width % 32 for width in widths) else codes | records | plain
    few = st.sampled_from((0, 0, 0, 1, 9, 30))
    return st.builds(CachePolicy, key=forms, value=forms, sink_tokens=few, recent_tokens=few)


def encodes(form: PageFormat) -> bool:
    return form.name not in DENSE


def has_form(page: Any, side: str, form: PageFormat, width: int) -> bool:
    """A group of all tokens or of the whole width needs no number, and scales may be FLOAT."""
    found = getattr(page, side).format
    whole = {"channel": page.capacity, "token": width}.get(str(form.scale), 1)
    groups = [min(one.group or whole, whole) for one in (found, form)]
    return (found.name, str(found.scale)) == (form.name, str(form.scale)) and len(set(groups)) == 1


def cast(rows: Any, form: PageFormat) -> Any:
    most = MOST.get(form.name, np.inf)
    return np.clip(rows, -most, most).astype(DENSE[form.name]).astype(np.float32)


def records_of(rows: Any, name: str) -> Any:
    """What llama.cpp's records of these rows mean, its rules in float32."""
    blocks = rows.reshape(-1, 32)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    scale = np.abs(extreme) / np.float32(127) if name == "q8_0" else extreme / np.float32(-8)
    with np.errstate(divide="ignore"):
        reciprocal = np.where(scale == 0, 0, np.float32(1) / scale)
    places = blocks * reciprocal
    if name == "q8_0":
        levels = np.trunc(places + np.copysign(np.float32(0.5), places))
    else:
        levels = np.minimum(np.trunc(places + np.float32(8.5)), 15) - 8
    return (levels * scale.astype(np.float16).astype(np.float32)).reshape(rows.shape)


def check_encoded(rows: Any, found: Any, form: PageFormat, whole: bool) -> None:
    """That rows encoded in that format mean `found`; `whole`: no room is left in the page."""
    if form.name in RECORDS:
        np.testing.assert_array_equal(found, records_of(rows, form.name))
        return
    bits, signed = CODE_TYPES[TYPE_NAMES[form.name]]
    arguments = (rows, form.name, str(form.scale), form.group)
    scales, zeros = by_range(*arguments)
    if ((scales < 2**-14) & (scales != 0)).any() or (scales == 0)[rows != 0].any():
        scales, zeros = by_range(*arguments, np.float32)
    wanted = quantized(rows, scales, zeros, bits, signed)
    assert (np.abs(found - rows) <= 1.01 * (1 << bits) * scales).all()
    error, by_rule = ((values.astype("f8") - rows) ** 2 for values in (found, wanted))
    if bits == 8:  # a tie in float64 may be none in float32
        assert np.isclose(error.sum(), by_rule.sum(), rtol=1e-3, atol=1e-12)
        assert (np.abs(found - wanted) <= 1.01 * scales).all()
    elif whole:
        assert error.sum() <= by_rule.sum() * (1 + 1e-6) + 1e-12


class Pair(NamedTuple):
    cache: PagedCache
    key: Any  # what it decodes to, [batch, heads, tokens, width]
    value: Any
    grown: bool  # by appends of float32 alone, so that the policy says everything

    def rows(self, index: Any) -> list[Any]:
        return [self.key[index], self.value[index]]


class Operations(RuleBasedStateMachine):
    pairs = Bundle("pairs")

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)
        self.widths = (0, 0)
        self.all: list[Pair] = []

    def keep(self, cache: PagedCache, rows: list[Any], grown: bool = False) -> Pair:
        """After an operation that changes no number."""
        arrays = cache.to_arrays("float32")
        for found, wanted in zip(arrays, rows, strict=True):
            assert len(cache) == 0 or found.tobytes() == wanted.tobytes()
        self.all.append(Pair(cache, rows[0], rows[1], grown))
        return self.all[-1]

    def recoded(self, cache: PagedCache, rows: list[Any], grown: bool = False) -> Pair:
        """After an operation that may have encoded pages: each has the rows or what they become."""
        held = []
        for side, wanted in zip(SIDES, rows, strict=True):
            wanted = wanted.copy()
            for page in cache.pages:
                place = np.s_[:, :, page.start - cache.start : page.end - cache.start]
                payload = getattr(page, side)
                found = cache.slice(page.start, page.end)
                found = getattr(found, f"{side}_array")("float32")
                if found.tobytes() != wanted[place].tobytes():
                    if encodes(payload.format):
                        whole = page.capacity == len(page)
                        check_encoded(wanted[place], found, payload.format, whole)
                    else:
                        np.testing.assert_array_equal(found, cast(wanted[place], payload.format))
                wanted[place] = found
            held.append(wanted)
        return self.keep(cache, held, grown)

    @initialize(target=pairs, widths=st.sampled_from(WIDTHS), data=st.data())
    def first(self, widths: tuple[int, int], data: st.DataObject) -> Pair:
        self.widths = widths
        return self.begun(data)

    @rule(target=pairs, data=st.data())
    def begun(self, data: st.DataObject) -> Pair:
        page_size = data.draw(st.sampled_from((1, 3, 8, 16, 40)))
        policy = data.draw(policies(self.widths))
        empty = [np.zeros((2, 2, 0, width), "f4") for width in self.widths]
        pair = self.keep(PagedCache(page_size, policy), empty, grown=True)
        return self.appended(pair, data.draw(st.integers(0, 90)), "float32")

    def numbers(self, batch: int, count: int, width: int) -> Any:
        """Multiples of 1/64: channels of all sizes off the middle, one of zeros, equal tokens."""
        array = self.rng.standard_normal((batch, 2, count, width))
        array = array * np.exp(np.arange(width) % 4) + np.arange(width) % 3
        array[..., width // 2] = 0
        array[:, :, count // 2 : count // 2 + 2] = 0.5
        return (np.rint(array * 64) / 64).astype("f4")

    @rule(
        target=pairs,
        pair=pairs,
        count=st.integers(1, 50),
        dtype=st.sampled_from(("float32", "float32", "float32", "float16")),
    )
    def append(self, pair: Pair, count: int, dtype: str) -> Pair:
        return self.appended(pair, count, dtype)

    def appended(self, pair: Pair, count: int, dtype: str) -> Pair:
        batch = pair.cache.batch or 2
        new = [self.numbers(batch, count, width).astype(dtype) for width in self.widths]
        if len(pair.cache) == 0:
            rows = [array.astype("f4") for array in new]
        else:
            rows = [np.concatenate(both, 2).astype("f4") for both in zip(pair[1:3], new)]  # noqa: B905
        cache = pair.cache.append(*new)
        result = self.recoded(cache, rows, pair.grown and dtype == "float32")
        if result.grown:
            self.check_policy(cache)
        return result

    def check_policy(self, cache: PagedCache) -> None:
        policy = cache.policy
        for page in cache.pages:
            is_middle = page.start >= policy.sink_tokens
            is_middle &= page.end <= cache.end - policy.recent_tokens
            is_middle &= len(page) == cache.page_size
            for side, width in zip(SIDES, self.widths, strict=True):
                form = getattr(policy, side)
                if encodes(form) and not is_middle:
                    form = PageFormat("float32")
                assert has_form(page, side, form, width)

    @rule(target=pairs, pair=pairs, data=st.data())
    def truncate(self, pair: Pair, data: st.DataObject) -> Pair:
        cache = pair.cache
        end = data.draw(st.integers(cache.start, cache.end))
        return self.keep(cache.truncate(end), pair.rows(np.s_[:, :, : end - cache.start]))

    @rule(target=pairs, pair=pairs, data=st.data())
    def slice(self, pair: Pair, data: st.DataObject) -> Pair:
        cache = pair.cache
        start = data.draw(st.integers(cache.start, cache.end))
        end = data.draw(st.integers(start, cache.end))
        rows = pair.rows(np.s_[:, :, start - cache.start : end - cache.start])
        return self.keep(cache.slice(start, end), rows)

    @rule(target=pairs, pair=pairs, data=st.data())
    def drop_before(self, pair: Pair, data: st.DataObject) -> Pair:
        cache = pair.cache.drop_before(data.draw(st.integers(0, pair.cache.end)))
        return self.keep(cache, pair.rows(np.s_[:, :, cache.start - pair.cache.start :]))

    @rule(target=pairs, pair=pairs, other=pairs)
    def concat(self, pair: Pair, other: Pair) -> Pair:
        if len(pair.cache) == 0 or len(other.cache) == 0 or pair.cache.batch != other.cache.batch:
            return pair
        rows = [np.concatenate(both, 2) for both in zip(pair[1:3], other[1:3], strict=True)]
        return self.keep(pair.cache.concat(other.cache), rows)

    @rule(target=pairs, pair=pairs, data=st.data())
    def gather(self, pair: Pair, data: st.DataObject) -> Pair:
        if len(pair.cache) == 0:
            return pair
        one = st.integers(0, pair.cache.batch - 1)
        indices = data.draw(st.lists(one, min_size=1, max_size=3))
        return self.keep(pair.cache.gather(indices), pair.rows(np.s_[indices]))

    @rule(target=pairs, pair=pairs, page_size=st.sampled_from((1, 5, 16, 64)))
    def repage(self, pair: Pair, page_size: int) -> Pair:
        cache = pair.cache.repage(page_size)
        assert all(len(page) <= page_size for page in cache.pages)
        return self.recoded(cache, pair.rows(np.s_[:]))

    @rule(target=pairs, pair=pairs, data=st.data())
    def quantize(self, pair: Pair, data: st.DataObject) -> Pair:
        policy = data.draw(policies(self.widths))
        cache = pair.cache.quantize(policy)
        pages = list(cache.pages)
        for page, before in zip(pages, pair.cache.pages, strict=True):
            is_middle = page.start >= policy.sink_tokens
            is_middle &= page.end <= cache.end - policy.recent_tokens
            is_middle &= page is not pages[-1] or len(page) >= cache.page_size
            for side, width in zip(SIDES, self.widths, strict=True):
                form, found = getattr(policy, side), getattr(page, side).format
                if is_middle or not encodes(form):
                    assert has_form(page, side, form, width)
                else:  # what is encoded stays so
                    assert not encodes(found) or found == getattr(before, side).format
        return self.recoded(cache, pair.rows(np.s_[:]))

    @rule(target=pairs, pair=pairs, data=st.data())
    def quantize_pages(self, pair: Pair, data: st.DataObject) -> Pair:
        policy = data.draw(policies(self.widths))
        count = len(pair.cache.pages)
        chosen = data.draw(st.sets(st.integers(0, count - 1), max_size=3)) if count else set()
        cache = pair.cache.quantize(policy, pages=sorted(chosen))
        for index, (page, before) in enumerate(zip(cache.pages, pair.cache.pages, strict=True)):
            if index not in chosen:
                assert page == before
                continue
            for side, width in zip(SIDES, self.widths, strict=True):
                assert has_form(page, side, getattr(policy, side), width)
        return self.recoded(cache, pair.rows(np.s_[:]))

    @rule(target=pairs, pair=pairs)
    def dequantize(self, pair: Pair) -> Pair:
        cache = pair.cache.dequantize()
        assert not any(encodes(getattr(page, s).format) for page in cache.pages for s in SIDES)
        return self.keep(cache, pair.rows(np.s_[:]))

    @rule(target=pairs, pair=pairs, way=st.sampled_from(("message", "pickle", "snapshot")))
    def there_and_back(self, pair: Pair, way: str) -> Pair:
        if len(pair.cache) == 0:
            return pair
        if way == "message":
            cache = PagedCache.from_proto(pair.cache.to_proto())
        elif way == "pickle":
            cache = pickle.loads(pickle.dumps(pair.cache))
        else:
            with snapshot.open(snapshot.dumps([pair.cache]), verify="full") as opened:
                cache = opened[0]
        assert cache == pair.cache
        return self.keep(cache, pair.rows(np.s_[:]))

    def teardown(self) -> None:
        for pair in tuple(self.all):  # what is held does not change
            self.keep(pair.cache, pair.rows(np.s_[:]))


Operations.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestOperations = Operations.TestCase
