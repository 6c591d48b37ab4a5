"""Encoded initializers as what onnxruntime knows: DequantizeLinear, or plain tensors."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from onnx_light.errors import CodedError
from onnx_light.onnx import (
    EncodedValueProto,
    GraphProto,
    ModelProto,
    NodeProto,
    PagedCacheProto,
    TensorProto,
)
from onnx_light.onnx.tensors import from_array, to_array
from onnx_light.onnx_py._onnxpyprotoop import _load_external_data

if TYPE_CHECKING:
    from onnx_light.onnx.tensors import _Array

# Code types, with and without sign, by their bits, and the opset since which DequantizeLinear
# takes them with scales for each block.
_CODES = {
    8: (TensorProto.INT8, TensorProto.UINT8),
    4: (TensorProto.INT4, TensorProto.UINT4),
    2: (TensorProto.INT2, TensorProto.UINT2),
}
_BITS = {kind: bits for bits, kinds in _CODES.items() for kind in kinds}
_SINCE = {8: 21, 4: 21, 2: 25}
_SCALES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_MOST_ROWS = 2**63 - 1
_CATALOGUE = "onnx_light.quantization.parameters:"


def lower_encoded_initializers(model: ModelProto, folder: str = "") -> None:
    """Replaces the encoded initializers of a model and its subgraphs.

    Codes become an initializer and a DequantizeLinear node where the model's opset has it for their
    type and no input may take their place; all others, and records of llama.cpp, plain FLOAT
    tensors.

    Args:
        model: is changed.
        folder: where data in other files lie.

    Raises:
        CodedError: ``runtime.encoded``: a value that is not as its layout says, or of an unknown
            layout, at its path.
    """
    lowering = _Lowering(model, folder)
    lowering.lower(model.graph, "graph")


class _Lowering:
    def __init__(self, model: ModelProto, folder: str) -> None:
        self._model = model
        self._folder = folder
        versions = [item.version for item in model.opset_import if item.domain in ("", "ai.onnx")]
        self._opset = max(versions, default=0)
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._catalogue: Mapping[str, Mapping[str, str]] = {
            item.tensor_name.removeprefix(_CATALOGUE): {
                entry.key: entry.value for entry in item.quant_parameter_tensor_names
            }
            for item in model.graph.quantization_annotation
            if item.tensor_name.startswith(_CATALOGUE)
        }

    def lower(self, graph: GraphProto, path: str) -> None:
        nodes: list[NodeProto] = []
        for value in graph.encoded_initializer:
            place = f"{path}.encoded_initializer[{value.name}]"
            self._value(graph, value, nodes, place)
        graph.ClearField("encoded_initializer")
        for node in reversed(nodes):
            graph.node.insert(0, node)
        for index, node in enumerate(graph.node):
            for attribute in node.attribute:
                where = f"{path}.node[{node.name or index}].attribute[{attribute.name}]"
                if attribute.HasField("g"):
                    self.lower(attribute.g, f"{where}.g")
                for number, part in enumerate(attribute.graphs):
                    self.lower(part, f"{where}.graphs[{number}]")

    def _value(
        self, graph: GraphProto, value: EncodedValueProto, nodes: list[NodeProto], path: str
    ) -> None:
        dims = _dims(value, path)
        if value.HasField("struct_type"):
            graph.initializer.append(from_array(self._records(value, dims, path), value.name))
            return
        if not value.HasField("affine"):
            raise _error(path, "it has neither an affine layout nor a struct type")
        codes = _codes(value, dims, path)
        scale, zero_point = self._parameters(value, path)
        layout = value.affine
        if scale.dims and not layout.HasField("axis"):
            raise _error(path, "scales that are no scalar need an axis")
        block = layout.block_size if len(scale.dims) > 1 else 0
        _check_parameters(dims, layout.axis, block, scale, zero_point, path)
        is_default = any(item.name == value.name for item in graph.input)
        if is_default or self._opset < _SINCE[_BITS[codes.data_type]]:
            array = self._decoded(codes, scale, zero_point, layout.axis, block)
            graph.initializer.append(from_array(array, value.name))
            return
        node = NodeProto(op_type="DequantizeLinear", name=f"{value.name}.dequantized")
        node.output.append(value.name)
        for tensor, part in ((codes, "codes"), (scale, "scale"), (zero_point, "zero_point")):
            if tensor is None:
                continue
            name = f"{value.name}.{part}"
            node.input.append(name)
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = name
        if scale.data_type != TensorProto.FLOAT:
            self._as_float(graph, node, scale)
        if scale.dims:
            node.attribute.add(name="axis", type=2, i=layout.axis)
        if block:
            node.attribute.add(name="block_size", type=2, i=min(block, max(dims[layout.axis], 1)))
        nodes.append(node)

    def _as_float(self, graph: GraphProto, node: NodeProto, scale: TensorProto) -> None:
        """DequantizeLinear gives the type of its scale; values are FLOAT."""
        array = to_array(scale, self._folder).astype(np.float32)
        name = node.input[1]
        for index, tensor in enumerate(graph.initializer):
            if tensor.name == name:
                graph.initializer[index].CopyFrom(from_array(array, name))

    def _parameters(
        self, value: EncodedValueProto, path: str
    ) -> tuple[TensorProto, TensorProto | None]:
        layout = value.affine
        scale = layout.scale if layout.HasField("scale") else None
        zero_point = layout.zero_point if layout.HasField("zero_point") else None
        if value.parameter_ref:
            names = self._catalogue.get(value.parameter_ref)
            if names is None:
                raise _error(path, f"parameter_ref {value.parameter_ref!r} is not in the catalogue")
            scale = scale or self._tensors.get(names.get("scale", ""))
            zero_point = zero_point or self._tensors.get(names.get("zero_point", ""))
        if scale is None:
            raise _error(path, "it has no scale")
        if scale.data_type not in _SCALES:
            raise _error(path, "the scale must be FLOAT, FLOAT16 or BFLOAT16")
        return scale, zero_point

    def _decoded(
        self,
        codes: TensorProto,
        scale: TensorProto,
        zero_point: TensorProto | None,
        axis: int,
        block: int,
    ) -> _Array:
        array = to_array(codes, self._folder).astype(np.float32)

        def spread(tensor: TensorProto) -> _Array:
            parameters = to_array(tensor, self._folder).astype(np.float32)
            if parameters.ndim == 0:
                return parameters
            size = array.shape[axis]
            if block:
                return np.repeat(parameters, min(block, size), axis).take(range(size), axis)
            shape = [1] * array.ndim
            shape[axis] = size
            return parameters.reshape(shape)

        if zero_point is not None:
            array = array - spread(zero_point)
        return array * spread(scale)

    def _records(self, value: EncodedValueProto, dims: tuple[int, ...], path: str) -> _Array:
        """The numbers of struct records, which follow each other along the last dim."""
        from onnx_light.cache import PagedCache

        if not dims or math.prod(dims) == 0:
            raise _error(path, f"records in dims {list(dims)}")
        rows = math.prod(dims[:-1])
        if rows > _MOST_ROWS:
            raise _error(path, f"{rows} rows; there are at most {_MOST_ROWS}")
        cache = PagedCacheProto()
        block = cache.blocks.add(start=0, length=rows)
        for part in (block.add_encoded_key(), block.add_encoded_value()):
            part.CopyFrom(value)
            shape = part.logical_type.tensor_type.shape
            shape.ClearField("dim")
            for size in (1, 1, rows, dims[-1]):
                shape.dim.add(dim_value=size)
        try:
            _load_external_data(cache, os.fsencode(self._folder))
            decoded = PagedCache.from_proto(cache, model=self._model).key_array("float32")
        except CodedError as error:
            raise _error(path, error.message) from error
        return decoded.reshape(dims)


def _check_parameters(
    dims: tuple[int, ...],
    axis: int,
    block: int,
    scale: TensorProto,
    zero_point: TensorProto | None,
    path: str,
) -> None:
    """That there is one of each for everything, for each index on the axis, or for each block."""
    shape = tuple(scale.dims)
    if not -len(dims) <= axis < max(len(dims), 0 if shape else 1):
        raise _error(path, f"axis {axis} for {len(dims)} dims")
    wanted: tuple[int, ...] = ()
    if shape:
        wanted = (dims[axis],)
    if block:
        place = axis % len(dims)
        wanted = (*dims[:place], -(-dims[place] // block), *dims[place + 1 :])
    for name, tensor in (("scales", scale), ("zero points", zero_point)):
        if tensor is not None and tuple(tensor.dims) != wanted:
            raise _error(path, f"{name} {list(tensor.dims)}; {list(wanted)} are needed")


def _dims(value: EncodedValueProto, path: str) -> tuple[int, ...]:
    kind = value.logical_type.tensor_type
    sizes = tuple(dim.dim_value for dim in kind.shape.dim)
    known = all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in kind.shape.dim)
    if kind.elem_type != TensorProto.FLOAT or not known or not kind.HasField("shape"):
        raise _error(path, "its logical_type must be a FLOAT tensor with a number for each dim")
    return sizes


def _codes(value: EncodedValueProto, dims: tuple[int, ...], path: str) -> TensorProto:
    """The codes as a tensor that shares the payload."""
    tensor = TensorProto(dims=list(dims))
    if value.data_location == TensorProto.EXTERNAL:
        if not value.affine.HasField("storage_type"):
            raise _error(path, "data in another file need a storage_type")
        tensor.data_location = TensorProto.EXTERNAL
        for entry in value.external_data:
            tensor.external_data.add().CopyFrom(entry)
        tensor.data_type = value.affine.storage_type
    else:
        tensor.raw_data = value.payload("raw_data")
        tensor.data_type = _storage_type(value, math.prod(dims), path)
    if tensor.data_type not in _BITS:
        raise _error(path, f"codes of type {tensor.data_type}; 8, 4 and 2 bits are known")
    return tensor


def _storage_type(value: EncodedValueProto, count: int, path: str) -> int:
    layout = value.affine
    size = len(value.payload("raw_data"))
    fitting = [bits for bits in _CODES if size == -(-count * bits // 8)]
    if layout.HasField("storage_type"):
        if _BITS.get(layout.storage_type, 8) not in fitting:
            raise _error(path, f"{size} bytes for {count} codes of type {layout.storage_type}")
        return layout.storage_type
    if len(fitting) != 1:
        raise _error(path, f"{size} bytes for {count} codes do not tell how many bits they have")
    return _CODES[fitting[0]][0 if layout.signed_storage else 1]


def _error(path: str, message: str) -> CodedError:
    return CodedError("runtime.encoded", path, message)
