"""The cache as a value: operations against a list of tokens, forks, equality, copies, errors."""

from __future__ import annotations

import collections.abc
import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from cache_model import DTYPES, Model, raises, random_bits, same
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

import onnx_light
from onnx_light import PagedCache
from onnx_light.cache import CacheComparison, Page, PageError, PagePayload, Pages
from onnx_light.errors import CodedError

SHAPE = (2, 2, 3, 4)  # batch, heads, key width, value width


class Forks(RuleBasedStateMachine):
    """Values that come from each other in any way, each beside what it must hold for ever."""

    values = Bundle("values")

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.pairs: list[tuple[PagedCache, Model]] = []

    def add(self, cache: PagedCache, model: Model) -> tuple[PagedCache, Model]:
        model.check(cache)
        self.pairs.append((cache, model))
        return cache, model

    @rule(target=values, page_size=st.sampled_from([1, 3, 16, 20, 64]))
    def new(self, page_size: int) -> Any:
        return self.add(PagedCache(page_size), Model(0, []))

    @rule(
        target=values,
        pair=values,
        count=st.integers(0, 40),
        key=st.sampled_from(["float32", "float32", "bfloat16"]),
        value=st.sampled_from(["float32", "float32", "float8_e5m2"]),
    )
    def append(self, pair: Any, count: int, key: str, value: str) -> Any:
        cache, model = pair
        batch, heads, key_width, value_width = SHAPE
        batch = cache.batch or batch
        k = random_bits(self.rng, (batch, heads, count, key_width), key)
        v = random_bits(self.rng, (batch, heads, count, value_width), value)
        return self.add(cache.append(k, v), model.append(k, v))

    @rule(target=values, pair=values, data=st.data())
    def truncate(self, pair: Any, data: st.DataObject) -> Any:
        cache, model = pair
        end = data.draw(st.integers(cache.start, cache.end))
        return self.add(cache.truncate(end), model.between(model.start, end))

    @rule(target=values, pair=values, data=st.data())
    def slice(self, pair: Any, data: st.DataObject) -> Any:
        cache, model = pair
        start = data.draw(st.integers(cache.start, cache.end))
        end = data.draw(st.integers(start, cache.end))
        return self.add(cache.slice(start, end), model.between(start, end))

    @rule(target=values, pair=values, data=st.data())
    def drop_before(self, pair: Any, data: st.DataObject) -> Any:
        cache, model = pair
        position = data.draw(st.integers(0, cache.end))
        starts = [page.start for page in cache.pages if page.end > position]
        start = starts[0] if starts else (cache.pages[-1].start if len(cache) else cache.start)
        return self.add(cache.drop_before(position), model.between(start, model.end))

    @rule(target=values, pair=values, other=values)
    def concat(self, pair: Any, other: Any) -> Any:
        (cache, model), (second, second_model) = pair, other
        if len(cache) and len(second) and cache.batch != second.batch:
            with pytest.raises(CodedError):
                cache.concat(second)
            return pair
        return self.add(cache.concat(second), model.concat(second_model))

    @rule(target=values, pair=values, data=st.data())
    def gather(self, pair: Any, data: st.DataObject) -> Any:
        cache, model = pair
        if not len(cache):
            return pair
        one = st.integers(0, cache.batch - 1)
        indices = data.draw(st.lists(one, min_size=1, max_size=3))
        return self.add(cache.gather(indices), model.gather(indices))

    @rule(target=values, pair=values, page_size=st.sampled_from([1, 5, 16, 64]))
    def repage(self, pair: Any, page_size: int) -> Any:
        cache, model = pair
        result = cache.repage(page_size)
        assert all(len(page) <= page_size for page in result.pages)
        return self.add(result, model)

    @rule(target=values, pair=values)
    def message(self, pair: Any) -> Any:
        cache, model = pair
        result = PagedCache.from_proto(cache.to_proto())
        assert (result == cache) == (len(cache) > 0 or cache.start == 0)
        return self.add(result, Model(model.start if len(cache) else 0, model.tokens))

    @rule(target=values, pair=values)
    def pickled(self, pair: Any) -> Any:
        cache, model = pair
        result = pickle.loads(pickle.dumps(cache))
        assert result == cache
        assert result.page_size == cache.page_size
        return self.add(result, model)

    @rule(pair=consumes(values))
    def forget(self, pair: Any) -> None:
        self.pairs = [kept for kept in self.pairs if kept[0] is not pair[0]]

    @invariant()
    def nothing_changed(self) -> None:
        for cache, model in self.pairs:
            assert cache.end == model.end

    def teardown(self) -> None:
        for cache, model in self.pairs:
            model.check(cache)


