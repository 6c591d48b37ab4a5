"""Which values of a model are caches, and whether nothing computes on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from onnx_light.errors import CodedError
from onnx_light.onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto
from onnx_light.runtime.cache_type import TypeReader

DOMAIN = "ai.rt"

_INT, _FLOAT, _STRING = AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING
# Of each operator: which inputs are caches, how many inputs it has at least and at most, which of
# how many outputs are caches, and its attributes.
_OPERATORS: dict[str, tuple[int, tuple[int, int], tuple[bool, ...], dict[str, int]]] = {
    "PagedAttention": (
        3,
        (4, 6),
        (False, True),
        {
            "block_size": _INT,
            "max_tokens": _INT,
            "is_causal": _INT,
            "left_window_size": _INT,
            "q_num_heads": _INT,
            "kv_num_heads": _INT,
            "scale": _FLOAT,
            "softcap": _FLOAT,
            "policy": _STRING,
        },
    ),
    "QuantizePagedCache": (0, (6, 6), (True,), {}),
    "PagedCacheLength": (0, (1, 1), (False,), {}),
}
_STANDARD = ("", "ai.onnx")

Names = set[str]
Flags = list[bool]


def attribute_graphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """The subgraphs of a node, each with its path below the node's."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield f"attribute[{attribute.name}].g", attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"attribute[{attribute.name}].graphs[{index}]", graph


def function_key(node: NodeProto) -> tuple[str, str, str]:
    """What tells the function that a node calls, if it does."""
    return node.domain if node.domain not in _STANDARD else "", node.op_type, node.overload


def is_operator(node: NodeProto) -> bool:
    """Whether it is one of ours."""
    return node.domain == DOMAIN


def check_flow(model: ModelProto) -> None:
    """That caches go to operators that know them only.

    Raises:
        CodedError: ``runtime.structured``: a node that computes on a cache, by its name;
            ``runtime.attribute``: of an operator of ours; ``runtime.unsupported``: a structured
            type or an operator of ours that is not known.
    """
    _Flow(model).check()


