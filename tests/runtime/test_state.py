"""Fork, truncate, reset, replace, override, and what fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from decoder_models import (
    FORMS,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    Graph,
    optimum,
    random_ids,
    standard,
    whole_run,
)
from onnx import TensorProto, helper, numpy_helper

from onnx_light import PagedCache
from onnx_light.errors import CodedError
from onnx_light.runtime import InferenceSession

IDS = random_ids(1, 11, seed=5)
TOLERANCE = 2e-5


def quiet() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def logits_of(session: InferenceSession, ids: np.ndarray, **feed: Any) -> np.ndarray:
    logits: np.ndarray = session.run(["logits"], {"input_ids": ids, **feed})[0]
    return logits


def content(session: InferenceSession) -> tuple[Any, ...]:
    """All that a caller can see of the state, as bytes."""
    arrays = [
        (name, cache.key_array().tobytes(), cache.value_array().tobytes())
        for name, cache in session.state.items()
        if len(cache)
    ]
    tokens = session.tokens
    return arrays, None if tokens is None else tokens.tolist()


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.fixture(params=FORMS)
def model(request: pytest.FixtureRequest) -> onnx.ModelProto:
    return FORMS[request.param]()


def test_the_start(model: onnx.ModelProto) -> None:
    session = InferenceSession(model, quiet())
    assert session.tokens is not None
    assert session.tokens.shape == (0,)
    assert [len(cache) for cache in session.state.values()] == [0] * LAYERS
    assert "layers.1" in session.state
    assert "layers.2" not in session.state
    with pytest.raises(KeyError):
        session.state["layers.2"]


def test_forks_go_separate_ways(model: onnx.ModelProto) -> None:
    session = InferenceSession(model, quiet())
    logits_of(session, IDS[:, :6])
    fork = session.fork()
    before = content(fork)
    assert before == content(session)
    one = logits_of(session, IDS[:, 6:])
    assert content(fork) == before
    other_ids = (IDS + 1) % VOCABULARY
    other = logits_of(fork, other_ids[:, 6:])
    close(one, whole_run(model, IDS)["logits"][:, 6:])
    close(
        other, whole_run(model, np.concatenate([IDS[:, :6], other_ids[:, 6:]], 1))["logits"][:, 6:]
    )
    assert fork.get_inputs() is session.get_inputs()


@pytest.mark.parametrize("end", [0, 1, 5, 9])
def test_truncate(model: onnx.ModelProto, end: int) -> None:
    session = InferenceSession(model, quiet())
    logits_of(session, IDS[:, :9])
    fork = session.fork()
    session.truncate(end)
    assert session.tokens.tolist() == IDS[0, :end].tolist()
    assert {len(cache) for cache in session.state.values()} == {end}
    close(logits_of(session, IDS[:, end:]), whole_run(model, IDS)["logits"][:, end:])
    assert len(fork.tokens) == 9


def test_truncate_of_a_batch() -> None:
    ids = random_ids(2, 6)
    session = InferenceSession(standard(), quiet())
    logits_of(session, ids)
    session.truncate(4)
    assert session.tokens.tolist() == ids[:, :4].tolist()
    # An empty state takes any number of sequences.
    session.truncate(0)
    logits_of(session, ids[:1])
    with pytest.raises(CodedError, match="2 sequences") as caught:
        logits_of(session, ids)
    assert caught.value.code == "runtime.feed"
    assert len(session.tokens) == 6


@pytest.mark.parametrize("end", [-1, 7])
def test_truncate_beyond_the_state(end: int) -> None:
    session = InferenceSession(standard(), quiet())
    logits_of(session, IDS[:, :6])
    with pytest.raises(CodedError, match=r"\[0, 6\)") as caught:
        session.truncate(end)
    assert caught.value.code == "runtime.position"
    assert len(session.tokens) == 6


def test_reset(model: onnx.ModelProto) -> None:
    session = InferenceSession(model, quiet())
    first = logits_of(session, IDS)
    session.reset()
    assert len(session.tokens) == 0
    assert {len(cache) for cache in session.state.values()} == {0}
    np.testing.assert_array_equal(logits_of(session, IDS), first)


def test_a_failing_run_keeps_the_state(model: onnx.ModelProto) -> None:
    session = InferenceSession(model, quiet())
    logits_of(session, IDS[:, :6])
    before = content(session)
    for ids in (np.array([[3, VOCABULARY]]), np.array([[1.5]]), np.zeros((1, 1, 1), np.int64)):
        with pytest.raises(Exception):  # noqa: B017, PT011  onnxruntime has no common class
            logits_of(session, ids)
        assert content(session) == before
    with pytest.raises(Exception, match="nothing"):
        session.run(["nothing"], {"input_ids": IDS[:, 6:]})
    with pytest.raises(Exception, match="unknown"):
        logits_of(session, IDS[:, 6:], unknown=IDS)
    assert content(session) == before
    close(logits_of(session, IDS[:, 6:]), whole_run(model, IDS)["logits"][:, 6:])


def test_an_output_that_cannot_be_returned() -> None:
    model = standard()
    model.graph.node.append(helper.make_node("SequenceConstruct", ["logits"], ["list"]))
    model.graph.output.append(
        helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None)
    )
    session = InferenceSession(model, quiet())
    with pytest.raises(CodedError, match="list") as caught:
        session.run(["list"], {"input_ids": IDS})
    assert caught.value.code == "runtime.output"
    assert len(session.tokens) == 0
    assert len(session.run_with_ort_values(["list"], {"input_ids": IDS})) == 1
    assert len(session.tokens) == 11


def test_state_is_of_its_moment() -> None:
    session = InferenceSession(standard(), quiet())
    logits_of(session, IDS[:, :6])
    state = session.state  # nothing is converted yet
    logits_of(session, IDS[:, 6:])
    session.truncate(1)
    assert len(state["layers.0"]) == 6
    assert state["layers.0"] is state["layers.0"]


def test_arrays_of_the_state_are_not_the_sessions() -> None:
    session = InferenceSession(standard(), quiet())
    logits_of(session, IDS[:, :6])
    before = content(session)
    keys = session.state["layers.0"].key_array()
    if keys.flags.writeable:
        keys[:] = 1
    tokens = session.tokens
    tokens[:] = 0
    assert content(session) == before


def test_state_goes_through_caches(model: onnx.ModelProto) -> None:
    session = InferenceSession(model, quiet())
    logits_of(session, IDS[:, :6])
    other = InferenceSession(model, quiet())
    other.state = {name: session.state[name].repage(4) for name in session.state}
    assert other.tokens is None
    assert content(other)[0] == content(session)[0]
    np.testing.assert_array_equal(logits_of(other, IDS[:, 6:]), logits_of(session, IDS[:, 6:]))
    assert other.tokens is None
    other.state = {name: PagedCache() for name in session.state}
    assert len(other.tokens) == 0
    close(logits_of(other, IDS), whole_run(model, IDS)["logits"])


def cache_of(count: int, **changes: Any) -> PagedCache:
    shape = {"batch": 1, "heads": KV_HEADS, "tokens": count, "width": WIDTH, "dtype": "float32"}
    shape |= changes
    key = np.ones([shape[name] for name in ("batch", "heads", "tokens", "width")], shape["dtype"])
    return PagedCache.from_arrays(key, key, start=changes.get("start", 0))


@pytest.mark.parametrize(
    ("caches", "code", "what"),
    [
        ({"layers.0": cache_of(3)}, "layers", "layers.1"),
        ([cache_of(3), cache_of(3), cache_of(3)], "layers", "layers.2"),
        ([cache_of(3), cache_of(4)], "shape", "length 4"),
        ([cache_of(3), cache_of(3, heads=3)], "shape", "layers.1: key"),
        ([cache_of(3), cache_of(3, width=8)], "shape", "layers.1: key"),
        ([cache_of(3), cache_of(3, batch=2)], "shape", "batch 2"),
        ([cache_of(3, start=1), cache_of(3, start=1)], "position", "position 1"),
    ],
)
def test_refused_caches(caches: Any, code: str, what: str) -> None:
    session = InferenceSession(standard(), quiet())
    logits_of(session, IDS)
    before = content(session)
    if isinstance(caches, list):
        caches = {f"layers.{index}": cache for index, cache in enumerate(caches)}
    with pytest.raises(CodedError, match=what) as caught:
        session.state = caches
    assert caught.value.code == f"runtime.{code}"
    assert content(session) == before


def test_dtypes_that_fit_exactly() -> None:
    session = InferenceSession(standard(), quiet())
    session.state = {f"layers.{i}": cache_of(3, dtype="float16") for i in range(LAYERS)}
    assert session.state["layers.0"].key_array().dtype == np.float32
    half = InferenceSession(standard("float16"), quiet())
    with pytest.raises(CodedError, match="float32 does not fit") as caught:
        half.state = {f"layers.{i}": cache_of(3) for i in range(LAYERS)}
    assert caught.value.code == "runtime.dtype"
    with pytest.raises(TypeError, match="PagedCache"):
        half.state = {f"layers.{i}": np.ones(3) for i in range(LAYERS)}


# What is fed in place of the state


def pasts(model: onnx.ModelProto, ids: np.ndarray) -> dict[str, Any]:
    outputs = whole_run(model, ids)
    return {
        name.replace("present", "past_key_values"): array
        for name, array in outputs.items()
        if name != "logits"
    }


def test_fed_pasts_override_the_state(model: onnx.ModelProto) -> None:
    session = InferenceSession(model, quiet())
    logits_of(session, (IDS[:, :3] + 1) % VOCABULARY)
    close(
        logits_of(session, IDS[:, 6:8], **pasts(model, IDS[:, :6])),
        whole_run(model, IDS)["logits"][:, 6:8],
    )
    assert session.tokens is None  # those of the fed pasts are not known
    assert len(session.state["layers.0"]) == 8
    close(logits_of(session, IDS[:, 8:]), whole_run(model, IDS)["logits"][:, 8:])


def test_fed_empty_pasts_begin_anew(model: onnx.ModelProto) -> None:
    session = InferenceSession(model, quiet())
    logits_of(session, IDS[:, :3])
    empty = {name: array[:, :, :0] for name, array in pasts(model, IDS[:, :1]).items()}
    close(logits_of(session, IDS, **empty), whole_run(model, IDS)["logits"])
    assert session.tokens.tolist() == IDS[0].tolist()


def test_some_fed_pasts_of_another_length() -> None:
    model = standard()
    session = InferenceSession(model, quiet())
    logits_of(session, IDS[:, :3])
    fed = pasts(model, IDS[:, :6])
    some = {"past_key_values.1.key": fed["past_key_values.1.key"]}
    for count in (3, 0):
        session.truncate(count)
        with pytest.raises(CodedError, match="feed all bound inputs or none"):
            logits_of(session, IDS[:, 6:], **some)
        assert len(session.tokens) == count


# Masks and positions of the caller


def test_padding_is_the_callers_from_then_on() -> None:
    model = optimum()
    padded = np.array([[0, 0, 5, 6], [1, 2, 3, 4]])
    mask = np.array([[0, 0, 1, 1], [1, 1, 1, 1]])
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    session = InferenceSession(model, quiet())
    logits_of(session, padded, attention_mask=mask, position_ids=positions)
    before = content(session)
    following = np.array([[7], [5]])
    for feed in ({}, {"attention_mask": np.pad(mask, ((0, 0), (0, 1)), constant_values=1)}):
        with pytest.raises(CodedError, match="attention_mask had zeros") as caught:
            logits_of(session, following, **feed)
        assert caught.value.code == "runtime.feed"
        assert content(session) == before
    last = logits_of(
        session,
        following,
        attention_mask=np.pad(mask, ((0, 0), (0, 1)), constant_values=1),
        position_ids=np.array([[2], [4]]),
    )
    close(last[0, 0], whole_run(model, np.array([[5, 6, 7]]))["logits"][0, -1])
    close(last[1, 0], whole_run(model, np.array([[1, 2, 3, 4, 5]]))["logits"][0, -1])
    session.reset()
    close(logits_of(session, IDS), whole_run(model, IDS)["logits"])


def test_positions_of_the_caller() -> None:
    session = InferenceSession(optimum(), quiet())
    logits_of(session, IDS[:, :3], position_ids=np.array([[0, 1, 2]]))
    logits_of(session, IDS[:, 3:4])
    logits_of(session, IDS[:, 4:5], position_ids=np.array([[7]]))
    with pytest.raises(CodedError, match="position_ids were not 4 to 4"):
        logits_of(session, IDS[:, 5:6])


def test_a_mask_of_the_new_tokens_only_is_refused() -> None:
    for form in ("optimum", "genai"):
        session = InferenceSession(FORMS[form](), quiet())
        logits_of(session, IDS[:, :6])
        before = content(session)
        with pytest.raises(CodedError, match=r"\[batch, 11\]") as caught:
            logits_of(session, IDS[:, 6:], attention_mask=np.ones((1, 5), np.int64))
        assert caught.value.path == "attention_mask"
        assert content(session) == before


# Caches that do not grow by what is new


def shrinking_decoder(rows: int) -> onnx.ModelProto:
    """As standard(), but the keys of layer 1 come out with their last `rows` rows only."""
    model = standard()
    for node in model.graph.node:
        if node.op_type == "Attention" and node.output[1] == "present.1.key":
            node.output[1] = "all_keys"
    tensors = {"starts": [-rows], "ends": [2**31], "axes": [2]}
    for name, value in tensors.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    inputs = ["all_keys", *tensors]
    model.graph.node.append(helper.make_node("Slice", inputs, ["present.1.key"]))
    return model


def test_a_window_that_shows_only_when_it_runs() -> None:
    session = InferenceSession(shrinking_decoder(4), quiet())
    logits_of(session, IDS[:, :4])
    before = content(session)
    with pytest.raises(CodedError, match=r"present\.1\.key: \[1, 2, 4, 16\] came out") as caught:
        logits_of(session, IDS[:, 4:5])
    assert caught.value.code == "runtime.present"
    assert content(session) == before


# Declared bindings


def with_bindings(model: onnx.ModelProto, pairs: dict[str, str]) -> Any:
    from onnx_light.onnx import ModelProto

    ours = ModelProto.from_onnx(model)
    for past, present in pairs.items():
        ours.graph.persistent_bindings.add(input_name=past, output_name=present)
    return ours


def test_declared_names() -> None:
    model = standard()
    renamed = {}
    for name in [item.name for item in model.graph.input if item.name != "input_ids"]:
        _, layer, side = name.split(".")
        renamed[name] = f"kv/{layer}/{side}"
        renamed[f"present.{layer}.{side}"] = f"next.{layer}.{side}"
    for item in (*model.graph.input, *model.graph.output):
        item.name = renamed.get(item.name, item.name)
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    pairs = {
        f"kv/{layer}/{side}": f"next.{layer}.{side}"
        for layer in range(LAYERS)
        for side in ("key", "value")
    }
    session = InferenceSession(with_bindings(model, pairs), quiet())
    close(logits_of(session, IDS[:, :6]), whole_run(standard(), IDS)["logits"][:, :6])
    close(logits_of(session, IDS[:, 6:]), whole_run(standard(), IDS)["logits"][:, 6:])
    assert list(session.state) == ["layers.0", "layers.1"]
    assert len(session.state["layers.1"]) == 11
    # What is declared may also come as plain bytes, which onnxruntime reads too.
    other = InferenceSession(with_bindings(model, pairs).SerializeToString(), quiet())
    close(logits_of(other, IDS), whole_run(standard(), IDS)["logits"])
    assert len(other.state["layers.0"]) == 11


def counter(default: bool) -> Any:
    """total' = total + x."""
    graph = Graph("float32", 0)
    graph.input("x", TensorProto.FLOAT, [3])
    graph.input("total", TensorProto.FLOAT, [3])
    graph.op("Add", "x", "total", out="next")
    graph.output("next", TensorProto.FLOAT, [3])
    model = graph.model(18)
    if default:
        start = numpy_helper.from_array(np.full(3, 10, np.float32), "total")
        model.graph.initializer.append(start)
    return with_bindings(model, {"total": "next"})


