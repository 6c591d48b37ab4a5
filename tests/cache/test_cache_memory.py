"""Threads, and memory that must come back."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cache_model import random_bits, same

import onnx_light.onnx as ours
from onnx_light import PagedCache
from onnx_light.errors import CodedError


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(17)


def test_appends_of_eight_threads_to_one_value(rng: np.random.Generator) -> None:
    start = np.zeros((1, 2, 5, 1024), "f4")
    base = PagedCache(page_size=32).append(start, start)
    together = threading.Barrier(8)

    def append(number: int) -> tuple[PagedCache, PagedCache]:
        array = np.full((1, 2, 3, 1024), number, "f4")
        together.wait()
        first = base.append(array, -array)
        return first, first.append(-array, array)

    with ThreadPoolExecutor(8) as pool:
        for step in range(60):
            before = base.to_arrays()
            results = list(pool.map(append, range(8)))
            for number, (first, second) in enumerate(results):
                keys, values = second.to_arrays()
                assert same(keys[:, :, : len(base)], before[0])
                assert same(values[:, :, : len(base)], before[1])
                assert (keys[:, :, -6:-3] == number).all()
                assert (values[:, :, -6:-3] == -number).all()
                assert (keys[:, :, -3:] == -number).all()
                assert same(first.key_array(), keys[:, :, :-3])
            assert same(base.key_array(), before[0])
            base = results[step % 8][0]


def test_readers_beside_an_appender(rng: np.random.Generator) -> None:
    token = random_bits(rng, (2, 2, 1, 64))
    latest = [PagedCache(page_size=64)]
    done = threading.Event()
    failures = []

    def read() -> None:
        while not done.is_set():
            cache = latest[0]
            keys, values = cache.to_arrays()
            expected = np.repeat(token, len(cache), 2) if len(cache) else keys
            if not (
                same(keys, expected)
                and same(values, expected)
                and cache == cache.truncate(cache.end)
            ):
                failures.append(len(cache))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(500):
        latest[0] = latest[0].append(token, token)
    done.set()
    for reader in readers:
        reader.join()
    assert not failures
    assert len(latest[0]) == 500


def test_long_calls_let_other_threads_run(rng: np.random.Generator) -> None:
    """A thread that waits for the interpreter's lock gets it while a cache is copied."""

    def lets_others_run(call: Callable[[], object]) -> bool:
        ran = threading.Event()
        ready = threading.Lock()

        def other_thread() -> None:
            with ready:
                ran.set()

        with ready:
            thread = threading.Thread(target=other_thread)
            thread.start()
        for _ in range(50):
            call()
            if ran.is_set():
                break
        seen = ran.is_set()
        thread.join()
        return seen

    array = random_bits(rng, (1, 4, 4096, 128))
    cache = PagedCache.from_arrays(array, array)
    other = PagedCache.from_arrays(array, array, page_size=100)
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: cache.append(array, array),
        "key_array": lambda: cache.key_array("float16"),
        "gather": lambda: cache.gather([0, 0]),
        "repage": lambda: cache.repage(50),
        "compare": lambda: cache.compare(other),
        "==": lambda: cache == other.repage(64),
    }
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is asked to give the lock away
    try:
        for name, call in calls.items():
            assert lets_others_run(call), name
        assert not lets_others_run(lambda: cache.truncate(5))
    finally:
        sys.setswitchinterval(interval)


def resident() -> int:
    """Bytes of this process that lie in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def growth(step: Callable[[], object], times: int = 60) -> int:
    """How much memory the steps after the first few keep."""
    for _ in range(times // 3):
        step()
    before = resident()
    for _ in range(times):
        step()
    return resident() - before


def test_memory_comes_back(rng: np.random.Generator) -> None:
    array = random_bits(rng, (1, 2, 1000, 128))  # 1 MB
    cache = PagedCache.from_arrays(array, array)
    proto = cache.to_proto()
    data = proto.SerializeToString()

    def failing() -> None:
        with pytest.raises(CodedError):
            cache.append(array, array[:, :1])
        with pytest.raises(CodedError):
            PagedCache.from_proto(bad)

    bad = ours.PagedCacheProto.FromString(data)
    bad.blocks[-1].start = 0
    steps: dict[str, Callable[[], object]] = {
        "append": lambda: cache.append(array, array),
        "arrays": lambda: [page.key.array for page in cache.pages] + list(cache.to_arrays()),
        "operations": lambda: (
            cache.slice(5, 999).gather([0, 0]).repage(100).concat(cache.gather([0, 0]))
        ),
        "messages": lambda: PagedCache.from_proto(cache.to_proto()).append(array, array),
        "state": lambda: PagedCache.__new__(PagedCache).__setstate__(cache.__getstate__()),
        "compare": lambda: cache.compare(cache.repage(100)),
        "errors": failing,
    }
    for name, step in steps.items():
        # A leak of one payload in each step would be 60 MB.
        assert growth(step) < 20 << 20, name


def test_a_window_frees_its_pages(rng: np.random.Generator) -> None:
    array = random_bits(rng, (1, 2, 64, 2048))  # 1 MB
    state = [PagedCache()]

    def move() -> None:
        cache = state[0].append(array, array)
        state[0] = cache.drop_before(max(0, cache.end - 200))

    assert growth(move) < 20 << 20
    assert state[0].nbytes <= 5 * 2 * array.nbytes


def test_input_of_a_borrowing_message_is_let_go(rng: np.random.Generator) -> None:
    array = random_bits(rng, (1, 1, 64, 64))
    data = PagedCache.from_arrays(array, array).to_proto().SerializeToString()
    references = sys.getrefcount(data)
    proto = ours.PagedCacheProto()
    proto.ParseFromString(data, ours.ParseOptions(no_copy=True))
    cache = PagedCache.from_proto(proto)
    view = cache.pages[0].key.array
    del proto, cache
    gc.collect()
    assert sys.getrefcount(data) > references
    assert same(view, array)
    del view
    gc.collect()
    assert sys.getrefcount(data) == references
