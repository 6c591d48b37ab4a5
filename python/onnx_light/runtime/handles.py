"""Caches in plain onnxruntime, where they are INT64 scalars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

import onnx_light
from onnx_light._core import cache_of, new_handle, release_handle
from onnx_light.errors import CodedError

if TYPE_CHECKING:
    from onnx_light.cache import PagedCache

Handle = SupportsIndex | npt.NDArray[Any]


def get_library_path() -> str:
    """The library with the operators of the domain `ai.rt`.

    For `onnxruntime.SessionOptions.register_custom_ops_library`, once for each options object.
    """
    return str(Path(onnx_light.__file__).parent / "lib" / "libonnx_light.so")


def handle(cache: PagedCache) -> npt.NDArray[np.int64]:
    """What stands for a cache in a model that `lower` made.

    Args:
        cache: a value; it stays alive until `release` gets the handle.

    Returns:
        An int64 array of shape [], ready to be fed.
    """
    return np.array(new_handle(cache), np.int64)


def value(handle: Handle) -> PagedCache:
    """The cache that a handle stands for.

    Args:
        handle: what `handle` gave, or an output of a run that was fed such handles.

    Raises:
        CodedError: ``runtime.handle``: no handle, or one that was released.
    """
    return cache_of(_number(handle))


def release(handle: Handle) -> None:
    """Lets a cache go.

    Args:
        handle: what `handle` gave: all caches that operators made from it are let go as well, so
            their `value` comes first. Or an output of a run: only that one is.

    Raises:
        CodedError: ``runtime.handle``: no handle, or one that was released.
    """
    release_handle(_number(handle))


def _number(handle: Handle) -> int:
    array = np.asarray(handle)
    if array.dtype.kind not in "iu" or array.size != 1:
        raise CodedError(
            "runtime.handle", "", f"{array.dtype}{list(array.shape)}; a handle is one int64 number"
        )
    return int(array.reshape(()))
