"""What a session holds between runs, and the same as caches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from onnx_light._core import common_end
from onnx_light.errors import CodedError
from onnx_light.runtime.bindings import Binding, Bindings
from onnx_light.runtime.ort import CACHE_DTYPES, Array, to_array, to_ort_value
from onnx_light.runtime.structured import StructuredValues

if TYPE_CHECKING:
    from onnx_light.cache import PagedCache

_Result = TypeVar("_Result")
Tokens = npt.NDArray[np.int64]

# Dense formats whose numbers a dtype holds exactly, beside its own.
_EXACT = {
    "float32": {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"},
    "float16": {"float8_e4m3fn", "float8_e5m2"},
    "bfloat16": {"float8_e4m3fn", "float8_e5m2"},
}
_DENSE = {"float32", *_EXACT["float32"]}

# A position is as good as any for tokens that are not there.
NO_TOKENS: Tokens = np.zeros((1, 0), np.int64)


@dataclass(frozen=True)
class State:
    """The state between two runs. It never changes: a run makes another one.

    Attributes:
        values: OrtValues by input name. Nobody outside gets to see them: they are what later runs
            and forks read. A cache that is empty is absent.
        length: the number of tokens in the caches.
        tokens: their ids [batch, length]; None where they are not known.
        masked: why the mask does not simply follow from the length; empty if it does.
        shifted: why positions do not, although the mask does; empty if they do.
        caches: of the bound inputs that are structured values, by name.
    """

    values: Mapping[str, Any]
    length: int = 0
    tokens: Tokens | None = None
    masked: str = ""
    shifted: str = ""
    caches: Mapping[str, PagedCache] = field(default_factory=dict)


class StateView(Mapping[str, "PagedCache | Array"]):
    """The state of a session at one moment, by name; later runs do not change it.

    `layers.N` gives the keys and values of a layer as a PagedCache, made when it is asked for. A
    bound tensor that is no part of a layer is there under the input's name, as an array of its own;
    a structured value too, as the PagedCache that it is.
    """

    def __init__(self, state: State, bindings: Bindings) -> None:
        self._values = state.values
        self._length = state.length
        self._bindings = bindings
        others = {item.input: item for item in bindings.others if item.input in state.values}
        self._others: dict[str, Binding] = others
        self._made: dict[str, Any] = dict(state.caches)
        self._names = (*state.caches, *bindings.layers, *others)

    def __getitem__(self, name: str) -> PagedCache | Array:
        if name in self._others:
            return to_array(self._values[name], name, copy=True)
        if name not in self._made:
            self._made[name] = make_cache(self._values, self._bindings.layers[name])
        cache: PagedCache = self._made[name]
        return cache

    def __iter__(self) -> Iterator[str]:
        yield from self._names

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:  # Mapping's own would make the cache
        return name in self._names

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._length} tokens of {', '.join(self) or 'nothing'})"


def make_cache(values: Mapping[str, Any], layer: tuple[Binding, Binding]) -> PagedCache:
    """A layer's keys and values, copied into a cache; the empty cache if they are not there."""
    from onnx_light.cache import PagedCache

    if layer[0].input not in values:
        return PagedCache()
    key, value = (to_array(values[item.input], item.input, copy=False) for item in layer)
    return PagedCache.from_arrays(key, value)


def start_state(bindings: Bindings, structured: StructuredValues) -> State:
    """The state before the first run: the initializers of bound inputs, else empty caches."""
    state = _start_of_tensors(bindings)
    caches = structured.start
    if not caches:
        return state
    if set(caches) & {*bindings.layers, *(item.input for item in bindings.others)}:
        raise _fail("binding", ", ".join(caches), "structured and other state of one name")
    end = common_end(list(caches.values()))
    if bindings.layers:
        return replace(state, caches=caches)
    return replace(state, caches=caches, length=end or 0, tokens=None if end else NO_TOKENS)


def _start_of_tensors(bindings: Bindings) -> State:
    values = {name: to_ort_value(array) for name, array in bindings.defaults.items()}
    caches = [binding for binding in bindings.caches if binding.input in values]
    lengths = {binding.input: values[binding.input].shape()[2] for binding in caches}
    if caches and len(caches) < 2 * len(bindings.layers):
        raise CodedError(
            "runtime.binding", caches[0].input, "has an initializer, but not every cache does"
        )
    if len(set(lengths.values())) > 1:
        raise CodedError("runtime.binding", caches[0].input, f"initializers of lengths {lengths}")
    length = next(iter(lengths.values()), 0)
    if length == 0:
        values = {name: values[name] for name in values if name not in lengths}
    return State(values, length, None if length or not bindings.layers else NO_TOKENS)


def cut_state(state: State, bindings: Bindings, end: int) -> State:
    """The state without the tokens from position `end` on.

    Raises:
        CodedError: ``runtime.position``: there is no such position.
    """
    if isinstance(end, bool) or not isinstance(end, int | np.integer):
        raise TypeError(f"end: a position is needed, not {type(end).__name__}")
    if not 0 <= end <= state.length:
        raise CodedError(
            "runtime.position", "end", f"{end}, but the state holds [0, {state.length})"
        )
    caches = {name: _cut(cache, name, int(end)) for name, cache in state.caches.items()}
    if end == state.length:
        return replace(state, caches=caches)
    if end == 0:
        return State({}, 0, NO_TOKENS, caches=caches)
    values = {}
    for binding in bindings.caches:
        array = to_array(state.values[binding.input], binding.input, copy=False)
        # A view would keep the rows that are cut off.
        values[binding.input] = to_ort_value(array[:, :, :end].copy())
    tokens = None if state.tokens is None else state.tokens[:, :end].copy()
    return State(values, int(end), tokens, state.masked, state.shifted, caches)


