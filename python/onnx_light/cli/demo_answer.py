"""The demo's second process: opens snapshots, takes the state from each, and answers questions.

Reads an order as JSON from standard input and writes what it found as JSON to standard output.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_light import snapshot
from onnx_light.models import end_tokens, from_gguf, generate
from onnx_light.runtime import InferenceSession

_Logits = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """The token ids of an answer, and the seconds until the first and until all were there."""

    tokens: list[int]
    first_seconds: float
    seconds: float


def answer_questions(
    session: InferenceSession, prompts: Sequence[list[int]], new_tokens: int, stop: Sequence[int]
) -> list[Answer]:
    """Answers each prompt on a fork of the session, which keeps what it holds."""
    return [_answer(session.fork(), prompt, new_tokens, stop) for prompt in prompts]


def _answer(
    session: InferenceSession, prompt: list[int], new_tokens: int, stop: Sequence[int]
) -> Answer:
    times: list[float] = []

    def note(token: int) -> None:
        times.append(time.perf_counter())

    begin = time.perf_counter()
    tokens = generate(session, prompt, max_new_tokens=new_tokens, stop=stop, on_token=note)
    end = time.perf_counter()
    return Answer(tokens, (times[0] if times else end) - begin, end - begin)


def _probe(session: InferenceSession, tokens: list[int], known: int) -> _Logits:
    """The logits [tokens, vocabulary] behind each token from position `known` on."""
    feed = {"input_ids": np.array([tokens[known:]]), "num_logits": np.array(len(tokens) - known)}
    logits: _Logits = session.fork().run(["logits"], feed)[0][0].astype(np.float64)
    return logits


def _divergence(expected: _Logits, found: _Logits) -> float:
    """The mean Kullback-Leibler divergence, in nats."""
    one, other = (_log_softmax(logits) for logits in (expected, found))
    return float((np.exp(one) * (one - other)).sum(-1).mean())


def _log_softmax(logits: _Logits) -> _Logits:
    shifted = logits - logits.max(-1, keepdims=True)
    result: _Logits = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def _main() -> None:
    order = json.load(sys.stdin)
    session = InferenceSession(from_gguf(order["model"]))
    stop = end_tokens(order["model"])
    found: dict[str, Any] = {"ready": time.time(), "states": {}}
    begin = time.perf_counter()
    with snapshot.open(next(iter(order["states"].values()))):
        found["open_seconds"] = time.perf_counter() - begin
    expected: _Logits | None = None
    for name, path in order["states"].items():
        begin = time.perf_counter()
        session.load_state(path)
        load_seconds = time.perf_counter() - begin
        answers = answer_questions(session, order["prompts"], order["new_tokens"], stop)
        logits = _probe(session, order["probe"], order["known"])
        expected = logits if expected is None else expected
        found["states"][name] = {
            "load_seconds": load_seconds,
            "answers": [dataclasses.asdict(answer) for answer in answers],
            "divergence": _divergence(expected, logits),
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main()
