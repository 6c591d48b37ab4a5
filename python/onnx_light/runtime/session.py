"""A session of onnxruntime that keeps the state of a decoder between runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from onnx_light._core import common_end
from onnx_light.errors import CodedError
from onnx_light.runtime.bindings import Bindings, find_bindings
from onnx_light.runtime.feeds import Step, StepBuilder
from onnx_light.runtime.model import load_model
from onnx_light.runtime.ort import to_array, to_ort_value
from onnx_light.runtime.state import (
    State,
    StateView,
    cut_state,
    start_state,
    state_from_caches,
)
from onnx_light.runtime.structured import StructuredArg, StructuredValues

if TYPE_CHECKING:
    from onnx_light import PagedCache
    from onnx_light.snapshot import SaveReport


class InferenceSession:
    """onnxruntime.InferenceSession, with a state between runs for models that have one.

    Inputs and outputs named `past_key_values.N.key` / `.value` and `present.N.key` / `.value`, and
    the pairs that `GraphProto.persistent_bindings` declares, are bound: what an output gave is what
    the input takes in the next run, without a copy. Bound inputs need not be fed. Neither need
    `attention_mask`, `position_ids`, `seqlens_k` and `total_sequence_length`, which follow from the
    state and the new tokens. A model without such inputs runs as in onnxruntime.

    All other methods and attributes are those of onnxruntime's session. `run_async` and
    `run_with_iobinding` know no state: they need every input and leave the state alone.

    A session may be used by several threads: what changes the state waits for its turn. Forks do
    not wait for each other.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Loads the model.

        Args:
            path_or_bytes: a path, the bytes of a model, or a ModelProto, ours or onnx's. Large
                initializers of a ModelProto are not copied, but put into `sess_options`, which
                then serve this session only.
            sess_options, providers, provider_options, kwargs: as onnxruntime takes them.

        Raises:
            CodedError: a ValueError with `code` and `path`. ``runtime.unsupported``: state that
                this class cannot keep: buffers of fixed capacity, caches of windows and of
                encoders, quantized and fused ones, states of convolutions and recurrences;
                ``runtime.binding``, ``runtime.options``, ``runtime.model``; ``runtime.version``: an
                onnxruntime that is too old; what `lower` finds in a model with
                structured values.
            ImportError: onnxruntime is not installed.
            ParseError, OSError: the model cannot be read.
            Exception: whatever onnxruntime raises.
        """
        self._model = load_model(path_or_bytes, sess_options, providers, provider_options, **kwargs)
        self._bindings: Bindings = find_bindings(self._model)
        self._steps = StepBuilder(self._model, self._bindings)
        self._structured = StructuredValues(self._model)
        self._start = start_state(self._bindings, self._structured)
        self._state = self._start
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # not loaded, or being made by copy or pickle
            raise AttributeError(name)
        return getattr(self._model.session, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._model.session)})

    @property
    def _is_plain(self) -> bool:
        """Whether the model is onnxruntime's business alone."""
        return not self._bindings.all and self._model.lowered is None

    def get_inputs(self) -> Sequence[Any]:
        """As onnxruntime's; caches are of the type "onnx_light.PagedKVCache"."""
        return self._shown(self._model.session.get_inputs(), self._structured.inputs)

    def get_outputs(self) -> Sequence[Any]:
        """As onnxruntime's; caches are of the type "onnx_light.PagedKVCache"."""
        return self._shown(self._model.session.get_outputs(), self._structured.outputs)

    def _shown(self, items: Sequence[Any], structured: Container[str]) -> Sequence[Any]:
        """Without the handles that stand for caches."""
        if self._model.lowered is None:
            return items
        hidden = self._structured.hidden
        return [
            StructuredArg(item.name) if item.name in structured else item
            for item in items
            if item.name not in hidden
        ]

    def set_providers(self, *args: Any, **kwargs: Any) -> None:
        """As onnxruntime's; for all forks of this session."""
        self._model.session.set_providers(*args, **kwargs)
        self._structured.runs.forget_bindings()

    # Running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> Sequence[Any]:
        """Computes the outputs; the state advances if the whole run succeeded.

        Args:
            output_names: the outputs to return; None or empty: all, bound ones too.
            input_feed: arrays or OrtValues by input name, a PagedCache for a structured value. A
                bound input that is fed replaces the state's for this run, and the state advances
                from it.
            run_options: as onnxruntime takes them.

        Returns:
            An array for each output, not shared with the state; bfloat16 in the dtype of ml_dtypes;
            a PagedCache for a structured value.

        Raises:
            CodedError: ``runtime.feed``: inputs that the model does not take, that contradict each
                other or the state, or one that is missing; ``runtime.max_tokens``: more tokens
                than `context`; ``runtime.size``; ``runtime.present``: keys or values came out in
                a shape that cannot be the next past; ``runtime.shape`` for a structured value.
                What an operator of `ai.rt` says, with the name of its node in the path. The state
                is unchanged.
            Exception: whatever onnxruntime raises; the state is unchanged.
        """
        if self._is_plain:
            result: Sequence[Any] = self._model.session.run(output_names, input_feed, run_options)
            return result
        return self._advance(output_names, input_feed, run_options, to_array)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> Sequence[Any]:
        """As `run`, with OrtValues for results."""
        if self._is_plain:
            result: Sequence[Any] = self._model.session.run_with_ort_values(
                output_names, input_dict_ort_values, run_options
            )
            return result

        def convert(value: Any, name: str, *, copy: bool) -> Any:
            return to_ort_value(to_array(value, name, copy=True)) if copy else value

        return self._advance(output_names, input_dict_ort_values, run_options, convert)

    def _advance(
        self,
        output_names: Sequence[str] | None,
        given: Mapping[str, Any],
        run_options: Any,
        convert: Callable[..., Any],
    ) -> list[Any]:
        """Runs behind the state and replaces it, when nothing can fail any more.

        Args:
            convert: makes a result of an output's OrtValue and name; `copy` says whether the state
                goes on with that value.
        """
        structured = self._structured
        names = list(output_names or (item.name for item in self._model.session.get_outputs()))
        bound = dict.fromkeys(binding.output for binding in self._bindings.all)
        fetched = tuple(
            name for name in dict.fromkeys([*names, *bound]) if name not in structured.outputs
        )
        plain = {name: item for name, item in given.items() if name not in structured.inputs}
        with self._lock:
            caches = structured.inputs_of_run(given, self._state.caches)
            is_state = not any(name in given for name in structured.bindings)
            step = self._steps.build(plain, self._state, structured.common_end(caches), is_state)
            outputs = self._run(caches, step, fetched, run_options)
            state = self._next_state(step, outputs)
            results = [
                outputs[name]
                if name in structured.outputs
                else convert(outputs[name], name, copy=name in bound)
                for name in names
            ]
            self._state = state
        return results

    def _run(
        self, caches: list[PagedCache], step: Step, fetched: tuple[str, ...], run_options: Any
    ) -> dict[str, Any]:
        """The fetched outputs as OrtValues, and all that are caches."""
        structured = self._structured
        if self._model.lowered is None:
            session = self._model.session
            values = session.run_with_ort_values(fetched, step.feed, run_options)
            return dict(zip(fetched, values, strict=True))
        made, values = structured.runs.run(caches, step.feed, fetched, run_options)
        return dict(zip([*structured.outputs, *fetched], [*made, *values], strict=True))

    def _next_state(self, step: Step, outputs: Mapping[str, Any]) -> State:
        values = {item.input: outputs[item.output] for item in self._bindings.all}
        length = self._present_length(step, outputs)
        caches = self._structured.next_state(outputs)
        if not self._bindings.layers:
            length = common_end(list(caches.values())) or 0
        if length == 0:
            for binding in self._bindings.caches:
                del values[binding.input]
        tokens = None
        if step.past_tokens is not None and step.new_tokens is not None:
            past = step.past_tokens if step.past else step.new_tokens[:, :0]
            joined = np.concatenate([past, step.new_tokens], axis=1)
            tokens = joined if joined.shape[1] == length else None
        return State(values, length, tokens, step.masked, step.shifted, caches)

    def _present_length(self, step: Step, outputs: Mapping[str, Any]) -> int:
        """The number of tokens in the caches that came out, which all have to have."""
        length: int | None = None if step.count is None else step.past + step.count
        for binding in self._bindings.caches:
            shape = outputs[binding.output].shape()
            past = step.shapes[binding.input]
            if length is None and len(shape) == 4 and shape[2] >= step.past:
                length = shape[2]
            if shape != [*past[:2], length, past[3]]:
                new = "some" if step.count is None else step.count
                raise CodedError(
                    "runtime.present",
                    binding.output,
                    f"{shape} came out where {past} went in and {new} tokens were new; "
                    "only caches that grow by what is new are supported",
                )
        return length if length is not None and self._bindings.layers else 0

    # The state

    @property
    def state(self) -> StateView:
        """The state as a mapping: a PagedCache for each layer, `layers.0`, `layers.1`, ...

        Bound inputs that are structured values are there under their own names.
        It shows the present moment for ever: later runs do not change it. Assigning a mapping with
        the same names replaces the state; the tokens are not known afterwards. Caches must have
        the model's shape, begin at position 0 and be equally long; encoded pages are decoded, dense
        ones must fit into the model's dtype exactly.

        Raises:
            CodedError: when assigned: ``runtime.layers``, ``runtime.shape``, ``runtime.dtype``,
                ``runtime.position``; the state is unchanged.
        """
        return StateView(self._state, self._bindings)

    @state.setter
    def state(self, caches: Mapping[str, Any]) -> None:
        self._replace(state_from_caches(caches, self._bindings, self._structured, None))

    def _replace(self, state: State) -> None:
        with self._lock:
            self._state = state

    @property
    def tokens(self) -> npt.NDArray[np.int64] | None:
        """The ids that the state holds, [tokens] for one sequence, else [batch, tokens].

        They come from the input named `input_ids`. None if they are not known: if past keys and
        values were fed or assigned, or the model takes something else.
        """
        tokens = self._state.tokens
        if tokens is None:
            return None
        return (tokens[0] if len(tokens) == 1 else tokens).copy()

    @property
    def context(self) -> int:
        """How many tokens the model takes, past ones included; 0 if it does not say.

        Models of `from_gguf` do, in the metadata of their identity.
        """
        return self._model.context

    def reset(self) -> None:
        """Goes back to the state before the first run."""
        self._replace(self._start)

    def truncate(self, end: int) -> None:
        """Drops the tokens from position `end` on.

        Raises:
            CodedError: ``runtime.position``: the state ends before `end`; ``runtime.state``: the
                model has state that cannot be cut.
        """
        self._require_layers("be truncated")
        with self._lock:
            self._state = cut_state(self._state, self._bindings, end)

    def fork(self) -> InferenceSession:
        """A session with the same model and state, which go separate ways from here. Cheap."""
        other = object.__new__(type(self))
        other._model = self._model
        other._bindings = self._bindings
        other._structured = self._structured
        other._steps = self._steps
        other._start = self._start
        other._state = self._state
        other._lock = threading.Lock()
        return other

    def _require_layers(self, what: str) -> None:
        if not self._bindings.layers and not self._structured.bindings:
            raise CodedError("runtime.state", "", f"the model has no caches that could {what}")
        if self._bindings.others:
            name = self._bindings.others[0].input
            raise CodedError("runtime.state", name, f"this state is no cache and cannot {what}")

    # Files

    def save_state(
        self, path: str | os.PathLike[str], tokens: Any = None, **options: Any
    ) -> SaveReport:
        """Writes the state to a snapshot file, with the model's identity.

        It is what `ModelIdentity.from_onnx` says. Where the model's metadata do not give it, the
        weights are read the first time.

        Args:
            path: the file, `*.kvcache` by custom.
            tokens: the ids of the state, in place of those that the session knows.
            options: those of `snapshot.save`; `identity` in place of the model's, None for none.

        Raises:
            CodedError: ``runtime.state``: state that no snapshot can hold; ``runtime.identity``:
                nothing tells any more which model it is; what `snapshot.save` and
                `ModelIdentity.from_onnx` raise.
        """
        self._require_layers("be saved")
        from onnx_light import snapshot

        state = self._state
        irregular = state.masked or state.shifted
        if irregular:
            raise CodedError("runtime.state", "", f"a snapshot cannot tell that {irregular}")
        if "identity" not in options:
            options["identity"] = self._model.identity
        known = None if state.tokens is None else state.tokens
        if tokens is None and known is not None:
            tokens = known[0] if len(known) == 1 else known
        caches = cast("Mapping[str, PagedCache]", StateView(state, self._bindings))
        return snapshot.save(caches, path, tokens=tokens, **options)

    def load_state(self, path: Any, **options: Any) -> None:
        """Replaces the state by that of a snapshot.

        Args:
            path: what `snapshot.open` takes.
            options: those of `snapshot.open`. Unless `expect` is among them, the file's identity
                must agree with the model's, as `save_state` writes it.

        Raises:
            CodedError: the file is damaged or of another model; a layer is missing; shapes or
                dtypes are not the model's. The state is unchanged.
            OSError: the file cannot be read.
        """
        self._require_layers("be loaded")
        from onnx_light import snapshot

        if "expect" not in options:
            options["expect"] = self._model.identity
        with snapshot.open(path, **options) as opened:
            caches = {name: opened.caches[name] for name in opened.caches}
            tokens = None if opened.tokens is None else np.atleast_2d(opened.tokens)
            state = state_from_caches(caches, self._bindings, self._structured, tokens)
        self._replace(state)