Forks.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestForks = Forks.TestCase


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def grown(rng: np.random.Generator, length: int, page_size: int = 16) -> PagedCache:
    k = random_bits(rng, (2, 3, length, 4))
    v = random_bits(rng, (2, 3, length, 5))
    return PagedCache.from_arrays(k, v, page_size=page_size)


def test_decoding_gives_full_pages(rng: np.random.Generator) -> None:
    cache = PagedCache(page_size=16)
    for _ in range(50):
        array = random_bits(rng, (1, 2, 1, 8))
        cache = cache.append(array, array)
    assert [len(page) for page in cache.pages] == [16, 16, 16, 2]


def test_another_type_begins_a_page(rng: np.random.Generator) -> None:
    cache = PagedCache(page_size=16)
    formats = []
    for name in DTYPES:
        array = random_bits(rng, (1, 1, 5, 8), name)
        cache = cache.append(array, array)
        formats.append(name)
    assert [str(page.key.format) for page in cache.pages] == formats
    assert [len(page) for page in cache.pages] == [5] * 5


def test_arguments_out_of_range(rng: np.random.Generator) -> None:
    cache = grown(rng, 40).drop_before(16)
    assert cache.start == 16
    for end in (15, 41, -1):
        raises("cache.position", "end", cache.truncate, end)
    for position in (-1, 41):
        raises("cache.position", "position", cache.drop_before, position)
    raises("cache.position", "start", cache.slice, 15, 20)
    raises("cache.position", "start", cache.slice, 30, 20)
    raises("cache.position", "end", cache.slice, 20, 41)
    raises("cache.batch_index", "batch_indices[1]", cache.gather, [0, 2])
    raises("cache.batch_index", "batch_indices[0]", cache.gather, [-1])
    raises("cache.batch_index", "batch_indices", cache.gather, [])
    for size in (0, -3):
        raises("cache.page_size", "page_size", cache.repage, size)
        raises("cache.page_size", "page_size", PagedCache, size)
    array = np.zeros((1, 1, 1, 1), "f4")
    raises("cache.position", "start", PagedCache.from_arrays, array, array, start=-1)
    last = PagedCache.from_arrays(array, array, start=2**63 - 2)
    assert last.end == 2**63 - 1
    raises("cache.too_large", "key", last.append, array, array)
    raises("cache.mismatch", "other", cache.concat, last)
    raises("cache.mismatch", "other", cache.compare, cache.truncate(39))
    raises("quant.format", "policy", PagedCache, 64, "int9")
    raises("quant.policy", "policy", PagedCache.from_arrays, array, array, policy="")
    for wrong in (2**63, 1.0, "1", None):
        with pytest.raises(TypeError):
            cache.truncate(wrong)
    with pytest.raises(TypeError):
        cache.concat(None)


def test_indices_of_numpy(rng: np.random.Generator) -> None:
    cache = grown(rng, 40)
    expected = cache.key_array()[[1, 1, 0]]
    for indices in ([1, 1, 0], (1, 1, 0), np.array([1, 1, 0]), np.array([1, 1, 0], "u1")):
        assert same(cache.gather(indices).key_array(), expected)
    assert cache.truncate(np.int64(7)).end == 7


def test_equality(rng: np.random.Generator) -> None:
    k = random_bits(rng, (1, 2, 20, 8))
    make = PagedCache.from_arrays
    base = make(k, k, page_size=16)
    assert base == make(k.copy(), k.copy(), page_size=16)
    assert base == make(k[:, :, :10], k[:, :, :10], page_size=16).append(k[:, :, 10:], k[:, :, 10:])
    assert base == base.repage(8).repage(16)
    assert base != base.repage(8)
    assert base != make(k, k, page_size=16, start=1)
    for at in (0, k.size - 1):
        changed = k.copy()
        changed.view("u4").reshape(-1)[at] ^= 1
        assert base != make(changed, k, page_size=16)
        assert base != make(k, changed, page_size=16)
    zero = np.zeros_like(k)
    assert make(zero, zero) != make(-zero, zero)
    assert make(zero, zero) != make(zero.astype("f2"), zero)
    assert PagedCache(16) == PagedCache(64)
    for other in (None, 1, "text", [], object()):
        assert base != other
        assert (base == other) is False


