"""Caches that go into runs as values and come out as values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx_light._core import CACHE_TYPE_NAME
from onnx_light.errors import CodedError
from onnx_light.runtime.cache_type import CacheShape
from onnx_light.runtime.lowering import Lowered
from onnx_light.runtime.ort import onnxruntime

if TYPE_CHECKING:
    from onnx_light.cache import PagedCache
    from onnx_light.onnx import ModelProto


@dataclass(frozen=True)
class StructuredArg:
    """An input or output that is a cache, as `get_inputs` and `get_outputs` show it."""

    name: str
    type: str = CACHE_TYPE_NAME
    shape: tuple[()] = ()


class StructuredValues:
    """The caches of one model: which inputs and outputs they are, and where they begin.

    Attributes:
        inputs: the caches among the inputs, with what their types say.
        outputs: the names of outputs that are caches.
        bindings: the output that each bound input takes up.
        start: the caches that bound inputs have before the first run.
    """

    def __init__(self, lowered: Lowered | None, model: ModelProto | None) -> None:
        self.inputs: Mapping[str, CacheShape] = {}
        self.outputs: frozenset[str] = frozenset()
        self.bindings: dict[str, str] = {}
        self._defaults: Mapping[str, PagedCache] = {}
        self._constants: Mapping[str, PagedCache] = {}
        if lowered is None or model is None:
            return
        self.inputs = lowered.inputs
        self.outputs = frozenset(lowered.outputs)
        self._defaults = lowered.defaults
        self._constants = lowered.constants
        for name, cache in self._defaults.items():
            self._check(name, cache)
        self._bind(model)

    def _bind(self, model: ModelProto) -> None:
        outputs = {value.name for value in model.graph.output}
        for index, pair in enumerate(model.graph.persistent_bindings):
            if pair.input_name not in self.inputs and pair.output_name not in self.outputs:
                continue
            path = f"graph.persistent_bindings[{index}]"
            if pair.output_name not in outputs:
                raise CodedError(
                    "runtime.binding", path, f"the model has no output {pair.output_name!r}"
                )
            if pair.input_name not in self.inputs or pair.output_name not in self.outputs:
                raise CodedError(
                    "runtime.binding",
                    path,
                    f"one of {pair.input_name!r} and {pair.output_name!r} is a cache only",
                )
            if pair.input_name in self.bindings:
                raise CodedError("runtime.binding", path, f"{pair.input_name!r} is bound twice")
            self.bindings[pair.input_name] = pair.output_name

    @property
    def start(self) -> dict[str, PagedCache]:
        """The caches of bound inputs before the first run."""
        from onnx_light.cache import PagedCache

        return {name: self._defaults.get(name) or PagedCache() for name in self.bindings}

    @property
    def hidden(self) -> Collection[str]:
        """Inputs of the lowered model that the caller has not got."""
        return self._constants.keys()

    def inputs_of_run(
        self, given: Mapping[str, Any], state: Mapping[str, PagedCache]
    ) -> dict[str, PagedCache]:
        """The caches that a run takes: what is fed, else the state's, else embedded ones.

        Raises:
            CodedError: ``runtime.feed``: one that is not there; ``runtime.shape``.
            TypeError: something else than a cache is fed.
        """
        caches = dict(self._constants)
        for name in self.inputs:
            if name in given:
                self._check(name, given[name])
                caches[name] = given[name]
            elif name in state:
                caches[name] = state[name]
            elif name in self._defaults:
                caches[name] = self._defaults[name]
            else:
                raise CodedError("runtime.feed", name, "a PagedCache must be fed")
        return caches

    def next_state(self, outputs: Mapping[str, Any]) -> dict[str, PagedCache]:
        """The caches of bound inputs after a run.

        Raises:
            CodedError: ``runtime.shape``: one that cannot be an input of the next run.
        """
        for name, output in self.bindings.items():
            self.inputs[name].check(name, outputs[output])
        return {name: outputs[output] for name, output in self.bindings.items()}

    def check_state(self, given: Mapping[str, Any]) -> dict[str, PagedCache]:
        """The bound caches in a mapping.

        Raises:
            CodedError: ``runtime.layers``: one is missing; ``runtime.shape``.
            TypeError: no cache.
        """
        caches = {}
        for name in self.bindings:
            if name not in given:
                raise CodedError(
                    "runtime.layers", name, f"is missing; the model has {len(self.bindings)} caches"
                )
            self._check(name, given[name])
            caches[name] = given[name]
        return caches

    def _check(self, name: str, cache: Any) -> None:
        from onnx_light.cache import PagedCache

        if not isinstance(cache, PagedCache):
            raise TypeError(f"{name}: a PagedCache is needed, not {type(cache).__name__}")
        self.inputs[name].check(name, cache)


class StructuredRun:
    """One run: its handles exist until it ends."""

    def __init__(self, caches: Mapping[str, PagedCache]) -> None:
        from onnx_light._core import ValueScope

        self._scope = ValueScope()
        scalar = onnxruntime().OrtValue.ortvalue_from_numpy
        self.feed = {
            name: scalar(np.array(self._scope.add(cache), np.int64))
            for name, cache in caches.items()
        }

    def __enter__(self) -> StructuredRun:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        failure = self._scope.failure
        self._scope.end()
        # onnxruntime's own exceptions have no class in common but this one.
        if failure is not None and isinstance(error, Exception):
            node, code, path, message = failure
            where = f"{node}.{path}" if path else node
            raise CodedError(code, where, message) from error

    @staticmethod
    def cache(value: Any) -> PagedCache:
        """The cache that came out."""
        from onnx_light._core import cache_of

        return cache_of(int(value.numpy()))


def common_end(caches: Iterable[PagedCache]) -> int | None:
    """The end position of all caches; None where they differ, or there are none."""
    ends = {cache.end for cache in caches}
    return ends.pop() if len(ends) == 1 else None
