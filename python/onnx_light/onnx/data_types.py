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
        field: the field that holds elements which are not raw.
    """

    name: str
    dtype_name: str
    bits: int
    field: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return _dtype(self.dtype_name)

    def raw_size(self, count: int) -> int:
        """Bytes of this many elements in raw_data."""
        return (count * self.bits + 7) // 8

    def typed_size(self, count: int) -> int:
        """Entries of this many elements in the typed field."""
        if self.bits in (2, 4):  # an entry is one packed byte
            return self.raw_size(count)
        return 2 * count if self.dtype_name.startswith("complex") else count


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


_INT32, _UINT64 = "int32_data", "uint64_data"
ELEMENT_TYPES: dict[int, ElementType] = {
    TensorProto.DataType.Value(name): ElementType(name, dtype_name, bits, field)
    for name, dtype_name, bits, field in (
        ("FLOAT", "float32", 32, "float_data"),
        ("UINT8", "uint8", 8, _INT32),
        ("INT8", "int8", 8, _INT32),
        ("UINT16", "uint16", 16, _INT32),
        ("INT16", "int16", 16, _INT32),
        ("INT32", "int32", 32, _INT32),
        ("INT64", "int64", 64, "int64_data"),
        ("STRING", "object", 0, "string_data"),
        ("BOOL", "bool", 8, _INT32),
        ("FLOAT16", "float16", 16, _INT32),
        ("DOUBLE", "float64", 64, "double_data"),
        ("UINT32", "uint32", 32, _UINT64),
        ("UINT64", "uint64", 64, _UINT64),
        ("COMPLEX64", "complex64", 64, "float_data"),
        ("COMPLEX128", "complex128", 128, "double_data"),
        ("BFLOAT16", "bfloat16", 16, _INT32),
        ("FLOAT8E4M3FN", "float8_e4m3fn", 8, _INT32),
        ("FLOAT8E4M3FNUZ", "float8_e4m3fnuz", 8, _INT32),
        ("FLOAT8E5M2", "float8_e5m2", 8, _INT32),
        ("FLOAT8E5M2FNUZ", "float8_e5m2fnuz", 8, _INT32),
        ("UINT4", "uint4", 4, _INT32),
        ("INT4", "int4", 4, _INT32),
        ("FLOAT4E2M1", "float4_e2m1fn", 4, _INT32),
        ("FLOAT8E8M0", "float8_e8m0fnu", 8, _INT32),
        ("UINT2", "uint2", 2, _INT32),
        ("INT2", "int2", 2, _INT32),
        ("FLOAT6E2M3", "float6_e2m3fn", 6, _INT32),
        ("FLOAT6E3M2", "float6_e3m2fn", 6, _INT32),
    )
}
TYPED_FIELDS = tuple(dict.fromkeys(t.field for t in ELEMENT_TYPES.values()))


@functools.cache
def _data_types() -> dict[str, int]:
    return {element.dtype_name: number for number, element in ELEMENT_TYPES.items()}


def data_type_of(dtype: np.dtype[Any]) -> int | None:
    """The number of the data type whose elements have this dtype, in any byte order, or None."""
    number = _data_types().get(dtype.name)
    if number is None or ELEMENT_TYPES[number].dtype != dtype.newbyteorder("="):
        return None
    return number
