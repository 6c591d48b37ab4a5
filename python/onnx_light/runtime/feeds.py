"""What a run is fed: the caller's inputs, the state, and what follows from both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_light.errors import CodedError
from onnx_light.runtime.bindings import Binding, Bindings
from onnx_light.runtime.model import Model
from onnx_light.runtime.ort import TENSOR_DTYPES, is_ort_value, to_array, to_ort_value
from onnx_light.runtime.sizes import cache_sizes
from onnx_light.runtime.state import NO_TOKENS, State, Tokens

_IDS = "input_ids"
# The first of these that is fed tells the batch and the number of new tokens.
_STEPS = (_IDS, "inputs_embeds")
_MASK = "attention_mask"
_POSITIONS = "position_ids"
_LENGTHS = "seqlens_k"
_TOTAL = "total_sequence_length"
# What is filled in, and with how many dims.
_RANKS = {_MASK: 2, _POSITIONS: 2, _LENGTHS: 1, _TOTAL: 0}
_INTEGERS = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}


@dataclass(frozen=True)
class Step:
    """One run, before it is run.

    Attributes:
        feed: an OrtValue for every input that is known.
        shapes: of the bound caches that go in, by the input's name.
        past: the number of tokens in them.
        batch: the number of sequences, if the inputs tell.
        count: the number of new tokens, if the inputs tell.
        past_tokens: the ids that go with the caches; None if not known.
        new_tokens: the ids that are fed [batch, count]; None if not known.
        masked, shifted: of the state that this run makes.
    """

    feed: dict[str, Any]
    shapes: dict[str, list[int]]
    past: int
    batch: int | None
    count: int | None
    past_tokens: Tokens | None
    new_tokens: Tokens | None
    masked: str
    shifted: str


def _fail(code: str, path: str, message: str) -> CodedError:
    return CodedError(f"runtime.{code}", path, message)


class StepBuilder:
    """Makes the steps of one model."""

    def __init__(self, model: Model, bindings: Bindings) -> None:
        self._model = model
        self._bindings = bindings
        self._sizes: dict[str, tuple[int, int]] = {}
        lowered = model.lowered
        handles = {*lowered.inputs, *lowered.constants} if lowered else set()
        items = model.session.get_inputs()
        self._inputs = {item.name: item for item in items if item.name not in handles}
        optional = model.session.get_overridable_initializers()
        self._types = {item.name: item.type for item in (*self._inputs.values(), *optional)}

    def build(
        self, given: Mapping[str, Any], state: State, end: int | None = None, is_state: bool = True
    ) -> Step:
        """The run of `given` behind `state`.

        Bound inputs in `given` replace those of the state.

        Args:
            given: arrays and OrtValues by input name.
            state: that of the session.
            end: the position behind the structured caches that go in, where they have one.
            is_state: whether these are the state's.

        Raises:
            CodedError: ``runtime.feed``: inputs that the model does not take, that contradict each
                other or the state, or one that is needed and follows from nothing.
                ``runtime.max_tokens``: more tokens than the model says that it takes.
                ``runtime.size``, ``runtime.dtype``.
        """
        feed = {name: self._value(name, value) for name, value in given.items()}
        caches = [binding for binding in self._bindings.caches if binding.input in feed]
        if not caches and is_state:
            masked, shifted, past_tokens = state.masked, state.shifted, state.tokens
        else:
            masked, shifted, past_tokens = "", "", None
        for binding in self._bindings.all:
            if binding.input not in feed and binding.input in state.values:
                feed[binding.input] = state.values[binding.input]
        shapes = self._cache_shapes(feed)
        past = next(iter(shapes.values()))[2] if shapes else end or 0
        if past == 0:
            past_tokens = NO_TOKENS
        batch, count = _batch_and_count(feed)
        if batch is not None:
            _check_batch(shapes, batch)
        self._check_context(past, count)
        self._add_empty_tensors(feed, shapes, past, batch)
        masked = masked or _mask_of_the_caller(feed, past, count)
        shifted = shifted or _positions_of_the_caller(feed, past, count)
        self._add_what_follows(feed, past, batch, count, masked, shifted)
        for name in self._inputs:
            if name not in feed:
                raise _fail("feed", name, f"{self._types[name]}; it must be fed")
        tokens = _new_tokens(feed)
        return Step(feed, shapes, past, batch, count, past_tokens, tokens, masked, shifted)

    def _value(self, name: str, value: Any) -> Any:
        """An OrtValue of the input's type."""
        wanted = self._types.get(name)
        if wanted is None:
            names = ", ".join(self._types)
            raise _fail("feed", name, f"the model has no such input; it has {names}")
        made = _as_value(name, value)
        found = made.data_type()
        if found != wanted:
            raise _fail("feed", name, f"{found}; the model takes {wanted}")
        return made

    def _check_context(self, past: int, count: int | None) -> None:
        context = self._model.context
        if context and count and past + count > context:
            raise _fail(
                "max_tokens",
                _IDS,
                f"{count} tokens after {past} exceed the model's context of {context}",
            )

    def _cache_shapes(self, feed: Mapping[str, Any]) -> dict[str, list[int]]:
        shapes: dict[str, list[int]] = {}
        for binding in self._bindings.caches:
            if binding.input not in feed:
                continue
            name, shape = binding.input, feed[binding.input].shape()
            if len(shape) != 4:
                raise _fail("feed", name, f"{shape}; [batch, heads, tokens, width] is needed")
            for other, seen in shapes.items():
                if seen[2] != shape[2]:
                    raise _fail(
                        "feed",
                        name,
                        f"{shape[2]} tokens, but {other} has {seen[2]}; "
                        "feed all bound inputs or none",
                    )
                break  # the others are like the first
            shapes[name] = shape
        return shapes

    def _add_empty_tensors(
        self, feed: dict[str, Any], shapes: dict[str, list[int]], past: int, batch: int | None
    ) -> None:
        empty = {}
        for binding in self._bindings.all:
            if binding.input in feed:
                continue
            if binding.layer is None:
                shape = _empty_shape(binding)
            else:
                if past:
                    raise _fail(
                        "feed",
                        binding.input,
                        f"is empty, but {next(iter(shapes))} has {past} tokens; "
                        "feed all bound inputs or none",
                    )
                shape = self._empty_cache_shape(binding, batch)
                empty[binding.input] = shape
            feed[binding.input] = to_ort_value(np.zeros(shape, TENSOR_DTYPES[binding.type]))
        shapes |= empty

    def _empty_cache_shape(self, binding: Binding, batch: int | None) -> list[int]:
        declared = binding.dims[0]
        if isinstance(declared, int):
            batch = declared
        if batch is None:
            raise _fail("feed", _IDS, "it is not fed; the batch of empty caches follows from it")
        if binding.input not in self._sizes:
            self._sizes[binding.input] = cache_sizes(binding, self._model)
        heads, width = self._sizes[binding.input]
        return [batch, heads, 0, width]

    def _add_what_follows(
        self,
        feed: dict[str, Any],
        past: int,
        batch: int | None,
        count: int | None,
        masked: str,
        shifted: str,
    ) -> None:
        for name, rank in _RANKS.items():
            item = self._inputs.get(name)
            if item is None or name in feed or item.type not in _INTEGERS:
                continue
            if len(item.shape) != rank:
                continue  # of a meaning that is not known: onnxruntime will ask for it
            reason = masked or (shifted if name == _POSITIONS else "")
            if reason:
                raise _fail("feed", name, f"must be fed, because {reason}")
            if batch is None or count is None:
                raise _fail("feed", name, f"neither it nor {_IDS} is fed, from which it follows")
            values = _following(name, past, batch, count)
            feed[name] = to_ort_value(values.astype(_INTEGERS[item.type]))


