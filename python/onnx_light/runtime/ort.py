"""onnxruntime itself, and arrays as its OrtValues."""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnx_light.errors import CodedError

Array = npt.NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_BFLOAT16_NUMBER = 16  # in TensorProto.DataType

_OLDEST = (1, 23)

# The element types of keys and values, as onnxruntime names them.
CACHE_DTYPES = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": BFLOAT16,
}
# Of any tensor that can be bound.
TENSOR_DTYPES = CACHE_DTYPES | {
    f"tensor({name})": np.dtype(name)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
}
TENSOR_DTYPES["tensor(double)"] = np.dtype(np.float64)


@functools.cache
def onnxruntime() -> Any:
    """The module.

    Raises:
        CodedError: ``runtime.version``: it is too old.
        ImportError: it is not installed.
    """
    try:
        module = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ImportError(
            "onnx_light.runtime needs onnxruntime: pip install 'onnx-light[runtime]'",
            name=error.name,
        ) from None
    version = module.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        wanted = ".".join(map(str, _OLDEST))
        raise CodedError(
            "runtime.version", "onnxruntime", f"{version} is installed; {wanted} or later is needed"
        )
    return module


def is_ort_value(value: object) -> bool:
    """Whether it is an onnxruntime.OrtValue."""
    return isinstance(value, onnxruntime().OrtValue)


def to_ort_value(array: Any) -> Any:
    """An OrtValue with the elements of an array, or of what numpy makes one of.

    Not copied where they lie contiguous and in native byte order: the array must not change.

    Raises:
        CodedError: ``runtime.dtype``: text and objects, which onnxruntime does not take here.
    """
    # onnxruntime would take bytes in another order for native ones.
    values = np.asarray(array, order="C")
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    ort_value = onnxruntime().OrtValue
    if values.dtype == BFLOAT16:
        return ort_value.ortvalue_from_numpy_with_onnx_type(
            values.view(np.uint16), _BFLOAT16_NUMBER
        )
    if values.dtype.kind not in "biuf":
        raise CodedError(
            "runtime.dtype", "", f"{values.dtype} values; beside a state only numbers can be fed"
        )
    return ort_value.ortvalue_from_numpy(values)


def to_array(value: Any, name: str, *, copy: bool) -> Array:
    """The elements of an OrtValue.

    Args:
        value: a tensor in the memory of the CPU; bfloat16 comes out in the dtype of ml_dtypes.
        name: of the output, for the error.
        copy: whether the array must not share memory with the value.

    Raises:
        CodedError: ``runtime.output``: the value is no tensor.
    """
    if not value.is_tensor():
        raise CodedError(
            "runtime.output", name, f"{value.data_type()} is not supported, tensors are"
        )
    if value.data_type() == "tensor(bfloat16)":
        return _copy_bfloat16(value)
    array: Array = value.numpy()
    return array.copy() if copy else array


def _copy_bfloat16(value: Any) -> Array:
    shape = tuple(value.shape())
    result = np.empty(shape, np.uint16)
    if math.prod(shape):
        ctypes.memmove(result.ctypes.data, value.data_ptr(), result.nbytes)
    return result.view(BFLOAT16)