def test_values_have_no_hash(rng: np.random.Generator) -> None:
    cache = grown(rng, 5)
    for value in (cache, cache.pages[0]):
        with pytest.raises(TypeError, match="unhashable"):
            hash(value)


def test_copies_are_the_value_itself(rng: np.random.Generator) -> None:
    cache = grown(rng, 20)
    assert copy.copy(cache) is cache
    assert copy.deepcopy(cache) is cache
    assert copy.deepcopy({"layers": [cache]})["layers"][0] is cache


def test_values_cannot_be_changed(rng: np.random.Generator) -> None:
    cache = grown(rng, 20)
    page = cache.pages[0]
    comparison = cache.compare(cache)
    names = ("start", "end", "page_size", "pages", "policy", "anything")
    for value in (cache, page, page.key, cache.pages, comparison, comparison.pages[0]):
        for name in (*names, "key", "array", "key_max"):
            with pytest.raises(AttributeError):
                setattr(value, name, 1)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(rng: np.random.Generator, protocol: int) -> None:
    whole = grown(rng, 100, page_size=20)
    caches = [
        PagedCache(7),
        whole,
        whole.truncate(33),
        whole.drop_before(50),
        whole.truncate(0),
        whole.slice(45, 45),
    ]
    for cache in caches:
        if protocol < 2:
            with pytest.raises(TypeError):
                pickle.dumps(cache, protocol)
            continue
        data = pickle.dumps(cache, protocol)
        assert b"onnx_light\n" in data or b"onnx_light\x94" in data or protocol == 2
        again = pickle.loads(data)
        assert type(again) is PagedCache
        assert again == cache
        assert (again.start, again.end) == (cache.start, cache.end)
        assert again.page_size == cache.page_size
        assert same(again.key_array(), cache.key_array())


def test_pickle_has_no_rows_past_the_end(rng: np.random.Generator) -> None:
    marked = np.full((1, 1, 40, 8), 1.5, "f4")
    marked[:, :, 20:] = np.frombuffer(b"\xab\xcd\xef\x01", "f4")[0]
    cache = PagedCache.from_arrays(marked, marked).truncate(20)
    assert b"\xab\xcd\xef\x01" not in pickle.dumps(cache)


def test_broken_state(rng: np.random.Generator) -> None:
    state = grown(rng, 20).__getstate__()
    for key in state:
        with pytest.raises(KeyError):
            PagedCache.__new__(PagedCache).__setstate__({k: state[k] for k in state if k != key})
    with pytest.raises(CodedError):
        PagedCache.__new__(PagedCache).__setstate__({**state, "blocks": b"\xff"})
    with pytest.raises(CodedError):
        PagedCache.__new__(PagedCache).__setstate__({**state, "page_size": 0})


def test_pages_are_a_sequence(rng: np.random.Generator) -> None:
    cache = grown(rng, 50)
    pages = cache.pages
    assert isinstance(pages, collections.abc.Sequence)
    assert len(pages) == 4
    assert [page.start for page in pages] == [0, 16, 32, 48]
    assert [page.start for page in reversed(pages)] == [48, 32, 16, 0]
    assert [page.start for page in pages[1:3]] == [16, 32]
    assert [page.start for page in pages[::-2]] == [48, 16]
    assert pages[5:] == []
    assert pages[-1].start == pages[3].start == 48
    assert pages[np.int64(1)].start == 16
    for index in (4, -5, 2**40):
        with pytest.raises(IndexError, match="4 pages"):
            pages[index]
    with pytest.raises(TypeError):
        pages["0"]  # type: ignore[call-overload]
    assert pages[2] in pages
    assert pages.index(cache.pages[2]) == 2
    assert pages.count(pages[1]) == 1
    assert pages.index(pages[1], -3, 100) == 1
    assert None not in pages
    assert pages.count("text") == 0
    for start, stop in ((2, 4), (0, 1), (0, -3)):
        with pytest.raises(ValueError, match="not among"):
            pages.index(pages[1], start, stop)
    other = grown(rng, 50).pages[0]
    assert other not in pages
    with pytest.raises(ValueError, match="not among"):
        pages.index(other)
    assert len(PagedCache().pages) == 0
    assert list(PagedCache().pages) == []


