"""A thin layer over GraphProto: nodes, inputs, outputs and initializers with one line each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnx_light.models._messages import (
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

_DATA_TYPES: dict[str, int] = {
    "float32": TensorProto.FLOAT,
    "uint8": TensorProto.UINT8,
    "int64": TensorProto.INT64,
}


def set_tensor(tensor: TensorProto, name: str, array: npt.NDArray[np.generic]) -> None:
    """Fills an empty `tensor` with a float32, uint8 or int64 array of any shape, inline."""
    tensor.name = name
    tensor.data_type = _DATA_TYPES[str(array.dtype)]
    tensor.dims.extend(array.shape)
    tensor.raw_data = array.tobytes()


def set_external_tensor(
    tensor: TensorProto, name: str, array: npt.NDArray[np.generic], location: str, offset: int
) -> None:
    """Makes an empty `tensor` refer to the bytes of `array` at `offset` of the file `location`."""
    tensor.name = name
    tensor.data_type = _DATA_TYPES[str(array.dtype)]
    tensor.dims.extend(array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))


class GraphBuilder:
    """Appends to a GraphProto; a node has the name of its first output."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph

    def input(self, name: str, data_type: str, dims: Sequence[int | str]) -> str:
        self._value(self.graph.input.add(), name, data_type, dims)
        return name

    def output(self, name: str, data_type: str, dims: Sequence[int | str]) -> str:
        self._value(self.graph.output.add(), name, data_type, dims)
        return name

    def constant(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """An initializer whose values are in the message."""
        set_tensor(self.graph.initializer.add(), name, array)
        return name

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: str | Sequence[str],
        *,
        domain: str = "",
        **attributes: int | float | str | list[int],
    ) -> str:
        """Appends a node; an empty input name is an absent input.

        Args:
            outputs: one name, or several.

        Returns:
            The name of the first output.
        """
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        node = self.graph.node.add(
            op_type=operator, name=names[0], input=list(inputs), output=names
        )
        if domain:
            node.domain = domain
        for name, value in attributes.items():
            self._attribute(node, name, value)
        return names[0]

    def _attribute(self, node: NodeProto, name: str, value: int | float | str | list[int]) -> None:
        if isinstance(value, str):
            node.attribute.add(name=name, type=AttributeProto.STRING, s=value.encode())
        elif isinstance(value, list):
            node.attribute.add(name=name, type=AttributeProto.INTS, ints=value)
        elif isinstance(value, int):
            node.attribute.add(name=name, type=AttributeProto.INT, i=value)
        else:
            node.attribute.add(name=name, type=AttributeProto.FLOAT, f=value)

    def _value(self, info: ValueInfoProto, name: str, kind: str, dims: Sequence[int | str]) -> None:
        info.name = name
        tensor_type = info.type.tensor_type
        tensor_type.elem_type = _DATA_TYPES[kind]
        tensor_type.shape.SetInParent()
        for dim in dims:
            if isinstance(dim, str):
                tensor_type.shape.dim.add(dim_param=dim)
            else:
                tensor_type.shape.dim.add(dim_value=dim)
