"""Functions with operators of ours, put where they are called.

onnxruntime cannot infer the types of what they give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx_light.errors import CodedError
from onnx_light.onnx import FunctionProto, GraphProto, ModelProto, NodeProto
from onnx_light.runtime.flow import attribute_graphs, function_key, is_operator

Key = tuple[str, str, str]

# That calls become. Functions that call another one twice grow exponentially.
_MOST_NODES = 100_000


def inline_functions(model: ModelProto) -> None:
    """Replaces the calls of functions in which operators of ours are, and drops these functions.

    REQUIRES: no function calls itself.

    Raises:
        CodedError: ``runtime.function``: a function that imports another opset than the model; so
            many calls in each other that the model would become huge.
    """
    functions = {(item.domain, item.name, item.overload): item for item in model.functions}
    chosen = {key: functions[key] for key in _with_operators(functions)}
    if not chosen:
        return
    _check_opsets(model, chosen)
    _Inlining(chosen).graph(model.graph)
    kept = [item for key, item in functions.items() if key not in chosen]
    copies = []
    for function in kept:
        copy = FunctionProto()
        copy.CopyFrom(function)
        copies.append(copy)
    model.ClearField("functions")
    model.functions.extend(copies)


def _all_nodes(function: FunctionProto) -> Iterator[NodeProto]:
    pending = list(function.node)
    while pending:
        node = pending.pop()
        yield node
        for _, graph in attribute_graphs(node):
            pending.extend(graph.node)


def _with_operators(functions: Mapping[Key, FunctionProto]) -> set[Key]:
    """Those in which an operator of ours is, be it in a function that they call."""
    callers: dict[Key, list[Key]] = {}
    pending: list[Key] = []
    for key, function in functions.items():
        for node in _all_nodes(function):
            if is_operator(node):
                pending.append(key)
            else:
                callers.setdefault(function_key(node), []).append(key)
    found: set[Key] = set()
    while pending:
        key = pending.pop()
        if key not in found:
            found.add(key)
            pending += callers.get(key, [])
    return found


def _check_opsets(model: ModelProto, functions: Mapping[Key, FunctionProto]) -> None:
    versions = {entry.domain: entry.version for entry in model.opset_import}
    for function in functions.values():
        for entry in function.opset_import:
            if versions.setdefault(entry.domain, entry.version) != entry.version:
                raise CodedError(
                    "runtime.function",
                    f"functions[{function.name}]",
                    f"imports version {entry.version} of {entry.domain or 'ai.onnx'!r}, the model "
                    f"{versions[entry.domain]}; one for both is needed where caches are",
                )
    known = {entry.domain for entry in model.opset_import}
    for domain, version in versions.items():
        if domain not in known:
            model.opset_import.add(domain=domain, version=version)


class _Inlining:
    def __init__(self, functions: Mapping[Key, FunctionProto]) -> None:
        self._functions = functions
        self._sizes = {key: sum(1 for _ in _all_nodes(item)) for key, item in functions.items()}
        self._calls = 0
        self._nodes = 0

    def graph(self, graph: GraphProto) -> None:
        nodes = list(self._expanded(list(graph.node)))
        graph.ClearField("node")
        graph.node.extend(nodes)

    def _expanded(self, nodes: list[NodeProto]) -> Iterator[NodeProto]:
        for node in nodes:
            function = self._functions.get(function_key(node))
            if function is not None:
                yield from self._expanded(self._body(node, function))
                continue
            copy = NodeProto()
            copy.CopyFrom(node)
            for _, graph in attribute_graphs(copy):
                self.graph(graph)
            yield copy

    def _body(self, call: NodeProto, function: FunctionProto) -> list[NodeProto]:
        """The nodes of a function in place of a call, with names that nothing else has."""
        self._nodes += self._sizes[function_key(call)]
        if self._nodes > _MOST_NODES:
            raise CodedError(
                "runtime.function",
                f"functions[{function.name}]",
                f"calls of functions make more than {_MOST_NODES} nodes",
            )
        prefix = f"{call.name or function.name}.{self._calls}/"
        self._calls += 1
        attributes = {item.name: item for item in (*function.attribute_proto, *call.attribute)}
        names = dict.fromkeys(function.input, "")
        names |= dict(zip(function.input, call.input, strict=False))
        results = dict(zip(function.output, call.output, strict=False))
        passed = {name: names[name] for name in results if name in names and results[name]}
        names |= {name: out for name, out in results.items() if out and name not in passed}
        body = []
        for node in function.node:
            copy = NodeProto()
            copy.CopyFrom(node)
            _rename(copy, names, prefix)
            _set_attributes(copy, attributes)
            body.append(copy)
        for name, source in passed.items():  # an input that the function gives as it is
            identity = NodeProto(op_type="Identity", name=f"{prefix}{name}")
            identity.input.append(source)
            identity.output.append(results[name])
            body.append(identity)
        return body


def _rename(node: NodeProto, names: Mapping[str, str], prefix: str) -> None:
    """Names of a function's body, in its subgraphs too, as those of the caller."""
    pending = [node]
    while pending:
        part = pending.pop()
        if part.name:
            part.name = prefix + part.name
        for field in (part.input, part.output):
            field[:] = [_new_name(name, names, prefix) for name in field]
        for _, graph in attribute_graphs(part):
            pending.extend(graph.node)
            for items in (
                graph.input,
                graph.output,
                graph.value_info,
                graph.initializer,
                graph.encoded_initializer,
                graph.paged_cache_initializer,
            ):
                for item in items:
                    item.name = _new_name(item.name, names, prefix)
            for sparse in graph.sparse_initializer:
                sparse.values.name = _new_name(sparse.values.name, names, prefix)


def _new_name(name: str, names: Mapping[str, str], prefix: str) -> str:
    if not name:
        return name
    return names[name] if name in names else prefix + name


def _set_attributes(node: NodeProto, given: Mapping[str, object]) -> None:
    """Replaces references to a function's attributes; one that the call does not give is left out.

    Subgraphs may have them, too.
    """
    pending = [node]
    while pending:
        part = pending.pop()
        for index in reversed(range(len(part.attribute))):
            attribute = part.attribute[index]
            if attribute.ref_attr_name:
                name, source = attribute.name, given.get(attribute.ref_attr_name)
                if source is None:
                    del part.attribute[index]
                    continue
                attribute.CopyFrom(source)  # type: ignore[arg-type]
                attribute.name = name
        for _, graph in attribute_graphs(part):
            pending.extend(graph.node)
