"""The element types of TensorProto: numpy dtypes, sizes and the fields that hold them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from onnx_light.onnx_py._onnxpyprotoop import TensorProto


class ElementType(NamedTuple):
    """How elements of one data type are stored.

    Attributes:
        name: the name in ``TensorProto.DataType``.
        dtype_name: of numpy, or else of ml_dtypes.
        bits: of one element in raw_data; 0 for strings, which have no raw form.
    """

    name: str
    dtype_name: str
    bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return _dtype(self.dtype_name)

    def raw_size(self, count: int) -> int:
        """Bytes of this many elements in raw_data."""
        return (count * self.bits + 7) // 8


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


ELEMENT_TYPES: dict[int, ElementType] = {
    TensorProto.DataType.Value(name): ElementType(name, dtype_name, bits)
    for name, dtype_name, bits in (
        ("FLOAT", "float32", 32),
        ("UINT8", "uint8", 8),
        ("INT8", "int8", 8),
        ("UINT16", "uint16", 16),
        ("INT16", "int16", 16),
        ("INT32", "int32", 32),
        ("INT64", "int64", 64),
        ("STRING", "object", 0),
        ("BOOL", "bool", 8),
        ("FLOAT16", "float16", 16),
        ("DOUBLE", "float64", 64),
        ("UINT32", "uint32", 32),
        ("UINT64", "uint64", 64),
        ("COMPLEX64", "complex64", 64),
        ("COMPLEX128", "complex128", 128),
        ("BFLOAT16", "bfloat16", 16),
        ("FLOAT8E4M3FN", "float8_e4m3fn", 8),
        ("FLOAT8E4M3FNUZ", "float8_e4m3fnuz", 8),
        ("FLOAT8E5M2", "float8_e5m2", 8),
        ("FLOAT8E5M2FNUZ", "float8_e5m2fnuz", 8),
        ("UINT4", "uint4", 4),
        ("INT4", "int4", 4),
        ("FLOAT4E2M1", "float4_e2m1fn", 4),
        ("FLOAT8E8M0", "float8_e8m0fnu", 8),
        ("UINT2", "uint2", 2),
        ("INT2", "int2", 2),
        ("FLOAT6E2M3", "float6_e2m3fn", 6),
        ("FLOAT6E3M2", "float6_e3m2fn", 6),
    )
}


@functools.cache
def _data_types() -> dict[str, int]:
    return {element.dtype_name: number for number, element in ELEMENT_TYPES.items()}


def data_type_of(dtype: np.dtype[Any]) -> int | None:
    """The number of the data type whose elements have this dtype, in any byte order, or None."""
    number = _data_types().get(dtype.name)
    if number is None or ELEMENT_TYPES[number].dtype != dtype.newbyteorder("="):
        return None
    return number
