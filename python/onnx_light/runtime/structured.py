"""Caches that go into runs as values and come out as values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx_light._core import CACHE_TYPE_NAME, common_end, first_misfit
from onnx_light.errors import CodedError
from onnx_light.runtime.cache_type import CacheShape
from onnx_light.runtime.handle_runs import HandleRuns
from onnx_light.runtime.lowering import Lowered
from onnx_light.runtime.model import Model

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
        runs: runs the model; it takes what `inputs_of_run` gives, and gives `outputs`.
    """

    def __init__(self, model: Model) -> None:
        self.inputs: Mapping[str, CacheShape] = {}
        self.outputs: Sequence[str] = ()
        self.bindings: dict[str, str] = {}
        self._defaults: Mapping[str, PagedCache] = {}
        self._constants: Mapping[str, PagedCache] = {}
        lowered: Lowered | None = model.lowered
        if lowered is not None and model.proto is not None:
            self.inputs = lowered.inputs
            self.outputs = tuple(lowered.outputs)
            self._defaults = lowered.defaults
            self._constants = lowered.constants
            for name, cache in self._defaults.items():
                self._check(name, cache)
            self._bind(model.proto)
        self._sizes = np.array([self.inputs[name].sizes for name in self.bindings], np.int64)
        self.runs = HandleRuns(model.session, [*self.inputs, *self._constants], self.outputs)

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

        return {name: self._defaults.get(name, PagedCache()) for name in self.bindings}

    @property
    def hidden(self) -> Collection[str]:
        """Inputs of the lowered model that the caller has not got."""
        return self._constants.keys()

    def inputs_of_run(
        self, given: Mapping[str, Any], state: Mapping[str, PagedCache]
    ) -> list[PagedCache]:
        """The caches that a run takes: what is fed, else the state's, else embedded ones.

        Raises:
            CodedError: ``runtime.feed``: one that is not there; ``runtime.shape``.
            TypeError: something else than a cache is fed.
        """
        caches = []
        for name in self.inputs:
            if name in given:
                self._check(name, given[name])
                caches.append(given[name])
            elif name in state:
                caches.append(state[name])
            elif name in self._defaults:
                caches.append(self._defaults[name])
            else:
                raise CodedError("runtime.feed", name, "a PagedCache must be fed")
        return [*caches, *self._constants.values()]

    def common_end(self, caches: list[PagedCache]) -> int | None:
        """Of the bound ones among `inputs_of_run`; None where they differ, or there are none."""
        named = zip(self.inputs, caches, strict=False)
        return common_end([cache for name, cache in named if name in self.bindings])

    def next_state(self, outputs: Mapping[str, Any]) -> dict[str, PagedCache]:
        """The caches of bound inputs after a run.

        Raises:
            CodedError: ``runtime.shape``: one that cannot be an input of the next run.
        """
        caches = [outputs[output] for output in self.bindings.values()]
        if caches:
            misfit = first_misfit(caches, self._sizes)
            if misfit is not None:
                name = list(self.bindings)[misfit]
                self.inputs[name].check(name, caches[misfit])
        return dict(zip(self.bindings, caches, strict=True))

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