class _Flow:
    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._types = TypeReader(model)
        self._functions: dict[tuple[str, str, str], FunctionProto] = {
            (function.domain, function.name, function.overload): function
            for function in model.functions
        }
        self._results: dict[tuple[tuple[str, str, str], tuple[bool, ...]], Flags] = {}
        self._open: list[tuple[str, str, str]] = []

    def check(self) -> None:
        graph = self._model.graph
        inputs = [self._is_cache(value, "graph.input") for value in graph.input]
        outputs = self._graph(graph, set(), inputs, "graph")
        for value, flag in zip(graph.output, outputs, strict=True):
            path = f"graph.output[{value.name}]"
            if self._is_cache(value, "graph.output") != flag:
                declared = "a cache" if not flag else "no cache"
                found = "one" if flag else "none"
                _fail(path, f"is declared to be {declared}, but is {found}")

    def _is_cache(self, value: object, path: str) -> bool:
        kind = value.type  # type: ignore[attr-defined]
        if not self._types.is_structured(kind):
            return False
        self._types.cache_shape(kind, f"{path}[{value.name}].type")  # type: ignore[attr-defined]
        return True

    def _graph(self, graph: GraphProto, outer: Names, inputs: Sequence[bool], path: str) -> Flags:
        """The flags of the outputs.

        Args:
            graph: of the model, or a subgraph.
            outer: the caches that it sees from around it.
            inputs: which of its inputs are caches.
            path: its path.
        """
        given = {value.name for value in graph.input}
        caches = outer - given  # an input may hide one
        caches |= {value.name for value, flag in zip(graph.input, inputs, strict=True) if flag}
        for cache in graph.paged_cache_initializer:
            if cache.name in given - caches:
                _fail(f"{path}.paged_cache_initializer[{cache.name}]", "its input is no cache")
            caches.add(cache.name)
        for value, flag in zip(graph.input, inputs, strict=True):
            if self._types.is_structured(value.type) and not flag:
                _fail(f"{path}.input[{value.name}]", "is declared to be a cache, but gets none")
        self._nodes(graph.node, caches, path)
        return [value.name in caches for value in graph.output]

    def _nodes(self, nodes: Sequence[NodeProto], caches: Names, path: str) -> None:
        for index, node in enumerate(nodes):
            place = f"{path}.node[{node.name or index}]"
            flags = self._node(node, caches, place)
            for name, flag in zip(node.output, flags, strict=False):
                (caches.add if flag and name else caches.discard)(name)

    def _node(self, node: NodeProto, caches: Names, path: str) -> Flags:
        inputs = [name in caches for name in node.input]
        if node.domain == DOMAIN:
            return _check_operator(node, inputs, path)
        key = function_key(node)
        if key in self._functions:
            return self._function(key, inputs, path)
        if key[0] == "" and node.op_type in ("If", "Loop", "Scan"):
            return self._control(node, inputs, caches, path)
        if key[0] == "" and node.op_type == "Identity":
            return inputs
        if any(inputs):
            name = node.input[inputs.index(True)]
            _fail(
                path,
                f"{node.op_type} computes on the cache {name!r}; operators of {DOMAIN}, Identity, "
                "functions, If, and the carried values of Loop and Scan take caches",
            )
        for place, graph in attribute_graphs(node):
            flags = self._graph(graph, caches, [False] * len(graph.input), f"{path}.{place}")
            if any(flags):
                _fail(path, f"a cache comes out of a subgraph of {node.op_type}")
        return []

    def _function(self, key: tuple[str, str, str], inputs: Flags, path: str) -> Flags:
        function = self._functions[key]
        if key in self._open:
            raise CodedError("runtime.function", path, f"{function.name} calls itself")
        flags = (inputs + [False] * len(function.input))[: len(function.input)]
        known = (key, tuple(flags))
        if known not in self._results:
            self._open.append(key)
            caches = {name for name, flag in zip(function.input, flags, strict=True) if flag}
            self._nodes(function.node, caches, f"functions[{function.name}]")
            self._results[known] = [name in caches for name in function.output]
            self._open.pop()
        return self._results[known]

    def _control(self, node: NodeProto, inputs: Flags, caches: Names, path: str) -> Flags:
        graphs = list(attribute_graphs(node))
        if node.op_type == "If":
            return self._branches(node, graphs, caches, path)
        if len(graphs) != 1:
            raise CodedError("runtime.structured", path, f"{node.op_type} needs one body")
        place, body = graphs[0]
        place = f"{path}.{place}"
        if node.op_type == "Loop":
            return self._loop(inputs, body, caches, path, place)
        return self._scan(node, inputs, body, caches, path, place)

    def _branches(
        self,
        node: NodeProto,
        graphs: list[tuple[str, GraphProto]],
        caches: Names,
        path: str,
    ) -> Flags:
        if node.input and node.input[0] in caches:
            _fail(path, f"the condition is the cache {node.input[0]!r}")
        flags = [
            self._graph(graph, caches, [False] * len(graph.input), f"{path}.{place}")
            for place, graph in graphs
        ]
        for index in range(len(node.output)):
            found = {branch[index] for branch in flags if index < len(branch)}
            if len(found) > 1:
                _fail(path, f"{node.output[index]!r} is a cache in one branch only")
        return flags[0] if flags else []

    def _loop(self, inputs: Flags, body: GraphProto, caches: Names, path: str, place: str) -> Flags:
        if any(inputs[:2]):
            _fail(path, "the trip count or the condition is a cache")
        carried = inputs[2:]
        flags = self._graph(body, caches, _fitted([False, False, *carried], body), place)
        self._check_carried(carried, flags[1:], body, 1, path)
        return carried

    def _scan(
        self, node: NodeProto, inputs: Flags, body: GraphProto, caches: Names, path: str, place: str
    ) -> Flags:
        counts = [item.i for item in node.attribute if item.name == "num_scan_inputs"]
        states = len(inputs) - (counts[0] if counts else 0)
        if any(inputs[states:]):
            _fail(path, "Scan takes slices of a cache; caches can be carried only")
        flags = self._graph(body, caches, _fitted(inputs, body), place)
        self._check_carried(inputs[:states], flags, body, 0, path)
        return inputs[:states]

    def _check_carried(
        self, carried: Flags, flags: Flags, body: GraphProto, skip: int, path: str
    ) -> None:
        for index, flag in enumerate(flags):
            name = body.output[index + skip].name
            if index >= len(carried):
                if flag:
                    _fail(path, f"the cache {name!r} is a scan output, which would stack caches")
            elif flag != carried[index]:
                what = "begins as a cache and goes on as none" if carried[index] else "becomes one"
                _fail(path, f"the carried value {name!r} {what}")


def _fitted(flags: Flags, body: GraphProto) -> Flags:
    """As many as the body has inputs; what is missing or too much, ONNX Runtime tells."""
    return (flags + [False] * len(body.input))[: len(body.input)]


def _check_operator(node: NodeProto, inputs: Flags, path: str) -> Flags:
    if node.op_type not in _OPERATORS:
        raise CodedError(
            "runtime.unsupported",
            path,
            f"{DOMAIN} has no operator {node.op_type!r}; it has {', '.join(_OPERATORS)}",
        )
    cache, (least, most), outputs, attributes = _OPERATORS[node.op_type]
    if not least <= len(node.input) <= most or len(node.output) > len(outputs):
        _fail(
            path,
            f"{node.op_type} with {len(node.input)} inputs and {len(node.output)} outputs; it has "
            f"{least} to {most} and at most {len(outputs)}",
        )
    for index, flag in enumerate(inputs):
        if flag != (index == cache):
            what = "is a cache, a tensor is needed" if flag else "is no cache, one is needed"
            _fail(path, f"input {index} of {node.op_type}, {node.input[index]!r}, {what}")
    for attribute in node.attribute:
        kind = attributes.get(attribute.name)
        if kind is None or (attribute.type != kind and not attribute.ref_attr_name):
            wanted = (
                f"must be a {AttributeProto.AttributeType.Name(kind)}"
                if kind is not None
                else f"is unknown; it has {', '.join(attributes) or 'none'}"
            )
            raise CodedError(
                "runtime.attribute", path, f"{node.op_type}: attribute {attribute.name} {wanted}"
            )
    return list(outputs)


def _fail(path: str, message: str) -> NoReturn:
    raise CodedError("runtime.structured", path, message)