def _cut(cache: PagedCache, name: str, end: int) -> PagedCache:
    if not cache.start <= end <= cache.end:
        raise _fail("position", name, f"{end}, but it holds [{cache.start}, {cache.end})")
    return cache.truncate(end)


def _fail(code: str, path: str, message: str) -> CodedError:
    return CodedError(f"runtime.{code}", path, message)


def state_from_caches(
    given: Mapping[str, Any],
    bindings: Bindings,
    structured: StructuredValues,
    tokens: Tokens | None,
) -> State:
    """The state that consists of these caches: structured ones as they are, others as tensors.

    Args:
        given: exactly the names of a StateView.
        bindings, structured: of the model.
        tokens: the ids [batch, length], or None.

    Raises:
        CodedError: as below, and ``runtime.shape`` for a cache that the model does not take.
    """
    caches = structured.check_state(given)
    rest = {name: given[name] for name in given if name not in caches}
    if not caches:
        return _state_of_tensors(rest, bindings, tokens)
    if bindings.layers:
        return replace(_state_of_tensors(rest, bindings, tokens), caches=caches)
    state = _state_of_tensors(rest, bindings, None)
    end = common_end(list(caches.values()))
    if tokens is not None and tokens.shape[1] != end:
        raise _fail("tokens", "tokens", f"ids {list(tokens.shape)} for caches that end at {end}")
    if not end:
        tokens = NO_TOKENS
    return replace(state, length=end or 0, tokens=tokens, caches=caches)


def _state_of_tensors(given: Mapping[str, Any], bindings: Bindings, tokens: Tokens | None) -> State:
    """The state that consists of these caches, and of arrays for bound tensors without a layer.

    Args:
        given: exactly the names of a StateView; layers that are empty may hold anything of length
            0.
        tokens: the ids [batch, length], or None.

    Raises:
        CodedError: ``runtime.layers``, ``runtime.shape``, ``runtime.dtype``, ``runtime.position``,
            with the layer's name as the path. TypeError: not a cache.
    """
    _check_names(given, bindings)
    caches = {name: given[name] for name in bindings.layers}
    length = _common_length(caches)
    values: dict[str, Any] = {}
    if length:
        pairs = bindings.layers.values()
        for layer in _in_threads(_values_of_layer, caches, caches.values(), pairs):
            values |= layer
    for binding in bindings.others:
        if binding.input in given:
            values[binding.input] = to_ort_value(np.array(given[binding.input]))
    batches = {name: cache.batch for name, cache in caches.items()} if length else {}
    _require_equal(batches, "batch")
    if not bindings.layers:
        return State(values)
    if length == 0:
        return State(values, 0, NO_TOKENS)
    batch = next(iter(batches.values()))
    if tokens is not None and tokens.shape != (batch, length):
        raise _fail(
            "tokens",
            "tokens",
            f"ids {list(tokens.shape)} for caches of batch {batch} and {length} tokens",
        )
    return State(values, length, tokens)


def _in_threads(call: Callable[..., _Result], *arguments: Iterable[Any]) -> Iterator[_Result]:
    """As map: what copies and verifies pages goes as fast as the memory only on several cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        yield from threads.map(call, *arguments)


def _check_names(given: Mapping[str, Any], bindings: Bindings) -> None:
    others = {binding.input for binding in bindings.others}
    for name in bindings.layers:
        if name not in given:
            raise _fail("layers", name, f"is missing; the model has {len(bindings.layers)} layers")
    for name in given:
        if name not in bindings.layers and name not in others:
            raise _fail("layers", str(name), "the model has no such layer")


def _common_length(caches: Mapping[str, Any]) -> int:
    from onnx_light.cache import PagedCache

    for name, cache in caches.items():
        if not isinstance(cache, PagedCache):
            raise TypeError(f"{name}: a PagedCache is needed, not {type(cache).__name__}")
        if len(cache) and cache.start:
            raise _fail(
                "position",
                name,
                f"begins at position {cache.start}; plain tensors need all tokens from 0 on",
            )
    return _require_equal({name: len(cache) for name, cache in caches.items()}, "length")


def _require_equal(numbers: Mapping[str, int], what: str) -> int:
    first = next(iter(numbers), "")
    for name, number in numbers.items():
        if number != numbers[first]:
            raise _fail("shape", name, f"{what} {number}, but {first} has {what} {numbers[first]}")
    return numbers[first] if numbers else 0


def _values_of_layer(name: str, cache: PagedCache, pair: tuple[Binding, Binding]) -> dict[str, Any]:
    widths = (cache.key_width, cache.value_width)
    for binding, width in zip(pair, widths, strict=True):
        shape = (cache.batch, cache.heads, len(cache), width)
        for axis, size in enumerate(binding.dims):
            if isinstance(size, int) and size != shape[axis]:
                raise _fail(
                    "shape",
                    name,
                    f"{binding.side} {list(shape)}, but {binding.input} is {list(binding.dims)}",
                )
        _check_formats(name, cache, binding)
    key_type, value_type = (str(CACHE_DTYPES[binding.type]) for binding in pair)
    keys = cache.key_array(key_type)
    values = cache.value_array(value_type)
    return {pair[0].input: to_ort_value(keys), pair[1].input: to_ort_value(values)}


def _check_formats(name: str, cache: PagedCache, binding: Binding) -> None:
    """Dense numbers must survive exactly; encoded ones are decoded, as they were made for."""
    wanted = str(CACHE_DTYPES[binding.type])
    for page in cache.pages:
        found = str(getattr(page, binding.side).format)
        if found in _DENSE and found != wanted and found not in _EXACT[wanted]:
            raise _fail(
                "dtype",
                name,
                f"{binding.side} of {found} does not fit into {binding.input} of {wanted} exactly",
            )
