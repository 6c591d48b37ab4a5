"""Models with structured values as models that onnxruntime loads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnx_light.errors import CodedError
from onnx_light.onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    PagedCacheProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)
from onnx_light.onnx_py._onnxpyprotoop import _load_external_data
from onnx_light.runtime.cache_type import CacheShape, TypeReader
from onnx_light.runtime.encoded_initializers import lower_encoded_initializers
from onnx_light.runtime.flow import DOMAIN, attribute_graphs, check_flow, is_operator
from onnx_light.runtime.inlining import inline_functions

if TYPE_CHECKING:
    from onnx_light.cache import PagedCache

_OPSET = 1


@dataclass(frozen=True)
class Lowered:
    """A model in which handles stand for caches.

    Attributes:
        model: for onnxruntime.
        inputs: the caches among the declared inputs, with what their types say.
        outputs: the same of outputs.
        defaults: the embedded caches that inputs begin with.
        constants: other embedded caches, by the names of the inputs that the lowered model has for
            them.
    """

    model: ModelProto
    inputs: Mapping[str, CacheShape]
    outputs: Mapping[str, CacheShape]
    defaults: Mapping[str, PagedCache]
    constants: Mapping[str, PagedCache]


def lower(model: Any) -> ModelProto:
    """The same model for plain onnxruntime with the library at `get_library_path()`.

    Caches are INT64 scalars in it, which `handle` gives. Embedded caches are inputs too: under the
    name of their input, else under their own or a new one at the end of the list. Encoded
    initializers become DequantizeLinear nodes or plain tensors.

    Args:
        model: a ModelProto, ours or onnx's; it stays what it is. Payloads are shared.

    Raises:
        CodedError: ``runtime.structured``: a node that computes on a cache, by its name;
            ``runtime.attribute``; ``runtime.unsupported``: other structured types and operators of
            ours that are not known; ``check.cache_type``, ``cache.reference``, ``cache.layout``: a
            type that is none of a cache; ``runtime.function``; ``runtime.encoded``; of embedded
            caches what `PagedCache.from_proto` says.
    """
    if not hasattr(model, "SerializeToString"):
        raise TypeError(f"a ModelProto is needed, not {type(model).__qualname__}")
    copy = ModelProto()
    if isinstance(model, ModelProto):
        copy.CopyFrom(model)
    else:
        copy.ParseFromString(model.SerializeToString())
    return lower_model(copy).model


def has_structured_values(model: ModelProto) -> bool:
    """Whether onnxruntime needs another form of the model."""
    types = TypeReader(model)
    graphs = list(_graphs(model))
    return (
        any(entry.domain == DOMAIN for entry in model.opset_import)
        or any(len(graph.paged_cache_initializer) for _, graph in graphs)
        or any(len(graph.encoded_initializer) for _, graph in graphs)
        or any(types.is_structured(value.type) for _, graph in graphs for value in _values(graph))
    )


def lower_model(model: ModelProto, folder: str = "") -> Lowered:
    """Changes a model that belongs to nobody else; errors as those of `lower`.

    Args:
        model: the whole message.
        folder: where data in other files lie; empty: here.
    """
    _check_opset(model)
    types = TypeReader(model)
    graph = model.graph
    try:
        check_flow(model)
        inline_functions(model)
    except RecursionError:
        raise CodedError(
            "runtime.function", "functions", "they call each other in too many levels"
        ) from None
    inputs = _cache_shapes(graph.input, types, "graph.input")
    outputs = _cache_shapes(graph.output, types, "graph.output")
    lower_encoded_initializers(model, folder)
    embedded = _Embedded(model, folder)
    embedded.take_out()
    for _, part in _graphs(model):
        for value in _values(part):
            if types.is_structured(value.type):
                _set_handle_type(value.type)
    for function in model.functions:
        for value in function.value_info:
            if types.is_structured(value.type):
                _set_handle_type(value.type)
    _name_operators(model)
    graph.ClearField("persistent_bindings")
    model.ClearField("struct_types")
    return Lowered(model, inputs, outputs, embedded.defaults, embedded.constants)


def _check_opset(model: ModelProto) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain == DOMAIN]
    if any(version != _OPSET for version in versions):
        raise CodedError(
            "runtime.unsupported",
            "opset_import",
            f"{DOMAIN} of version {versions[0]}; version {_OPSET} is known",
        )
    if not versions:
        model.opset_import.add(domain=DOMAIN, version=_OPSET)


def _values(graph: GraphProto) -> Iterator[ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def _graphs(model: ModelProto) -> Iterator[tuple[str, GraphProto]]:
    """The model's graph and all subgraphs, those of functions too, with their paths."""
    yield "graph", model.graph
    pending: list[tuple[str, Sequence[NodeProto]]] = [("graph", model.graph.node)]
    pending += [(f"functions[{item.name}]", item.node) for item in model.functions]
    while pending:
        path, nodes = pending.pop()
        for index, node in enumerate(nodes):
            for place, graph in attribute_graphs(node):
                where = f"{path}.node[{node.name or index}].{place}"
                yield where, graph
                pending.append((where, graph.node))


