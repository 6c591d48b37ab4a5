"""Decoders that attend on paged caches, against the numpy oracle and the standard model."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest
from gguf_samples import SMALL, random_weights, write_model
from llama_oracle import Oracle

from onnx_light import CachePolicy, PageFormat
from onnx_light.errors import CodedError
from onnx_light.models import ModelError, from_gguf, generate
from onnx_light.runtime import InferenceSession

IDS = np.random.default_rng(5).integers(0, SMALL["vocabulary"], 40).tolist()
# As in test_from_gguf.py.
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("paged") / "small.gguf")


def logits(session: InferenceSession, ids: list[int]) -> Any:
    given = {"input_ids": np.array([ids]), "num_logits": np.array(len(ids))}
    return session.run(["logits"], given)[0][0]


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("shape", [{}, {"heads": 5, "kv_heads": 1, "width": 12}])
def test_logits_and_state_equal_the_oracle(tmp_path: Path, opset: int, shape: Any) -> None:
    if opset == 24 and onnxruntime.__version__.startswith("1.23."):
        pytest.skip("onnxruntime 1.23 has the operators up to 23")
    config = SMALL | shape
    path = write_model(tmp_path / "model.gguf", config, random_weights(config))
    session = InferenceSession(from_gguf(path, page_size=8, opset=opset))
    expected, state = Oracle(path).forward(IDS)
    parts = [IDS[:1], IDS[1:20], IDS[20:21], IDS[21:]]
    actual = np.concatenate([logits(session, part) for part in parts])
    assert np.abs(actual - expected).max() < TOLERANCE
    assert session.tokens is not None
    assert session.tokens.tolist() == IDS
    assert list(session.state) == [f"layers.{layer}" for layer in range(config["layers"])]
    for (key, value), cache in zip(state, session.state.values(), strict=True):
        assert cache.page_size == 8
        assert np.abs(cache.key_array()[0].swapaxes(0, 1) - key).max() < TOLERANCE
        assert np.abs(cache.value_array()[0].swapaxes(0, 1) - value).max() < TOLERANCE


def test_quantized_states_are_near_and_resume_with_equal_bits(
    model_path: Path, tmp_path: Path
) -> None:
    policy = CachePolicy.parse("int8")
    session = InferenceSession(from_gguf(model_path, page_size=8, policy=policy))
    expected, _ = Oracle(model_path).forward(IDS)
    actual = np.concatenate(
        [logits(session, IDS[:30]), *(logits(session, [id]) for id in IDS[30:])]
    )
    np.testing.assert_allclose(actual[:30], expected[:30], atol=TOLERANCE)  # not yet encoded
    error = np.abs(actual[30:] - expected[30:]).max()
    assert TOLERANCE < error < 0.05 * np.abs(expected).max()
    for cache in session.state.values():
        assert [str(page.key.format)[:4] for page in cache.pages] == ["int8"] * 5
    path = tmp_path / "prompt.kvcache"
    session.save_state(path)
    other = InferenceSession(from_gguf(model_path, page_size=8, policy="int8"))
    other.load_state(path)
    np.testing.assert_array_equal(logits(other, [3, 1]), logits(session, [3, 1]))


def test_states_of_standard_models_are_states_of_paged_ones(
    model_path: Path, tmp_path: Path
) -> None:
    standard = InferenceSession(from_gguf(model_path, attention="standard"))
    logits(standard, IDS)
    path = tmp_path / "prompt.kvcache"
    standard.save_state(path)
    paged = InferenceSession(from_gguf(model_path))
    paged.load_state(path)
    assert np.abs(logits(paged, [7]) - logits(standard, [7])).max() < TOLERANCE
    paged.save_state(path)
    standard.load_state(path)
    assert np.abs(logits(paged, [2]) - logits(standard, [2])).max() < TOLERANCE


def test_truncate_fork_quantize_and_go_on(model_path: Path) -> None:
    expected, _ = Oracle(model_path).forward(IDS)
    session = InferenceSession(from_gguf(model_path, page_size=8))
    logits(session, IDS[:20] + [5, 6, 7])
    session.truncate(20)
    fork = session.fork()
    fork.state = {name: cache.quantize("int8") for name, cache in fork.state.items()}
    forked = logits(fork, IDS[20:])
    exact = np.abs(logits(session, IDS[20:]) - expected[20:]).max()
    assert exact < TOLERANCE
    error = np.abs(forked - expected[20:]).max()
    assert TOLERANCE < error < 0.05 * np.abs(expected).max()
    for cache in fork.state.values():
        formats = [str(page.key.format)[:4] for page in cache.pages]
        assert formats[:2] == ["int8", "int8"]
        assert len(cache) == len(IDS)


def test_forks_in_eight_threads_give_the_bits_of_one_after_another(model_path: Path) -> None:
    session = InferenceSession(from_gguf(model_path, page_size=8))
    logits(session, IDS[:30])

    def go_on(first: int) -> Any:
        fork = session.fork()
        return np.concatenate([logits(fork, [first]), *(logits(fork, [id]) for id in IDS[30:])])

    expected = [go_on(first) for first in range(32)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for actual, result in zip(pool.map(go_on, range(32)), expected, strict=True):
            np.testing.assert_array_equal(actual, result)


def test_generate_goes_back_and_on(model_path: Path) -> None:
    standard = InferenceSession(from_gguf(model_path, attention="standard"))
    paged = InferenceSession(from_gguf(model_path))
    for ids in (IDS[:10], IDS[:7] + IDS[20:25]):
        answers = [generate(each, ids, max_new_tokens=12) for each in (standard, paged)]
        assert answers[0] == answers[1]


@pytest.mark.parametrize("attention", ["standard", "paged"])
def test_the_context_is_the_limit(
    model_path: Path, attention: Literal["standard", "paged"]
) -> None:
    session = InferenceSession(from_gguf(model_path, attention=attention))
    assert session.context == SMALL["context"]
    ids = (IDS * 3)[: SMALL["context"]]
    logits(session, ids[:-3])
    fork = session.fork()
    answer = generate(fork, ids[:-3], max_new_tokens=10)
    assert len(answer) == 4  # the last one is not run
    assert fork.tokens is not None
    assert fork.tokens.tolist() == ids[:-3] + answer[:3]
    before = dict(session.state)
    with pytest.raises(CodedError, match=r"4 tokens after 93 exceed .* context of 96") as caught:
        logits(session, [1] * 4)
    assert (caught.value.code, caught.value.path) == ("runtime.max_tokens", "input_ids")
    with pytest.raises(ModelError, match="97 tokens; the model's context is 96"):
        generate(session, [1, *ids])
    assert dict(session.state) == before
    logits(session, ids[-3:])


@pytest.mark.parametrize(
    ("feed", "path", "words"),
    [
        ({"input_id": [[1]]}, "input_id", "it has input_ids, num_logits"),
        ({"num_logits": 1}, "input_ids", "must be fed"),
        ({"input_ids": np.ones((1, 2), np.int32)}, "input_ids", "int32.*takes tensor.int64"),
        ({"input_ids": [[1]], "num_logits": 1.0}, "num_logits", "double.*takes tensor.int64"),
    ],
)
def test_wrong_feeds(model_path: Path, feed: dict[str, Any], path: str, words: str) -> None:
    session = InferenceSession(from_gguf(model_path))
    logits(session, IDS[:3])
    before = dict(session.state)
    with pytest.raises(CodedError, match=words) as caught:
        session.run(["logits"], feed)
    assert (caught.value.code, caught.value.path) == ("runtime.feed", path)
    with pytest.raises(Exception, match="num_logits"):
        session.run(["logits"], {"input_ids": [[1]], "num_logits": 2})
    assert dict(session.state) == before


def test_a_gguf_file_is_no_model_yet(model_path: Path) -> None:
    with pytest.raises(CodedError, match="from_gguf") as caught:
        InferenceSession(model_path)
    assert (caught.value.code, caught.value.path) == ("runtime.model", str(model_path))


def test_policies(model_path: Path) -> None:
    with pytest.raises(ModelError, match="none"):
        from_gguf(model_path, attention="standard", policy="int8")
    with pytest.raises(CodedError) as caught:
        from_gguf(model_path, policy="int9/channel")
    with pytest.raises(TypeError, match="policy: a CachePolicy or its text is needed, not PageF"):
        from_gguf(model_path, policy=PageFormat("int8"))  # type: ignore[arg-type]
    assert caught.value.code.startswith("quant.")
