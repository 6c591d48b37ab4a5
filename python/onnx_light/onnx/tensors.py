"""Tensors and numpy arrays: one becomes the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onnx_light import _core
from onnx_light.errors import CodedError
from onnx_light.onnx import external
from onnx_light.onnx.data_types import ELEMENT_TYPES, ElementType, data_type_of
from onnx_light.onnx_py._onnxpyprotoop import RepeatedScalar, TensorProto

_Array = npt.NDArray[Any]
_Bytes = npt.NDArray[np.uint8]


class Layout(NamedTuple):
    """Where a tensor's elements are.

    Attributes:
        element: their type.
        dims: the sizes of the axes.
        size: the number of elements.
        field: ``raw_data``, a typed field, or ``external_data``.
    """

    element: ElementType
    dims: tuple[int, ...]
    size: int
    field: str

    @property
    def raw_size(self) -> int:
        return self.element.raw_size(self.size)


def tensor_layout(tensor: TensorProto) -> Layout:
    """Finds a tensor's elements and checks that there are exactly as many as its dims say.

    Raises:
        CodedError: ``tensor.data_type``, ``tensor.dims``, ``tensor.segment``, ``tensor.size``;
            ``tensor.data`` for elements in more than one field or in the wrong one;
            ``external.inline`` for elements beside external ones. The path is the field.
    """
    field, size = _core.tensor_layout(tensor)
    return Layout(ELEMENT_TYPES[tensor.data_type], tuple(tensor.dims), size, field)


def _shape(dims: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


def to_array(tensor: TensorProto, base_dir: str | os.PathLike[str] = "") -> _Array:
    """The elements of a tensor as an array.

    Args:
        tensor: the tensor; of any data type. BFLOAT16 and smaller floats, and integers of 4 and
            2 bits, have the dtypes of ml_dtypes; STRING gives an object array of str.
        base_dir: the folder of the model's file, where external data are looked for.

    Returns:
        An array of the tensor's dims. It is a read-only view of raw_data where elements are whole
        bytes and lie aligned; later changes of the tensor do not show in it.

    Raises:
        CodedError: the tensor has another number of elements than its dims say, or none of a
            known type (``tensor.*``); its external data are refused (``external.*``).
        OSError: the file of external data cannot be read.
    """
    layout = tensor_layout(tensor)
    if layout.element.name == "STRING":
        array = _strings(tensor.string_data, layout.size)
    elif layout.field == "external_data":
        array = _from_raw(external.read(tensor, base_dir, layout.raw_size), layout)
    elif layout.field == "raw_data":
        array = _from_raw(np.frombuffer(tensor.payload("raw_data"), np.uint8), layout)
    else:
        array = _from_typed(getattr(tensor, layout.field), layout)
    try:
        return array.reshape(layout.dims)
    except ValueError as error:  # too many axes, or too large ones beside a 0
        raise CodedError("tensor.dims", "dims", f"{_shape(layout.dims)}: {error}") from None


def _strings(data: Sequence[bytes], count: int) -> _Array:
    array = np.empty(count, object)
    for i, text in enumerate(data):
        try:
            array[i] = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CodedError("tensor.utf8", f"string_data[{i}]", str(error)) from None
    return array


def _from_raw(data: _Bytes, layout: Layout) -> _Array:
    element = layout.element
    if element.bits < 8:
        return _unpack(data, element.bits, layout.size).view(element.dtype)
    if element.dtype == np.bool_:
        return _booleans(data)
    if data.ctypes.data % element.dtype.alignment:
        data = data.copy()
    return data.view(element.dtype)


def _booleans(data: _Bytes) -> _Array:
    # numpy relies on true being exactly 1.
    return data.view(np.bool_) if not np.any(data > 1) else data != 0


def _from_typed(data: RepeatedScalar[Any], layout: Layout) -> _Array:
    element = layout.element
    entries = np.asarray(data)
    if layout.field == "int32_data":
        return _from_int32(entries, layout)
    if layout.field == "uint64_data":
        return entries.astype(element.dtype, copy=False)
    return entries.view(element.dtype)  # bytes of floats and doubles are those of complex numbers


def _from_int32(entries: npt.NDArray[np.int32], layout: Layout) -> _Array:
    """Elements from the low bits of each entry.

    So it does not matter whether a writer put 8-bit and packed elements as 0..255 or as negative
    numbers.
    """
    element = layout.element
    if element.bits == 32:
        return entries
    if element.bits == 16:
        return entries.astype(np.uint16).view(element.dtype)
    data = entries.astype(np.uint8)
    if element.bits == 6:  # one element each
        return (data & 0x3F).view(element.dtype)
    return _from_raw(data, layout)


def _unpack(packed: _Bytes, bits: int, count: int) -> _Bytes:
    """One byte each of `count` elements of 2, 4 or 6 bits that are packed from the low bits on."""
    if bits == 6:
        return _unpack6(packed, count)
    per_byte = 8 // bits
    elements = np.empty((packed.size, per_byte), np.uint8)
    for i in range(per_byte):
        elements[:, i] = packed >> (bits * i) & ((1 << bits) - 1)
    return elements.reshape(-1)[:count]


def _pack(elements: _Bytes, bits: int) -> _Bytes:
    """The inverse of _unpack; spare bits of the last byte are 0."""
    if bits == 6:
        return _pack6(elements)
    per_byte = 8 // bits
    padded = _pad(elements & np.uint8((1 << bits) - 1), per_byte)
    packed = padded[:, 0].copy()
    for i in range(1, per_byte):
        packed |= padded[:, i] << (bits * i)
    return packed


def _unpack6(packed: _Bytes, count: int) -> _Bytes:
    words = _pad(packed, 3).astype(np.uint32)
    word = words[:, 0] | words[:, 1] << 8 | words[:, 2] << 16
    elements = np.empty((word.size, 4), np.uint8)
    for i in range(4):
        elements[:, i] = word >> (6 * i) & 0x3F
    return elements.reshape(-1)[:count]


def _pack6(elements: _Bytes) -> _Bytes:
    parts = _pad(elements & np.uint8(0x3F), 4).astype(np.uint32)
    word = parts[:, 0] | parts[:, 1] << 6 | parts[:, 2] << 12 | parts[:, 3] << 18
    packed = np.empty((word.size, 3), np.uint8)
    for i in range(3):
        packed[:, i] = word >> (8 * i) & 0xFF
    return packed.reshape(-1)[: (elements.size * 6 + 7) // 8]


def _pad(data: _Bytes, multiple: int) -> _Bytes:
    """Rows of `multiple` elements, the last one filled up with zeros."""
    padded = np.zeros(-(-data.size // multiple) * multiple, np.uint8)
    padded[: data.size] = data
    return padded.reshape(-1, multiple)


def from_array(array: npt.ArrayLike, name: str | None = None) -> TensorProto:
    """A tensor with the elements of an array, in raw_data (strings: in string_data).

    Args:
        array: of a dtype that one of the data types has, in any byte order and with any strides;
            object arrays of str and bytes, and arrays of str, make STRING tensors.
        name: the tensor's name; none if it is empty.

    Raises:
        CodedError: ``tensor.dtype``: no data type has elements of this kind.
    """
    values = np.asanyarray(array)
    tensor = TensorProto(dims=values.shape)
    if name:
        tensor.name = name
    if values.dtype == object or values.dtype.kind == "U":
        tensor.data_type = TensorProto.STRING
        tensor.string_data.extend(map(_encode, values.flat))
        return tensor
    data_type = data_type_of(values.dtype)
    if data_type is None:
        raise CodedError("tensor.dtype", "array", f"no data type has dtype {values.dtype}")
    tensor.data_type = data_type
    tensor.raw_data = _raw_bytes(values, ELEMENT_TYPES[data_type])
    return tensor


def _encode(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, bytes):
        return value
    raise CodedError(
        "tensor.dtype", "array", f"an object array must hold str or bytes, not {type(value)}"
    )


def _raw_bytes(array: _Array, element: ElementType) -> _Bytes:
    data = np.ascontiguousarray(array, element.dtype).reshape(-1).view(np.uint8)
    return data if element.bits >= 8 else _pack(data, element.bits)
