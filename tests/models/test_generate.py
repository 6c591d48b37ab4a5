"""generate(): greedy answers against the oracle, what is computed again, stopping and sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_samples import SMALL, write_model
from llama_oracle import Oracle
from session_double import StandardSession

from onnx_light.models import ModelError, cached_model, from_gguf, generate, tokenizer_from_gguf

PROMPT = np.random.default_rng(6).integers(0, SMALL["vocabulary"], 20).tolist()


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture
def session(model_path: Path) -> StandardSession:
    return StandardSession(from_gguf(model_path, attention="standard").SerializeToString())


@pytest.fixture(scope="module")
def greedy(model_path: Path) -> list[int]:
    """The oracle's next ten tokens; its margins are far above rounding."""
    oracle, ids = Oracle(model_path), list(PROMPT)
    for _ in range(10):
        logits = oracle.logits(ids)[-1]
        top = np.sort(logits)[-2:]
        assert top[1] - top[0] > 1e-3
        ids.append(int(logits.argmax()))
    return ids[len(PROMPT) :]


def test_greedy_equals_the_oracle(session: StandardSession, greedy: list[int]) -> None:
    seen: list[int] = []
    assert generate(session, PROMPT, max_new_tokens=10, on_token=seen.append) == greedy
    assert seen == greedy
    assert session.tokens == PROMPT + greedy[:-1]
    assert session.fed == [20] + [1] * 9


def test_the_next_turn_computes_only_what_is_new(
    session: StandardSession, greedy: list[int]
) -> None:
    first = generate(session, PROMPT, max_new_tokens=4)
    session.fed.clear()
    assert generate(session, PROMPT + first, max_new_tokens=6) == greedy[4:]
    assert session.fed == [1] * 6


def test_another_branch_drops_what_differs(session: StandardSession, model_path: Path) -> None:
    generate(session, PROMPT, max_new_tokens=3)
    session.fed.clear()
    other = [*PROMPT[:12], 7, *PROMPT[13:17]]
    answer = generate(session, other, max_new_tokens=3)
    assert session.fed == [5, 1, 1]
    assert session.tokens == other + answer[:-1]
    assert answer[0] == Oracle(model_path).logits(other)[-1].argmax()


def test_the_same_or_a_shorter_prompt_runs_its_last_token(
    session: StandardSession, greedy: list[int]
) -> None:
    generate(session, PROMPT, max_new_tokens=5)
    for prompt in (PROMPT, np.array(PROMPT), np.array([PROMPT], np.int32)):
        session.fed.clear()
        assert generate(session, prompt, max_new_tokens=1) == greedy[:1]
        assert session.fed == [1]
    session.fed.clear()
    generate(session, PROMPT[:5], max_new_tokens=1)
    assert session.fed == [1]
    assert session.tokens == PROMPT[:5]


def test_unknown_tokens_are_computed_again(session: StandardSession, greedy: list[int]) -> None:
    generate(session, PROMPT, max_new_tokens=1)

    class Unknown:
        tokens = None
        run, fed = session.run, session.fed

        def truncate(self, end: int) -> None:
            assert end == 0
            session.reset()

    session.fed.clear()
    assert generate(Unknown(), PROMPT, max_new_tokens=1) == greedy[:1]
    assert session.fed == [20]


def test_stop_tokens_are_not_returned(session: StandardSession, greedy: list[int]) -> None:
    index = next(i for i in range(2, 10) if greedy[i] not in greedy[:i])
    seen: list[int] = []
    stop = (greedy[index], 639)
    answer = generate(session, PROMPT, max_new_tokens=10, stop=stop, on_token=seen.append)
    assert answer == seen == greedy[:index]
    assert session.tokens == PROMPT + greedy[:index]
    assert generate(session, PROMPT, stop=[greedy[0]]) == []


def test_no_tokens_wanted(session: StandardSession) -> None:
    assert generate(session, PROMPT, max_new_tokens=0) == []
    assert session.fed == []