def _cache_shapes(
    values: Sequence[ValueInfoProto], types: TypeReader, path: str
) -> dict[str, CacheShape]:
    return {
        value.name: types.cache_shape(value.type, f"{path}[{value.name}].type")
        for value in values
        if types.is_structured(value.type)
    }


def _set_handle_type(kind: TypeProto) -> None:
    kind.Clear()
    tensor = kind.add_tensor_type()
    tensor.elem_type = TensorProto.INT64
    tensor.add_shape()


class _Embedded:
    """Turns embedded caches into inputs of the model."""

    def __init__(self, model: ModelProto, folder: str) -> None:
        self._model = model
        self._folder = os.fsencode(folder)
        self._taken = _all_names(model)
        self.defaults: dict[str, PagedCache] = {}
        self.constants: dict[str, PagedCache] = {}

    def take_out(self) -> None:
        graph = self._model.graph
        inputs = {value.name for value in graph.input}
        for cache in graph.paged_cache_initializer:
            if cache.name in inputs:
                self.defaults[cache.name] = self._read(cache, "graph")
            else:
                self._add_input(cache.name, self._read(cache, "graph"))
        graph.ClearField("paged_cache_initializer")
        for path, part in _graphs(self._model):
            if len(part.paged_cache_initializer):
                self._take_from_subgraph(part, path)

    def _take_from_subgraph(self, graph: GraphProto, path: str) -> None:
        # Other branches may use the name for something else.
        nodes = []
        for cache in graph.paged_cache_initializer:
            if "functions[" in path:
                raise CodedError(
                    "runtime.unsupported",
                    f"{path}.paged_cache_initializer[{cache.name}]",
                    "a cache that is embedded in a function; give it to the function as an input",
                )
            if any(value.name == cache.name for value in graph.input):
                raise CodedError(
                    "runtime.structured",
                    f"{path}.paged_cache_initializer[{cache.name}]",
                    "has the name of an input of its subgraph",
                )
            name = self._new_name(cache.name)
            self._add_input(name, self._read(cache, path))
            node = NodeProto(op_type="Identity", name=f"{name}.embedded")
            node.input.append(name)
            node.output.append(cache.name)
            nodes.append(node)
        graph.ClearField("paged_cache_initializer")
        for node in reversed(nodes):
            graph.node.insert(0, node)

    def _new_name(self, name: str) -> str:
        index = 1
        while f"{name}.{index}" in self._taken:
            index += 1
        self._taken.add(f"{name}.{index}")
        return f"{name}.{index}"

    def _read(self, cache: PagedCacheProto, path: str) -> PagedCache:
        from onnx_light.cache import PagedCache

        try:
            _load_external_data(cache, self._folder)
            return PagedCache.from_proto(cache, model=self._model)
        except CodedError as error:
            place = f"{path}.paged_cache_initializer[{cache.name}].{error.path}"
            raise CodedError(error.code, place, error.message) from None

    def _add_input(self, name: str, cache: PagedCache) -> None:
        self.constants[name] = cache
        value = self._model.graph.input.add(name=name)
        _set_handle_type(value.add_type())


def _all_names(model: ModelProto) -> set[str]:
    names: set[str] = set()
    for _, graph in _graphs(model):
        names.update(value.name for value in _values(graph))
        names.update(tensor.name for tensor in graph.initializer)
        names.update(value.name for value in graph.encoded_initializer)
        names.update(cache.name for cache in graph.paged_cache_initializer)
        for node in graph.node:
            names.update(node.input)
            names.update(node.output)
    return names


def _name_operators(model: ModelProto) -> None:
    """Gives a name to operators of ours that have none, so that failures can tell which it was."""
    lists = [graph.node for _, graph in _graphs(model)]
    lists += [function.node for function in model.functions]
    nodes = [node for items in lists for node in items]
    taken = {node.name for node in nodes}
    counts: dict[str, int] = {}
    for node in nodes:
        if not is_operator(node) or node.name:
            continue
        while True:
            number = counts.get(node.op_type, 0)
            counts[node.op_type] = number + 1
            name = f"{node.op_type}_{number}"
            if name not in taken:
                break
        node.name = name
