"""Sessions whose state is caches as values."""

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_light._core import held_values
from structured_models import HEADS, WIDTH, cache, decoder, feeds, make, paged, rows, value_info

from attention.attention_oracle import attend
from onnx_light import PagedCache, snapshot
from onnx_light.errors import CodedError
from onnx_light.onnx import save_model
from onnx_light.runtime import InferenceSession


def raises(code: str, path: str, call: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(CodedError) as caught:
        call(*args, **kwargs)
    assert (caught.value.code, caught.value.path) == (code, path)


def joined(*steps: dict[str, Any]) -> tuple[Any, Any]:
    keys, values = (np.concatenate([step[name] for step in steps], axis=2) for name in "kv")
    return keys, values


def expected(query: Any, key: Any, value: Any) -> tuple[Any, Any]:
    """What two layers give: the second one's queries are the first one's results."""
    first, bound = attend(query, key, value)
    second, rest = attend(first.astype(np.float32), key, value)
    # A change of a query changes scores by at most its size times that of a key.
    reach = np.abs(key).sum(-1).max() * np.abs(value).max() * 4
    return second, rest + bound.max() * reach


def test_caches_are_fed_back() -> None:
    session = InferenceSession(decoder())
    steps = [feeds(5, 0), feeds(1, 1), feeds(1, 2), feeds(20, 3)]
    for index, step in enumerate(steps):
        (y,) = session.run(["y"], step)
        keys, values = joined(*steps[: index + 1])
        result, bound = expected(step["q"], keys, values)
        assert np.all(np.abs(y - result) <= bound)
    assert list(session.state) == ["layers.0", "layers.1"]
    for layer in session.state.values():
        np.testing.assert_array_equal(layer.key_array(), keys)
        np.testing.assert_array_equal(layer.value_array(), values)


def test_inputs_and_outputs_are_caches() -> None:
    session = InferenceSession(decoder())
    assert [item.type for item in session.get_inputs()][-2:] == ["onnx_light.PagedKVCache"] * 2
    assert [item.type for item in session.get_outputs()][-1] == "onnx_light.PagedKVCache"
    past = PagedCache.from_arrays(feeds(7, 1)["k"], feeds(7, 1)["v"])
    step = feeds(2, 2)
    y, first, second = session.run(None, step | {"layers.0": past, "layers.1": past})
    assert first == second == past.append(step["k"], step["v"])
    assert session.state["layers.0"] == first
    again, *_ = session.run(None, step | {"layers.0": past, "layers.1": past})
    np.testing.assert_array_equal(y, again)
    (y,) = session.run_with_ort_values(["y"], step)
    assert y.shape() == [1, 4, 2, WIDTH]


def test_truncate_fork_reset_and_assign() -> None:
    session = InferenceSession(decoder(block_size=4))
    session.run(None, feeds(10, 0))
    fork = session.fork()
    (after,) = session.run(["y"], feeds(1, 1))
    kept = session.state
    session.run(None, feeds(3, 2))
    session.truncate(10)
    (again,) = session.run(["y"], feeds(1, 1))
    np.testing.assert_array_equal(after, again)
    assert dict(kept) == dict(session.state)
    (forked,) = fork.run(["y"], feeds(1, 1))
    np.testing.assert_array_equal(after, forked)
    raises("runtime.position", "end", session.truncate, 12)
    other = InferenceSession(decoder())
    other.state = fork.state
    assert dict(other.state) == dict(fork.state)
    session.reset()
    assert [len(item) for item in session.state.values()] == [0, 0]


PROGRAM = """
import sys, numpy
sys.path[:0] = {path!r}
from structured_models import feeds
from onnx_light.runtime import InferenceSession
session = InferenceSession({model!r})
session.load_state({state!r})
numpy.save({result!r}, session.run(["y"], feeds(2, 9))[0])
"""


@pytest.mark.parametrize("policy", ["", "int8", "key=uint4/channel value=int8/token"])
def test_another_process_goes_on_with_equal_bits(tmp_path: Path, policy: str) -> None:
    model, state, result = (str(tmp_path / name) for name in ("m.onnx", "s.kvcache", "y.npy"))
    save_model(decoder(block_size=8, policy=policy), model)
    session = InferenceSession(model)
    for seed in range(30):
        session.run(None, feeds(1, seed))
    tokens = np.arange(30)
    session.save_state(state, tokens=tokens)
    with snapshot.open(state) as opened:
        assert list(opened.caches) == ["layers.0", "layers.1"]
    (y,) = session.run(["y"], feeds(2, 9))
    program = PROGRAM.format(path=sys.path, model=model, state=state, result=result)
    subprocess.run([sys.executable, "-c", program], check=True)
    np.testing.assert_array_equal(np.load(result), y)
    other = InferenceSession(decoder(block_size=8, layers=3))
    before = dict(other.state)
    with pytest.raises(CodedError) as caught:
        other.load_state(state, expect=None)
    assert (caught.value.code, caught.value.path) == ("runtime.layers", "layers.2")
    assert dict(other.state) == before


def test_a_failing_run_keeps_the_state_and_names_the_operator() -> None:
    session = InferenceSession(decoder(max_tokens=12))
    session.run(None, feeds(10, 0))
    before, held = dict(session.state), held_values()
    raises("runtime.max_tokens", "attention.0.K", session.run, None, feeds(3, 1))
    wrong = feeds(1, 1) | {"v": np.zeros((1, HEADS, 2, WIDTH), np.float32)}
    raises("cache.shape", "attention.0.value", session.run, None, wrong)
    assert dict(session.state) == before
    assert held_values() == held
    session.run(None, feeds(2, 1))
    assert len(session.state["layers.0"]) == 12


def test_a_failure_in_the_middle_of_a_run() -> None:
    # The first layer has succeeded when the second one, whose cache is longer, has not.
    session = InferenceSession(decoder(max_tokens=12))
    short = PagedCache.from_arrays(feeds(2, 1)["k"], feeds(2, 1)["v"])
    long = PagedCache.from_arrays(feeds(12, 1)["k"], feeds(12, 1)["v"])
    session.state = {"layers.0": short, "layers.1": long}
    raises("runtime.max_tokens", "attention.1.K", session.run, None, feeds(1, 1))
    assert dict(session.state) == {"layers.0": short, "layers.1": long}


def test_hundreds_of_runs_and_failures_leave_nothing() -> None:
    session = InferenceSession(decoder(max_tokens=400))
    held = held_values()
    failing = session.fork()
    long = PagedCache.from_arrays(feeds(400, 1)["k"], feeds(400, 1)["v"])
    failing.state = {"layers.0": PagedCache(), "layers.1": long}  # the second layer fails
    before = dict(failing.state)
    for seed in range(400):
        step = feeds(1, seed)
        outputs = ["y"] if seed % 3 else None  # with and without caches among the results
        session.run(outputs, step)
        raises("runtime.max_tokens", "attention.1.K", failing.run, outputs, step)
        assert held_values() == held
    assert dict(failing.state) == before
    keys, values = joined(*(feeds(1, seed) for seed in range(400)))
    for layer in session.state.values():
        np.testing.assert_array_equal(layer.key_array(), keys)
        np.testing.assert_array_equal(layer.value_array(), values)


def test_inputs_and_results_of_a_run_are_not_kept() -> None:
    session = InferenceSession(decoder())
    step = feeds(4000, 0)  # larger than what may stay bound until the next run
    kept = [weakref.ref(step["q"]), weakref.ref(session.run(["y"], step)[0])]
    del step
    gc.collect()
    assert [item() for item in kept] == [None, None]


def test_providers_may_be_set_again() -> None:
    session = InferenceSession(decoder())
    session.run(None, feeds(2, 1))
    (before,) = session.fork().run(["y"], feeds(3, 0))
    session.set_providers(["CPUExecutionProvider"])
    (after,) = session.run(["y"], feeds(3, 0))
    np.testing.assert_array_equal(before, after)


def test_empty_defaults_keep_their_pages() -> None:
    model = decoder(layers=1)
    model.graph.paged_cache_initializer.append(PagedCache().to_proto("layers.0"))
    session = InferenceSession(model)
    session.run(None, feeds(3, 0))
    session.truncate(0)
    session.run(None, feeds(2, 0))
    assert len(session.state["layers.0"]) == 2


def test_wrong_caches_are_refused_before_anything_runs() -> None:
    session = InferenceSession(decoder())
    session.run(None, feeds(3, 0))
    before = dict(session.state)
    k = np.zeros((1, HEADS + 1, 3, WIDTH), np.float32)
    other = PagedCache.from_arrays(k, k)
    raises("runtime.shape", "layers.1", session.run, None, feeds(1, 1) | {"layers.1": other})
    with pytest.raises(TypeError, match=r"layers\.0"):
        session.run(None, feeds(1, 1) | {"layers.0": np.array(3)})
    with pytest.raises(CodedError, match=r"layers\.1"):
        session.state = {"layers.0": PagedCache(), "layers.1": other}
    raises("runtime.layers", "layers.1", setattr, session, "state", {"layers.0": PagedCache()})
    assert dict(session.state) == before


def test_embedded_caches_are_start_states_and_constants() -> None:
    model = decoder(layers=1)
    start = PagedCache.from_arrays(feeds(6, 1)["k"], feeds(6, 1)["v"]).quantize("int8")
    model.graph.paged_cache_initializer.append(start.to_proto("layers.0"))
    session = InferenceSession(model)
    assert session.state["layers.0"] == start
    step = feeds(2, 2)
    _, present = session.run(None, step)
    assert present == start.append(step["k"], step["v"])
    session.reset()
    assert session.state["layers.0"] == start

    constant = make(
        [paged("q k v prompt", "y present")],
        [rows("q", 4), rows("k"), rows("v")],
        [rows("y", 4), cache("present")],
    )
    constant.graph.paged_cache_initializer.append(start.to_proto("prompt"))
    session = InferenceSession(constant)
    assert [item.name for item in session.get_inputs()] == ["q", "k", "v"]
    for _ in range(2):
        _, present = session.run(None, step)
        assert present == start.append(step["k"], step["v"])


def test_inputs_that_are_not_bound_must_be_fed() -> None:
    model = make(
        [paged("q k v past", "y present")],
        [rows("q", 4), rows("k"), rows("v"), cache("past")],
        [rows("y", 4), cache("present")],
    )
    session = InferenceSession(model)
    raises("runtime.feed", "past", session.run, None, feeds(1, 1))
    assert len(session.run(["present"], feeds(4, 1) | {"past": PagedCache()})[0]) == 4
    assert not session.state
    raises("runtime.state", "", session.truncate, 0)


def test_tokens_follow_structured_caches() -> None:
    from onnx import helper

    model = make(
        [
            helper.make_node("PagedCacheLength", ["layers.0"], ["position"], domain="ai.rt"),
            helper.make_node("Shape", ["input_ids"], ["ids"]),
            paged("q k v layers.0", "y present.layers.0"),
        ],
        [value_info("input_ids", 7, [1, None]), rows("q", 4), rows("k"), rows("v")]
        + [cache("layers.0")],
        [rows("y", 4), cache("present.layers.0"), value_info("position", 7, [])],
        bind={"layers.0": "present.layers.0"},
    )
    session = InferenceSession(model)
    for step, count in enumerate((4, 1, 2)):
        ids = np.arange(count)[None] + 10 * step
        (position,) = session.run(["position"], feeds(count, step) | {"input_ids": ids})
        assert position == [0, 4, 5][step]
    assert session.tokens is not None
    assert session.tokens.tolist() == [0, 1, 2, 3, 10, 20, 21]
    session.truncate(5)
    assert session.tokens.tolist() == [0, 1, 2, 3, 10]


def test_forks_in_threads() -> None:
    held = held_values()
    session = InferenceSession(decoder())
    session.run(None, feeds(20, 0))
    alone = []
    for seed in range(8):
        fork = session.fork()
        alone.append([fork.run(["y"], feeds(1, seed + step))[0] for step in range(30)])

    def work(seed: int) -> list[Any]:
        fork = session.fork()
        return [fork.run(["y"], feeds(1, seed + step))[0] for step in range(30)]

    with ThreadPoolExecutor(8) as threads:
        for one, other in zip(alone, threads.map(work, range(8)), strict=True):
            np.testing.assert_array_equal(one, other)
    assert held_values() == held
    assert len(session.state["layers.0"]) == 20
