"""The demo's second process: opens a snapshot, takes the state from it, and answers questions.

Reads an order as JSON from standard input and writes what it found as JSON to standard output.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_light import snapshot
from onnx_light.models import end_tokens, from_gguf, generate
from onnx_light.runtime import InferenceSession


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


def _main() -> None:
    order = json.load(sys.stdin)
    session = InferenceSession(from_gguf(order["model"]))
    stop = end_tokens(order["model"])
    ready = time.time()
    begin = time.perf_counter()
    with snapshot.open(order["state"]):
        open_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    session.load_state(order["state"])
    load_seconds = time.perf_counter() - begin
    answers = answer_questions(session, order["prompts"], order["new_tokens"], stop)
    found = {
        "ready": ready,
        "open_seconds": open_seconds,
        "load_seconds": load_seconds,
        "answers": [dataclasses.asdict(answer) for answer in answers],
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main()
