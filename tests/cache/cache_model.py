"""A cache as a plain list of tokens in numpy, to compare ours with, and helpers of the tests."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnx_light import PagedCache
from onnx_light.errors import CodedError

DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
Array = Any  # numpy has no types for ml_dtypes' arrays


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """An array of any bit patterns, NaN among them."""
    kind = np.dtype(DTYPES[dtype])
    size = int(np.prod(shape)) * kind.itemsize
    return np.frombuffer(rng.bytes(size), np.uint8).view(kind).reshape(shape).copy()


def same(a: Array, b: Array) -> bool:
    """Equal shape, dtype and bits."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@dataclass
class Model:
    """What a cache holds: for each token its key [batch, heads, width] and its value."""

    start: int
    tokens: list[tuple[Array, Array]]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def append(self, key: Array, value: Array) -> Model:
        new = [(key[:, :, i].copy(), value[:, :, i].copy()) for i in range(key.shape[2])]
        return Model(self.start, self.tokens + new)

    def between(self, start: int, end: int) -> Model:
        return Model(start, self.tokens[start - self.start : end - self.start])

    def concat(self, other: Model) -> Model:
        return Model(self.start, self.tokens + other.tokens)

    def gather(self, indices: list[int]) -> Model:
        return Model(self.start, [(k[indices], v[indices]) for k, v in self.tokens])

    def check(self, cache: PagedCache) -> None:
        """Asserts that the cache shows exactly this, and that its pages are in order."""
        assert (cache.start, cache.end, len(cache)) == (self.start, self.end, len(self.tokens))
        cache.validate()
        position = self.start
        for page in cache.pages:
            assert page.start == position
            assert 0 < len(page) <= page.capacity
            for row in range(len(page)):
                key, value = self.tokens[page.start - self.start + row]
                assert same(page.key.array[:, :, row], key)
                assert same(page.value.array[:, :, row], value)
            position = page.end
        assert position == self.end


def raises(code: str, path: str, call: Any, *args: Any, **kwargs: Any) -> CodedError:
    """Asserts that the call fails with this code and path."""
    with pytest.raises(CodedError) as caught:
        call(*args, **kwargs)
    error = caught.value
    assert (error.code, error.path) == (code, path), error
    assert error.message
    return error


# --------------------------------------------------------------------------------------------------
# DLPack by the letter of its header, without a framework


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

DLPACK_CODES = {
    "float32": 2,
    "float16": 2,
    "bfloat16": 4,
    "float8_e4m3fn": 10,
    "float8_e5m2": 12,
}


class Tensor:
    """What a framework's tensor offers to others; counts how often a capsule is given back."""

    def __init__(
        self, array: Array, *, code: int | None = None, device: int = 1, offset: int = 0
    ) -> None:
        self.array = array
        self.device = device
        self.released = 0
        item = array.dtype.itemsize
        rank = array.ndim
        self._shape = (ctypes.c_int64 * rank)(*array.shape)
        self._strides = (ctypes.c_int64 * rank)(*(s // item for s in array.strides))
        code = DLPACK_CODES[array.dtype.name] if code is None else code
        data = array.view("u1" if item == 1 else f"u{item}").__array_interface__["data"][0]
        tensor = _Tensor(
            data - offset, device, 0, rank, code, 8 * item, 1, self._shape, self._strides, offset
        )
        self._managed = _Managed(tensor, None, _Deleter(self._release))

    def _release(self, managed: object) -> None:
        self.released += 1

    def __dlpack__(self) -> object:
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)
