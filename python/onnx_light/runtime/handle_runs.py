"""Runs of onnxruntime that take and give caches, which are INT64 scalars there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onnx_light._core import ValueScope, caches_of
from onnx_light.errors import CodedError
from onnx_light.runtime.ort import onnxruntime

if TYPE_CHECKING:
    from onnx_light.cache import PagedCache

# Elements. Inputs up to this size may stay bound until the next run.
_SMALL = 16 * 1024


class HandleRuns:
    """Runs of one session, by any number of threads at once."""

    def __init__(self, session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """`inputs` and `outputs`: the names of all that are caches."""
        self._session = session
        self._names = tuple(inputs), tuple(outputs)
        self._idle: list[_Slots] = []  # as many as runs were going on at once

    def run(
        self,
        caches: list[PagedCache],
        feed: Mapping[str, Any],
        fetches: tuple[str, ...],
        run_options: Any,
    ) -> tuple[list[PagedCache], list[Any]]:
        """One run.

        Args:
            caches: one for each of the inputs.
            feed: OrtValues for other inputs.
            fetches: other outputs.
            run_options: as onnxruntime takes them.

        Returns:
            A cache for each of the outputs; an OrtValue for each of the fetches.

        Raises:
            CodedError: what an operator of ours says, with the name of its node in the path.
            Exception: whatever onnxruntime raises.
        """
        slots = self._take(tuple(feed), fetches)
        scope = ValueScope()
        try:
            scope.add_all(caches, slots.given)
            values = slots.run(self._session, feed, run_options)
            made = caches_of(slots.made)
        except Exception as error:  # onnxruntime's have no other class in common
            failure = scope.failure
            if failure is None:
                raise
            node, code, path, message = failure
            where = f"{node}.{path}" if path else node
            raise CodedError(code, where, message) from error
        finally:
            scope.end()
        if all(math.prod(value.shape()) <= _SMALL for value in feed.values()):
            self._idle.append(slots)
        return made, values

    def forget_bindings(self) -> None:
        """To be called when the session has become another one inside."""
        self._idle.clear()

    def _take(self, feeds: tuple[str, ...], fetches: tuple[str, ...]) -> _Slots:
        try:
            slots = self._idle.pop()
        except IndexError:
            slots = None
        if slots is None or slots.names != (feeds, fetches):
            return _Slots(self._session, *self._names, feeds, fetches)
        return slots


class _Slots:
    """Memory for the handles of one run at a time, bound once: 60 feeds cost more than they do.

    Attributes:
        given, made: the handles, int64 [inputs] and [outputs].
        names: the other inputs and outputs.
    """

    def __init__(
        self,
        session: Any,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        feeds: tuple[str, ...],
        fetches: tuple[str, ...],
    ) -> None:
        self.given = np.zeros(len(inputs), np.int64)
        self.made = np.zeros(len(outputs), np.int64)
        self.names = feeds, fetches
        self._binding = session.io_binding()
        for name, scalar in zip(inputs, _scalars(self.given), strict=True):
            self._binding.bind_ortvalue_input(name, scalar)
        for name, scalar in zip(outputs, _scalars(self.made), strict=True):
            self._binding.bind_ortvalue_output(name, scalar)
        self._bind_fetches()

    def _bind_fetches(self) -> None:
        """Lets onnxruntime make new values, and those of the run before go."""
        for name in self.names[1]:
            self._binding.bind_output(name)

    def run(self, session: Any, feed: Mapping[str, Any], run_options: Any) -> list[Any]:
        for name, value in feed.items():
            self._binding.bind_ortvalue_input(name, value)
        session.run_with_iobinding(self._binding, run_options)
        values = self._binding.get_outputs_as_ortvaluevector()
        made = len(self.made)  # they come first
        results = [onnxruntime().OrtValue(values[made + i]) for i in range(len(self.names[1]))]
        self._bind_fetches()
        return results


def _scalars(handles: npt.NDArray[np.int64]) -> list[Any]:
    """OrtValues of shape [] that are the elements, not copies."""
    make = onnxruntime().OrtValue.ortvalue_from_numpy
    return [make(handles[i : i + 1].reshape(())) for i in range(len(handles))]