def test_long_prompts_run_in_pieces(tmp_path: Path) -> None:
    path = write_model(tmp_path / "long.gguf", {"context": 1400})
    session = StandardSession(from_gguf(path, attention="standard").SerializeToString())
    prompt = np.random.default_rng(1).integers(0, 640, 1100).tolist()
    answer = generate(session, prompt, max_new_tokens=2)
    assert sum(session.fed[:-1]) == 1100
    assert max(session.fed) <= 512
    logits = Oracle(path).logits(prompt + answer[:1])
    assert answer == logits[-2:].argmax(-1).tolist()


def test_an_exception_of_on_token_leaves_session_and_tokens_in_step(
    session: StandardSession, greedy: list[int]
) -> None:
    def interrupt(token: int) -> None:
        if token == greedy[3]:
            raise KeyboardInterrupt

    assert greedy[3] not in greedy[:3]
    with pytest.raises(KeyboardInterrupt):
        generate(session, PROMPT, on_token=interrupt)
    assert generate(session, PROMPT + greedy[:3], max_new_tokens=4) == greedy[3:7]


class Dice:
    """A session that always gives the same logits."""

    def __init__(self, logits: list[float]) -> None:
        self.logits = np.array([[logits]], np.float32)
        self.tokens: list[int] = []

    def truncate(self, end: int) -> None:
        self.tokens = self.tokens[:end]

    def run(self, output_names: list[str], input_feed: dict[str, Any]) -> list[np.ndarray]:
        self.tokens = [*self.tokens, *input_feed["input_ids"][0].tolist()]
        return [self.logits]


LOGITS = [0.0, 2.0, 1.0, -1.0, 2.5]


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.7), (1.0, 0.5), (1.0, 1e-9)]
)
def test_draws_follow_the_distribution(temperature: float, top_p: float) -> None:
    weights = np.exp(np.array(LOGITS) / temperature)
    expected = weights / weights.sum()
    order, total = np.argsort(-expected), 0.0
    for rank, token in enumerate(order):  # the smallest set of the best that reaches top_p
        if total >= top_p:
            expected[order[rank:]] = 0
            break
        total += expected[token]
    expected /= expected.sum()
    count = 6000
    answer = generate(
        Dice(LOGITS), [0], max_new_tokens=count, temperature=temperature, top_p=top_p, seed=11
    )
    shares = np.bincount(answer, minlength=5) / count
    assert (np.abs(shares - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)).all()


def test_seeds() -> None:
    def draw(seed: int | None) -> list[int]:
        return generate(Dice(LOGITS), [0], max_new_tokens=40, temperature=1.5, seed=seed)

    assert draw(3) == draw(3) != draw(4)
    assert draw(None) != draw(None)


def test_equal_logits_give_the_first() -> None:
    assert generate(Dice([0, 3, 3, 3]), [0], max_new_tokens=1) == [1]


def test_extreme_logits() -> None:
    logits = [float("-inf"), 1e30, -1e30, 0]
    assert set(generate(Dice(logits), [0], max_new_tokens=9, temperature=1e-6, seed=1)) == {1}
    for temperature in (5e-324, 1e-300, 1e308):
        token = generate(Dice(logits), [0], max_new_tokens=1, temperature=temperature, seed=1)
        assert token == [1] or temperature > 1
    with pytest.raises(ModelError, match="NaN"):
        generate(Dice([0, float("nan")]), [0])
    assert generate(Dice([0, float("inf")]), [0], max_new_tokens=1) == [1]
    for largest in ("inf", "-inf"):
        with pytest.raises(ModelError, match=largest):
            generate(Dice([float("-inf"), float(largest)]), [0], temperature=1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"token_ids": []},
        {"token_ids": [1.5]},
        {"token_ids": [-1]},
        {"token_ids": 3},
        {"token_ids": [[1], [2]]},
        {"max_new_tokens": -1},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"stop": ["</s>"]},
    ],
)
def test_arguments_are_refused(arguments: dict[str, Any]) -> None:
    session = Dice(LOGITS)
    with pytest.raises(ModelError) as caught:
        generate(session, **({"token_ids": [1]} | arguments))
    assert caught.value.path == next(iter(arguments))
    assert session.tokens == []


def test_real_model(smollm: Path) -> None:
    session = StandardSession(str(cached_model(smollm)))
    tokenizer = tokenizer_from_gguf(smollm)
    prompt = tokenizer.encode("The capital of France is").ids
    assert "Paris" in tokenizer.decode(generate(session, prompt, max_new_tokens=12))
