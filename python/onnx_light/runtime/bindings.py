"""Which inputs of a model take up what its outputs gave in the run before."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from onnx_light.errors import CodedError
from onnx_light.onnx import GraphProto, ParseOptions
from onnx_light.onnx.tensors import to_array
from onnx_light.runtime.model import Model, read_file
from onnx_light.runtime.ort import CACHE_DTYPES, TENSOR_DTYPES

SIDES = ("key", "value")

# Optimum and onnxruntime-genai name them so.
_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
# Declared pairs may have other names; the layer and the side must be in them.
_DECLARED_PAST = re.compile(r"(?:.*\D)?(\d+)[._/](key|value)")

# What is known of inputs that hold other state, first match first.
_OTHER_STATE = (
    (r"past_key_values\.\d+\.(encoder|decoder)\.\w+", "the caches of an encoder-decoder model"),
    (r"past_key_values\.\d+\.(key|value)_scale", "a quantized cache with scales beside it"),
    (r"past_key_values\..*", "keys and values in another layout than one tensor for each"),
    (r"past[\w.]*[._]conv(\.\d+)?", "the state of a convolution"),
    (r"past[\w.]*[._](recurrent|ssm)[\w.]*", "recurrent state"),
)
_WINDOW_SYMBOL = "sliding"


@dataclass(frozen=True)
class Binding:
    """An input and the output that becomes its value in the next run.

    Attributes:
        input: its name.
        output: its name.
        type: of both, as onnxruntime names it, such as ``tensor(float)``.
        dims: of the input: a size, or the name of a symbol, or None.
        present_dims: of the output.
        layer: the number of the layer whose keys or values it holds; None for any other tensor.
        side: "key", "value", or "" for any other tensor.
    """

    input: str
    output: str
    type: str
    dims: tuple[int | str | None, ...]
    present_dims: tuple[int | str | None, ...]
    layer: int | None = None
    side: str = ""


@dataclass(frozen=True)
class Bindings:
    """All of a model's bindings.

    Attributes:
        all: in the order layers.0 key, layers.0 value, ..., then other tensors.
        layers: the name of each layer (``layers.N``) and its two bindings.
        others: those that are not keys or values of a layer.
        defaults: arrays of the initializers that bound inputs begin with.
    """

    all: tuple[Binding, ...]
    layers: Mapping[str, tuple[Binding, Binding]]
    others: tuple[Binding, ...]
    defaults: Mapping[str, Any]

    @property
    def caches(self) -> Iterator[Binding]:
        """Those that are keys or values of a layer."""
        for pair in self.layers.values():
            yield from pair


def find_bindings(model: Model) -> Bindings:
    """The pairs that the graph declares, and those that their names tell.

    Raises:
        CodedError: ``runtime.binding``: a declared pair that cannot be one.
            ``runtime.unsupported``: state of a form that is not supported, by its name.
    """
    session = model.session
    overridable = {item.name: item for item in session.get_overridable_initializers()}
    inputs = {item.name: item for item in session.get_inputs()} | overridable
    outputs = {item.name: item for item in session.get_outputs()}
    structured = set(model.lowered.inputs) | set(model.lowered.outputs) if model.lowered else set()
    pairs = dict(_declared_pairs(model.graph, inputs, outputs, structured))
    declared = set(pairs)
    for name in inputs:
        match = _PAST.fullmatch(name)
        if match and name not in pairs and name not in structured:
            present = f"present.{match[1]}.{match[2]}"
            if present not in outputs:
                _refuse(name, f"the model has no output {present} that follows it")
            pairs[name] = present
    _refuse_other_state(inputs.keys() - structured, outputs, pairs)
    bindings = [_binding(inputs[past], outputs[pairs[past]], past in declared) for past in pairs]
    layers = _pair_up(bindings)
    windows = _window_inputs(model.graph)
    for pair in layers.values():
        for binding in pair:
            _check_cache(binding, windows)
    paired = [binding for pair in layers.values() for binding in pair]
    others = tuple(binding for binding in bindings if binding.side == "")
    defaults = _defaults(model, [name for name in pairs if name in overridable])
    return Bindings((*paired, *others), layers, others, defaults)


def _refuse(name: str, message: str) -> NoReturn:
    raise CodedError(
        "runtime.unsupported",
        name,
        f"{message}; not supported yet, onnxruntime.InferenceSession runs the model without state",
    )


def _declared_pairs(
    graph: GraphProto | None,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    structured: set[str],
) -> Iterator[tuple[str, str]]:
    seen = set()
    for index, pair in enumerate(graph.persistent_bindings if graph is not None else ()):
        if pair.input_name in structured or pair.output_name in structured:
            continue  # StructuredValues
        path = f"graph.persistent_bindings[{index}]"
        if pair.input_name not in inputs:
            raise CodedError("runtime.binding", path, f"the model has no input {pair.input_name!r}")
        if pair.output_name not in outputs:
            raise CodedError(
                "runtime.binding", path, f"the model has no output {pair.output_name!r}"
            )
        if pair.input_name in seen:
            raise CodedError("runtime.binding", path, f"{pair.input_name!r} is bound twice")
        types = inputs[pair.input_name].type, outputs[pair.output_name].type
        if types[0] != types[1]:
            raise CodedError("runtime.binding", path, f"{types[1]} cannot become {types[0]}")
        if types[0] not in TENSOR_DTYPES:
            raise CodedError("runtime.unsupported", path, f"{types[0]} cannot be bound yet")
        seen.add(pair.input_name)
        yield pair.input_name, pair.output_name


def _refuse_other_state(
    inputs: Collection[str], outputs: Mapping[str, Any], pairs: Mapping[str, str]
) -> None:
    for name in inputs:
        if name in pairs:
            continue
        for pattern, what in _OTHER_STATE:
            if re.fullmatch(pattern, name):
                _refuse(name, what)
        present = re.sub(r"^past(_key_values)?", "present", name)
        if present != name and present in outputs:
            _refuse(name, f"state of an unknown kind (it is followed by {present})")
        if pairs and name == "use_cache_branch":
            _refuse(name, "a merged model, whose branch the caller chooses")
        if pairs and name == "block_table":
            _refuse(name, "a paged cache that the caller manages")


def _binding(past: Any, present: Any, is_declared: bool) -> Binding:
    pattern = _DECLARED_PAST if is_declared else _PAST
    match = pattern.fullmatch(past.name)
    is_cache = match is not None and (not is_declared or len(past.shape) == 4)
    return Binding(
        past.name,
        present.name,
        past.type,
        tuple(past.shape),
        tuple(present.shape),
        int(match[1]) if match and is_cache else None,
        match[2] if match and is_cache else "",
    )


def _pair_up(bindings: list[Binding]) -> dict[str, tuple[Binding, Binding]]:
    found: dict[int, dict[str, Binding]] = {}
    for binding in bindings:
        if binding.layer is not None:
            sides = found.setdefault(binding.layer, {})
            if binding.side in sides:
                raise CodedError(
                    "runtime.binding",
                    binding.input,
                    f"{sides[binding.side].input} is the {binding.side} of layer "
                    f"{binding.layer} already",
                )
            sides[binding.side] = binding
    layers = {}
    for layer, sides in sorted(found.items()):
        for side in SIDES:
            if side not in sides:
                _refuse(next(iter(sides.values())).input, f"layer {layer} has no {side} beside it")
        layers[f"layers.{layer}"] = (sides["key"], sides["value"])
    return layers


def _window_inputs(graph: GraphProto | None) -> set[str]:
    """Inputs of GroupQueryAttention nodes that keep the rows of a window only."""
    found: set[str] = set()
    for node in graph.node if graph is not None else ():
        if node.op_type == "GroupQueryAttention":
            for attribute in node.attribute:
                if attribute.name == "sliding_window_cache" and attribute.i:
                    found.update(node.input)
    return found


def _check_cache(binding: Binding, windows: set[str]) -> None:
    name, dims = binding.input, binding.dims
    if binding.type not in CACHE_DTYPES:
        _refuse(name, f"a cache of {binding.type}; {', '.join(CACHE_DTYPES)} are known")
    if len(dims) != 4:
        _refuse(name, f"a cache of {len(dims)} dims, not [batch, heads, tokens, width]")
    tokens = dims[2]
    if name in windows or (isinstance(tokens, str) and _WINDOW_SYMBOL in tokens):
        _refuse(name, "a cache that keeps the rows of a window only")
    if isinstance(tokens, int):
        _refuse(name, f"dims {list(dims)} have {tokens} rows: a buffer of fixed capacity")


def _defaults(model: Model, names: list[str]) -> dict[str, Any]:
    if not names:
        return {}
    if model.graph is None:
        _refuse(names[0], "an initializer of a bound input in onnxruntime's own file format")
    graph, folder = model.graph, ""
    if model.path:
        graph, folder = read_file(model.path, ParseOptions()).graph, str(model.path.parent)
    return {
        tensor.name: to_array(tensor, folder)
        for tensor in graph.initializer
        if tensor.name in names
    }