def _mask_of_the_caller(feed: Mapping[str, Any], past: int, count: int | None) -> str:
    """Why no mask can be filled in any more; empty if it can, or there is none.

    Raises:
        CodedError: ``runtime.feed``: it does not reach over the past, which would give wrong
            numbers.
    """
    if count is None or _MASK not in feed or len(feed[_MASK].shape()) != 2:
        return ""
    mask = to_array(feed[_MASK], _MASK, copy=False)
    if mask.shape[1] < past + count:
        raise _fail(
            "feed",
            _MASK,
            f"{list(mask.shape)} for {past} past and {count} new tokens; it must cover both: "
            f"[batch, {past + count}]",
        )
    return "" if mask[:, : past + count].all() else f"{_MASK} had zeros"


def _positions_of_the_caller(feed: Mapping[str, Any], past: int, count: int | None) -> str:
    """Why no positions can be filled in any more; empty if they can, or there are none."""
    if not count or _POSITIONS not in feed:
        return ""
    positions = to_array(feed[_POSITIONS], _POSITIONS, copy=False)
    expected = np.arange(past, past + count)
    if positions.shape[-1:] == expected.shape and (positions == expected).all():
        return ""
    return f"{_POSITIONS} were not {past} to {past + count - 1}"


def _following(name: str, past: int, batch: int, count: int) -> Any:
    if name == _MASK:
        return np.ones((batch, past + count), np.int64)
    if name == _POSITIONS:
        return np.tile(np.arange(past, past + count, dtype=np.int64), (batch, 1))
    if name == _LENGTHS:
        return np.full(batch, past + count - 1, np.int64)
    return np.array(past + count, np.int64)


def _batch_and_count(feed: Mapping[str, Any]) -> tuple[int | None, int | None]:
    for name in _STEPS:
        if name in feed:
            shape = feed[name].shape()
            if len(shape) >= 2:
                return shape[0], shape[1]
    return None, None


def _check_batch(shapes: Mapping[str, list[int]], batch: int) -> None:
    for name, shape in shapes.items():
        if shape[0] != batch:
            raise _fail(
                "feed",
                _IDS,
                f"{batch} sequences, but {name} holds {shape[0]}; reset() begins anew",
            )


def _as_value(name: str, value: Any) -> Any:
    if is_ort_value(value):
        return value
    try:
        return to_ort_value(value)
    except CodedError as error:
        raise CodedError(error.code, name, error.message) from None


def _new_tokens(feed: Mapping[str, Any]) -> Tokens | None:
    if _IDS not in feed or len(feed[_IDS].shape()) != 2:
        return None
    ids = to_array(feed[_IDS], _IDS, copy=False)
    return ids.astype(np.int64) if ids.dtype.kind in "iu" else None


def _empty_shape(binding: Binding) -> list[int]:
    if all(isinstance(size, int) for size in binding.dims):
        raise _fail(
            "feed",
            binding.input,
            f"is {list(binding.dims)}, which cannot be empty; feed it in the first run",
        )
    return [size if isinstance(size, int) else 0 for size in binding.dims]
