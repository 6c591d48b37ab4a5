"""Whether a model is well-formed: nothing is missing, names are unique, payloads have their size.

A rule looks at one message of one class; `_RULES` says which. Every message of a model is looked
at, also those in subgraphs and functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from onnx_light.errors import CodedError
from onnx_light.onnx import external
from onnx_light.onnx.files import load_model
from onnx_light.onnx.tensors import tensor_layout
from onnx_light.onnx.walk import Visited, visit_messages
from onnx_light.onnx_py._onnxpyprotoop import (
    AttributeProto,
    EncodedValueProto,
    FunctionProto,
    GraphProto,
    Message,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    PagedCacheBlockProto,
    PersistentBindingProto,
    SparseTensorProto,
    StructTypeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)


class ValidationError(CodedError):
    """A model that is not well-formed; the path is that of the message or field."""


class _Context:
    """What rules know besides the message.

    Attributes:
        place: where the message lies.
        ir_version: of the model.
        base_dir: the folder for external data; None: they are not opened.
    """

    def __init__(self, ir_version: int, base_dir: str | None) -> None:
        self.ir_version = ir_version
        self.base_dir = base_dir
        self.place: Visited

    @property
    def field(self) -> str:
        return self.place.field


_Rule = Callable[[Any, _Context], None]


def check_model(model: ModelProto | bytes | str | os.PathLike[str]) -> None:
    """Checks the structure of a model.

    Args:
        model: the model, its bytes, or the path of its file. With a path, files of external data
            are looked at, too; without one only the references to them.

    Raises:
        ValidationError: the first thing that is wrong, with a stable code, ``check.*``,
            ``tensor.*`` or ``external.*``, and the path.
        ParseError: the bytes are no model.
        OSError: a file cannot be read.
    """
    base_dir = None
    if isinstance(model, str | os.PathLike):
        base_dir = os.path.dirname(os.path.abspath(model))
        model = load_model(model, load_external_data=False)
    elif isinstance(model, bytes):
        model = ModelProto.FromString(model)
    elif not isinstance(model, ModelProto):
        raise TypeError(f"check_model takes a ModelProto, bytes or a path, not {type(model)}")
    context = _Context(model.ir_version, base_dir)
    for place in visit_messages(model):
        rule = _RULES.get(type(place.message))
        if rule is None:
            continue
        context.place = place
        try:
            rule(place.message, context)
        except CodedError as error:
            path = ".".join(filter(None, (place.path, error.path)))
            raise ValidationError(error.code, path, error.message) from None


def _require(message: Message, *fields: str) -> None:
    """Each of these fields or oneofs is set, and not to an empty text."""
    for field in fields:
        if not message.HasField(field):
            raise CodedError("check.missing", field, "must be set")
        if getattr(message, field, None) == "":
            raise CodedError("check.missing", field, "must not be empty")


def _require_unique(named: Iterable[tuple[str, str]]) -> None:
    """No two of these places have the same name, and all have one.

    Args:
        named: pairs of a place and its name.
    """
    seen: dict[str, str] = {}
    for place, name in named:
        if not name:
            raise CodedError("check.missing", place, "must have a name")
        if name in seen:
            raise CodedError("check.duplicate", place, f"{name!r} is the name of {seen[name]}, too")
        seen[name] = place


def _each(field: str, names: Iterable[str]) -> Iterable[tuple[str, str]]:
    return ((f"{field}[{i}]", name) for i, name in enumerate(names))


def _check_model(model: ModelProto, context: _Context) -> None:
    _require(model, "ir_version", "graph")
    if model.ir_version >= _IR_WITH_OPSETS and not model.opset_import:
        raise CodedError("check.missing", "opset_import", "must name the operator sets in use")
    _require_unique(_each("metadata_props", (entry.key for entry in model.metadata_props)))
    _require_unique(
        _each("functions", (f"{f.domain}:{f.name}:{f.overload}" for f in model.functions))
    )


def _check_graph(graph: GraphProto, context: _Context) -> None:
    if context.field not in ("initialization", "algorithm"):  # the graphs of a TrainingInfoProto
        _require(graph, "name")
    _require_unique(
        [
            *_each("initializer", (tensor.name for tensor in graph.initializer)),
            *_each("sparse_initializer", (t.values.name for t in graph.sparse_initializer)),
            *_each("encoded_initializer", (value.name for value in graph.encoded_initializer)),
            *_each("paged_cache_initializer", (c.name for c in graph.paged_cache_initializer)),
        ]
    )
    _require_unique(_each("input", (value.name for value in graph.input)))
    _require_unique(_each("persistent_bindings", (b.input_name for b in graph.persistent_bindings)))


def _check_function(function: FunctionProto, context: _Context) -> None:
    if context.field == "functions":  # not the decoder or encoder of a layout
        _require(function, "name")


def _check_node(node: NodeProto, context: _Context) -> None:
    _require(node, "op_type")
    _require_unique(_each("attribute", (attribute.name for attribute in node.attribute)))


_VALUE_FIELDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_ALL_VALUE_FIELDS = frozenset(_VALUE_FIELDS.values())
# The others have a default or may be empty.
_NEEDED_VALUE_FIELDS = ("t", "g", "sparse_tensor", "tp")


def _check_attribute(attribute: AttributeProto, context: _Context) -> None:
    _require(attribute, "name")
    used = [name for name, _ in attribute.ListFields() if name in _ALL_VALUE_FIELDS]
    expected = _VALUE_FIELDS.get(attribute.type)
    if expected is None:
        if context.ir_version >= _IR_WITH_ATTRIBUTE_TYPES:
            raise CodedError("check.missing", "type", "must say which field has the value")
        expected = used[0] if used else ""
    if attribute.ref_attr_name:
        expected = ""
    for name in used:
        if name != expected:
            text = f"the value must be in {expected}" if expected else "there must be no value"
            raise CodedError("check.attribute", name, f"{text}, by type and ref_attr_name")
    if expected in _NEEDED_VALUE_FIELDS and not used:
        raise CodedError("check.missing", expected, "must be set")


def _check_type(declared: TypeProto, context: _Context) -> None:
    parent = context.place.parent
    if parent is None or parent.field != "value_info":  # that may say no more than a name
        _require(declared, "value")


def _check_tensor(tensor: TensorProto, context: _Context) -> None:
    layout = tensor_layout(tensor)
    if layout.field == "external_data":
        _check_external(tensor, context, layout.raw_size)


def _check_encoded_value(value: EncodedValueProto, context: _Context) -> None:
    _require(value, "layout")
    if not external.is_external(value):
        _require(value, "raw_data")
    elif len(value.payload("raw_data")) > 0:
        raise CodedError("external.inline", "raw_data", "must be empty beside external data")
    else:
        _check_external(value, context, None)


def _check_external(payload: external.PayloadMessage, context: _Context, size: int | None) -> None:
    if context.base_dir is None:
        external.reference(payload)
    else:
        external.check(payload, context.base_dir, size)


def _check_sparse_tensor(sparse: SparseTensorProto, context: _Context) -> None:
    _require(sparse, "values", "indices")
    dims, indices = list(sparse.values.dims), list(sparse.indices.dims)
    if len(dims) != 1:
        raise CodedError("check.sparse", "values.dims", f"must be one number, is {dims}")
    if sparse.indices.data_type != TensorProto.INT64:
        raise CodedError("check.sparse", "indices.data_type", "must be INT64")
    if indices not in (dims, [*dims, len(sparse.dims)]):
        raise CodedError(
            "check.sparse",
            "indices.dims",
            f"must be {dims} or {[*dims, len(sparse.dims)]}, is {indices}",
        )


def _check_block(block: PagedCacheBlockProto, context: _Context) -> None:
    _require(block, "start", "length", "key_payload", "value_payload")
    if block.start < 0:
        raise CodedError("check.range", "start", f"must not be negative, is {block.start}")
    if block.length <= 0:
        raise CodedError("check.range", "length", f"must be positive, is {block.length}")


def _requires(*fields: str) -> _Rule:
    return lambda message, context: _require(message, *fields)


_IR_WITH_ATTRIBUTE_TYPES = 2
_IR_WITH_OPSETS = 3

_RULES: dict[type[Message], _Rule] = {
    ModelProto: _check_model,
    GraphProto: _check_graph,
    FunctionProto: _check_function,
    NodeProto: _check_node,
    AttributeProto: _check_attribute,
    TensorProto: _check_tensor,
    SparseTensorProto: _check_sparse_tensor,
    EncodedValueProto: _check_encoded_value,
    PagedCacheBlockProto: _check_block,
    OperatorSetIdProto: _requires("version"),
    ValueInfoProto: _requires("name"),
    TypeProto: _check_type,
    PersistentBindingProto: _requires("input_name", "output_name"),
    StructTypeProto: _requires("kind"),
    StructTypeProto.Array: _requires("element_type", "dimension"),
    StructTypeProto.Structure.Field: _requires("name", "content"),
    StructTypeProto.BitPacking.Component: _requires("bit_width"),
}