def test_pages(rng: np.random.Generator) -> None:
    k = random_bits(rng, (2, 3, 20, 4), "float16")
    v = random_bits(rng, (2, 3, 20, 5))
    page = PagedCache.from_arrays(k, v, start=7).pages[0]
    assert (page.start, page.end, len(page), page.capacity) == (7, 27, 20, 32)
    assert page.key.nbytes == 2 * 3 * 32 * 4 * 2
    assert page.value.nbytes == 2 * 3 * 32 * 5 * 4
    assert page.nbytes == page.key.nbytes + page.value.nbytes
    assert page.key.array.shape == (2, 3, 20, 4)
    assert page == PagedCache.from_arrays(k, v, start=7).pages[0]
    assert page != PagedCache.from_arrays(k, v, start=8).pages[0]
    assert page != "text"
    assert repr(page) == "Page(start=7, end=27, capacity=32, key=float16, value=float32)"
    assert "float16" in repr(page.key)
    assert repr(PagedCache().pages) == "Pages(0)"


def test_repr_has_a_line_for_each_run(rng: np.random.Generator) -> None:
    cache = grown(rng, 1000)
    array = random_bits(rng, (2, 3, 4, 4), "bfloat16")
    value = random_bits(rng, (2, 3, 4, 5))
    lines = repr(cache.append(array, value)).splitlines()
    assert len(lines) == 4
    assert "[0, 1004)" in lines[0]
    assert "1004 tokens" in lines[0]
    assert "[0, 992) 62 pages of 16 tokens: key float32, value float32" in lines[1]
    assert "[992, 1000) 1 page of 8 tokens" in lines[2]
    assert "[1000, 1004) 1 page of 4 tokens: key bfloat16, value float32" in lines[3]
    assert repr(PagedCache()) == "PagedCache([0, 0), 0 tokens, page size 64, 0 bytes)"


def test_compare_against_float64(rng: np.random.Generator) -> None:
    k = rng.standard_normal((2, 3, 40, 8)).astype("f4")
    v = rng.standard_normal((2, 3, 40, 5)).astype("f4")
    k2, v2 = k.astype("f2"), v.astype(DTYPES["bfloat16"])
    first = PagedCache.from_arrays(k, v, page_size=16)
    second = PagedCache.from_arrays(k2, v2, page_size=7)
    result = first.compare(second)
    key_error = np.abs(k.astype("f8") - k2.astype("f8"))
    value_error = np.abs(v.astype("f8") - v2.astype("f8"))
    assert [(e.start, e.end) for e in result.pages] == [(0, 16), (16, 32), (32, 40)]
    for e in result.pages:
        keys, values = key_error[:, :, e.start : e.end], value_error[:, :, e.start : e.end]
        assert e.key_max == keys.max()
        assert e.value_max == values.max()
        assert e.key_rms == pytest.approx(np.sqrt((keys**2).mean()))
        assert e.value_rms == pytest.approx(np.sqrt((values**2).mean()))
    assert result.key_max == key_error.max()
    assert result.value_max == value_error.max()
    assert result.key_rms == pytest.approx(np.sqrt((key_error**2).mean()))
    assert result.value_rms == pytest.approx(np.sqrt((value_error**2).mean()))
    as_dict = result.to_dict()
    assert (as_dict["start"], as_dict["end"]) == (0, 40)
    assert as_dict["key_max"] == result.key_max
    assert as_dict["pages"] == [e.to_dict() for e in result.pages]
    assert as_dict["pages"][1]["start"] == 16
    assert "3 pages" in repr(result)
    assert "key max" in repr(result.pages[0])


def test_compare_of_strange_numbers() -> None:
    k = np.array([np.nan, np.inf, -np.inf, 1], "f4").reshape(1, 1, 1, 4)
    cache = PagedCache.from_arrays(k, k)
    same_numbers = cache.compare(cache)
    assert (same_numbers.key_max, same_numbers.key_rms) == (0, 0)
    other = k.copy()
    other[..., 0] = 0
    result = cache.compare(PagedCache.from_arrays(other, k))
    assert np.isnan(result.key_max)
    assert np.isnan(result.key_rms)
    assert result.value_max == 0
    assert np.isnan(result.to_dict()["key_max"])
    empty = PagedCache().compare(PagedCache())
    assert empty.pages == []
    assert (empty.key_max, empty.key_rms) == (0, 0)


def test_public_names() -> None:
    assert onnx_light.PagedCache is PagedCache
    assert PagedCache.__module__ == "onnx_light"
    classes = (CacheComparison, Page, PageError, PagePayload, PagedCache, Pages)
    for cls in classes:
        assert cls.__doc__
        for name, member in vars(cls).items():
            if not name.startswith("_"):
                assert inspect.getdoc(member), f"{cls.__name__}.{name}"