def test_a_bound_tensor_that_is_no_cache() -> None:
    session = InferenceSession(counter(default=True), quiet())
    ones = np.ones(3, np.float32)
    assert session.run(None, {"x": ones})[0].tolist() == [11, 11, 11]
    fork = session.fork()
    assert session.run(None, {"x": ones})[0].tolist() == [12, 12, 12]
    assert session.run(None, {"x": ones, "total": 5 * ones})[0].tolist() == [6, 6, 6]
    assert session.run(None, {"x": ones})[0].tolist() == [7, 7, 7]
    assert fork.run(None, {"x": ones})[0].tolist() == [12, 12, 12]
    state = dict(session.state)
    assert state["total"].tolist() == [7, 7, 7]
    state["total"][:] = 20
    assert session.state["total"].tolist() == [7, 7, 7]
    session.state = state
    state["total"][:] = 0
    assert session.run(None, {"x": ones})[0].tolist() == [21, 21, 21]
    session.reset()
    assert session.run(None, {"x": ones})[0].tolist() == [11, 11, 11]
    assert session.tokens is None
    with pytest.raises(CodedError, match="no caches"):
        session.truncate(0)


def test_a_bound_tensor_without_a_start() -> None:
    session = InferenceSession(counter(default=False), quiet())
    ones = np.ones(3, np.float32)
    with pytest.raises(CodedError, match="feed it in the first run"):
        session.run(None, {"x": ones})
    assert session.run(None, {"x": ones, "total": ones})[0].tolist() == [2, 2, 2]
    assert session.run(None, {"x": ones})[0].tolist() == [3, 3, 3]


