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

_FORKS = 100
_FORK_TOKENS = 2

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


@dataclass(frozen=True)
class Forks:
    """Continuations of one state that are all kept.

    Attributes:
        count: how many; new_tokens: that each of them has decoded beyond the state.
        nbytes: of memory that all of them have taken together, beyond the state that they share, as
            the system counts the process's own memory.
        seconds: for all of them.
    """

    count: int
    new_tokens: int
    nbytes: int
    seconds: float


def _fork(session: InferenceSession, prompt: list[int]) -> Forks:
    """Continues the prompt on many forks, each with other tokens."""
    warm = session.fork()
    generate(warm, prompt, max_new_tokens=_FORK_TOKENS)  # onnxruntime takes its own memory once
    before, begin = _own_memory(), time.perf_counter()
    forks = []
    for seed in range(_FORKS):
        fork = session.fork()
        generate(fork, prompt, max_new_tokens=_FORK_TOKENS, temperature=1.0, seed=seed)
        forks.append(fork)
    seconds = time.perf_counter() - begin
    return Forks(len(forks), _FORK_TOKENS, max(_own_memory() - before, 0), seconds)


def _own_memory() -> int:
    """Bytes of memory that belong to this process alone; files that it maps do not count."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status: there is no RssAnon")


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
        session.reset()
        memory, begin = _own_memory(), time.perf_counter()
        session.load_state(path)
        load_seconds = time.perf_counter() - begin
        load_nbytes = max(_own_memory() - memory, 0)
        answers = answer_questions(session, order["prompts"], order["new_tokens"], stop)
        logits = _probe(session, order["probe"], order["known"])
        expected = logits if expected is None else expected
        found["states"][name] = {
            "load_seconds": load_seconds,
            "load_nbytes": load_nbytes,
            "answers": [dataclasses.asdict(answer) for answer in answers],
            "divergence": _divergence(expected, logits),
        }
        if "forks" not in found:
            forks = _fork(session, order["prompts"][0][: order["known"] + 1])
            found["forks"] = dataclasses.asdict(forks)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main()
