"""Numbers of encoded payloads by docs/snapshot_format.md and the messages alone, with numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

_CODES = {3: ("int8", 8), 2: ("uint8", 8), 22: ("int4", 4), 21: ("uint4", 4)}
_CODES |= {26: ("int2", 2), 25: ("uint2", 2)}
_SCALES: dict[int, npt.DTypeLike] = {1: np.float32, 10: np.float16, 16: ml_dtypes.bfloat16}
_SCALE_NAMES = {1: "float32", 10: "float16", 16: "bfloat16"}


def dims_of(message: Any) -> list[int]:
    tensor = message.logical_type.tensor_type
    assert tensor.elem_type == 1
    return [dim.dim_value for dim in tensor.shape.dim]


def values(message: Any) -> npt.NDArray[np.float32]:
    """All values [batch, heads, capacity, width], computed in float32."""
    return _affine(message) if message.HasField("affine") else _records(message)


def format_text(message: Any) -> str:
    """What the index calls this form."""
    if not message.HasField("affine"):
        name: str = message.struct_type.name
        assert name.startswith("ggml.")
        return name.removeprefix("ggml.")
    affine = message.affine
    code, _ = _CODES[affine.storage_type]
    rank, axis = len(affine.scale.dims), affine.axis
    if rank == 0:
        cells = "tensor"
    elif rank == 1:
        cells = f"axis:{axis}"
    else:
        name = {2: "channel", 3: "token"}.get(axis, f"axis:{axis}")
        cells = f"{name}:{affine.block_size}"
    scale = _SCALE_NAMES[affine.scale.data_type]
    parts = [code, cells] + ([scale] if scale != "float16" else [])
    has_zero = affine.HasField("zero_point")
    if has_zero != code.startswith("u"):
        parts.append("zero_points" if has_zero else "no_zero_points")
    return "/".join(parts)


def _codes(data: bytes, data_type: int, shape: list[int]) -> npt.NDArray[np.int32]:
    """Low bits first, flat; the bits after the last code are zero."""
    name, bits = _CODES[data_type]
    count = int(np.prod(shape))
    assert len(data) == -(-count * bits // 8)
    bytes_ = np.frombuffer(data, np.uint8)
    codes = (bytes_[:, None] >> np.arange(0, 8, bits) & ((1 << bits) - 1)).ravel().astype(np.int32)
    assert not codes[count:].any()
    codes = codes[:count].reshape(shape)
    return codes if name.startswith("u") else codes - (codes >> (bits - 1) << bits)


def _affine(message: Any) -> npt.NDArray[np.float32]:
    affine, dims = message.affine, dims_of(message)
    scale = np.frombuffer(affine.scale.raw_data, _SCALES[affine.scale.data_type])
    scale = scale.astype(np.float32).reshape(affine.scale.dims)
    zero = np.zeros(scale.shape, np.int32)
    if affine.HasField("zero_point"):
        assert affine.zero_point.data_type == affine.storage_type
        assert list(affine.zero_point.dims) == list(affine.scale.dims)
        zero = _codes(affine.zero_point.raw_data, affine.storage_type, list(scale.shape))
    codes = _codes(message.raw_data, affine.storage_type, dims)
    return (codes - _spread(zero, affine, dims)) * _spread(scale, affine, dims)


def _spread(cells: npt.NDArray[Any], affine: Any, dims: list[int]) -> npt.NDArray[Any]:
    if cells.ndim == 0:
        return cells
    if cells.ndim == 1:
        return cells.reshape([-1 if i == affine.axis else 1 for i in range(4)])
    return np.take(cells, np.arange(dims[affine.axis]) // affine.block_size, axis=affine.axis)


def _records(message: Any) -> npt.NDArray[np.float32]:
    dims = dims_of(message)
    kind = {"ggml.q8_0": "q8_0", "ggml.q4_0": "q4_0"}[message.struct_type.name]
    scale, codes = message.struct_type.structure.field
    assert (scale.name, scale.type.tensor_type.elem_type) == ("scale", 10)
    array = codes.type.struct_type.array
    assert (codes.name, array.dimension) == ("codes", 32 if kind == "q8_0" else 16)
    rows = np.frombuffer(message.raw_data, np.uint8).reshape(-1, 34 if kind == "q8_0" else 18)
    scales = rows[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == "q8_0":
        numbers = rows[:, 2:].view(np.int8).astype(np.float32)
    else:
        halves = (rows[:, 2:] & 15, rows[:, 2:] >> 4)
        numbers = np.concatenate(halves, axis=1).astype(np.float32) - 8
    return (numbers * scales).reshape(dims)
