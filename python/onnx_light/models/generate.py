"""Continues a conversation with a session, computing only what its state does not hold yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from onnx_light.models.errors import ModelError

# The memory of attention over a prompt grows with tokens times total tokens: this bounds it.
_CHUNK = 512


class GenerationSession(Protocol):
    """What `generate` needs of a session.

    Where it has a `context` above 0, the state never holds more tokens.
    """

    @property
    def tokens(self) -> Any:
        """The ids that the state holds, or None where they are not known."""

    def truncate(self, end: int) -> Any:
        """Drops the state and the tokens from position `end` on."""

    def run(self, output_names: Sequence[str], input_feed: dict[str, Any]) -> Sequence[Any]:
        """Runs `input_ids` int64 [1, tokens] behind the state; the state advances."""


def _fail(path: str, message: str) -> ModelError:
    return ModelError("models.option", path, message)


def _as_ids(token_ids: Any, path: str) -> list[int]:
    array = np.asarray(token_ids)
    if array.ndim == 0 or array.ndim > 2 or (array.ndim == 2 and array.shape[0] != 1):
        raise _fail(path, f"shape {list(array.shape)}; a sequence of token ids is needed")
    if array.size and array.dtype.kind not in "iu":
        raise _fail(path, f"{array.dtype} values; token ids are whole numbers")
    if array.size and int(array.min()) < 0:
        raise _fail(path, f"{int(array.min())} is no token id")
    return [int(token) for token in array.ravel()]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many elements both begin with alike."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def _rewind(session: GenerationSession, prompt: list[int]) -> int:
    """Cuts the state down to what it shares with the prompt, at most all but its last token.

    Returns:
        The number of tokens that the state holds now.
    """
    held = session.tokens
    tokens = [] if held is None else [int(token) for token in np.asarray(held).ravel()]
    shared = common_prefix(tokens, prompt[:-1])
    if held is None or len(tokens) > shared:
        session.truncate(shared)
    return shared


class _Sampler:
    """Chooses the next token from its logits [vocabulary]."""

    def __init__(self, temperature: float, top_p: float, seed: int | None) -> None:
        if not (math.isfinite(temperature) and temperature >= 0):
            raise _fail(
                "temperature", f"{temperature}; 0 (the most likely token) or more is needed"
            )
        if not 0 < top_p <= 1:
            raise _fail("top_p", f"{top_p}; a share above 0 and up to 1 is needed")
        self.temperature = temperature
        self.top_p = top_p
        self.random = np.random.default_rng(seed)

    def choose(self, logits: npt.NDArray[np.generic]) -> int:
        if np.isnan(logits).any():
            raise ModelError("models.logits", "logits", "the model gives NaN")
        if self.temperature == 0:
            return int(logits.argmax())
        numbers = logits.astype(np.float64)
        largest = numbers.max()
        if not math.isfinite(largest):
            raise ModelError("models.logits", "logits", f"the largest one is {largest}")
        # No more than 0, so that any temperature leaves them numbers.
        with np.errstate(over="ignore"):
            weights = np.exp((numbers - largest) / self.temperature)
        if self.top_p == 1:
            return int(self.random.choice(weights.size, p=weights / weights.sum()))
        return self._choose_nucleus(weights / weights.sum())

    def _choose_nucleus(self, probabilities: npt.NDArray[np.float64]) -> int:
        """Among the most likely tokens whose probabilities together reach `top_p`."""
        order = np.argsort(-probabilities, kind="stable")
        sums = np.cumsum(probabilities[order])
        count = min(int(np.searchsorted(sums, self.top_p)) + 1, order.size)
        kept = probabilities[order[:count]]
        return int(order[self.random.choice(count, p=kept / kept.sum())])


def _advance(session: GenerationSession, tokens: list[int]) -> npt.NDArray[np.generic]:
    """Runs the tokens; the logits [vocabulary] behind the last one."""
    for first in range(0, len(tokens), _CHUNK):
        ids = np.array([tokens[first : first + _CHUNK]], np.int64)
        (logits,) = session.run(["logits"], {"input_ids": ids})
    last: npt.NDArray[np.generic] = np.asarray(logits)[0, -1]
    return last


def generate(
    session: GenerationSession,
    token_ids: Sequence[int] | npt.NDArray[np.integer[Any]],
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: Iterable[int] = (),
    on_token: Callable[[int], object] | None = None,
) -> list[int]:
    """Continues `token_ids` and returns the new ids.

    What `session.tokens` holds of `token_ids` already, their longest common prefix, is not computed
    again; what it holds beyond that is dropped. Afterwards the session holds `token_ids` and the
    new tokens but the last, so that the next call with the longer conversation goes on from there.

    Args:
        session: an `onnx_light.runtime.InferenceSession` of a decoder with `input_ids` and
            `logits`; `logits` may be those of the last token only.
        token_ids: the whole conversation, at least one id; a list or an array [tokens].
        max_new_tokens: the most tokens to return; fewer where the model's context ends.
        temperature: 0 takes the most likely token, the first one of equals; above 0 one is drawn
            with the probabilities softmax(logits / temperature).
        top_p: draws only among the most likely tokens whose probabilities sum up to this.
        seed: equal seeds draw equally from equal logits; None: another draw each time.
        stop: token ids that end the answer; they are not returned.
        on_token: called with each id that is returned, as soon as it is known.

    Raises:
        ModelError: an argument that cannot be used, a conversation that is longer than the model's
            context, or logits that are NaN or, above temperature 0, infinite.
    """
    prompt = _as_ids(token_ids, "token_ids")
    if not prompt:
        raise _fail("token_ids", "it is empty; at least one token is needed to go on from")
    if isinstance(max_new_tokens, bool) or max_new_tokens < 0:
        raise _fail("max_new_tokens", f"{max_new_tokens}; 0 or more is needed")
    sampler = _Sampler(temperature, top_p, seed)
    ends = frozenset(_as_ids(list(stop), "stop"))
    context = getattr(session, "context", 0)
    if context and len(prompt) > context:
        raise _fail("token_ids", f"{len(prompt)} tokens; the model's context is {context}")
    most = min(max_new_tokens, context - len(prompt) + 1) if context else max_new_tokens
    answer: list[int] = []
    if most == 0:
        return answer
    pending = prompt[_rewind(session, prompt) :]
    while True:
        token = sampler.choose(_advance(session, pending))
        if token in ends:
            return answer
        answer.append(token)
        if on_token:
            on_token(token)
        if len(answer) == most:
            return answer
        pending = [token]