@pytest.mark.parametrize("kind", ["message", "file", "file with external data"])
def test_caches_that_begin_with_initializers(kind: str, tmp_path: Path) -> None:
    model = standard()
    start = pasts(model, IDS[:, :6])
    for name, array in start.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    source: Any = model
    if kind != "message":
        source = tmp_path / "model.onnx"
        onnx.save(model, source, save_as_external_data="external" in kind, size_threshold=256)
    session = InferenceSession(source, quiet())
    for _ in range(2):
        assert len(session.state["layers.1"]) == 6
        assert session.tokens is None
        close(logits_of(session, IDS[:, 6:]), whole_run(standard(), IDS)["logits"][:, 6:])
        session.reset()
    session.truncate(0)
    close(logits_of(session, IDS), whole_run(standard(), IDS)["logits"])
    assert session.tokens.tolist() == IDS[0].tolist()


def test_several_threads() -> None:
    """Runs of one session take turns; forks do not mix."""
    session = InferenceSession(standard(), quiet())
    logits_of(session, IDS[:, :1])
    forks = [session.fork() for _ in range(3)]
    one = np.array([[7]])

    def work(target: InferenceSession) -> None:
        for _ in range(5):
            logits_of(target, one)

    threads = [threading.Thread(target=work, args=(item,)) for item in (session, session, *forks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.tokens.tolist() == [IDS[0, 0]] + [7] * 10
    assert len(session.state["layers.0"]) == 11
    expected = InferenceSession(standard(), quiet())
    logits_of(expected, IDS[:, :1])
    for _ in range(5):
        logits_of(expected, one)
    for fork in forks:
        assert content(fork) == content(expected)
    for _ in range(5):
        logits_of(expected, one)
    assert content(session) == content(expected)


def test_heads_differ_between_forms() -> None:
    # So that a test which mixes them up fails.
    assert HEADS != KV_HEADS
