"""What encoded pages mean, in numpy and float64, written from the rules alone."""

from typing import Any, NamedTuple

import numpy as np

from onnx_light import onnx as ol

# TensorProto.DataType: bits, signed.
CODE_TYPES = {
    3: (8, True),
    2: (8, False),
    22: (4, True),
    21: (4, False),
    26: (2, True),
    25: (2, False),
}
TYPE_NAMES = {"int8": 3, "uint8": 2, "int4": 22, "uint4": 21, "int2": 26, "uint2": 25}


def unpack(raw: bytes, bits: int, signed: bool, shape: Any) -> Any:
    """Codes, low bits first, flat over the array; the bits after the last one are zero."""
    count = int(np.prod(shape))
    every_bit = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
    assert len(every_bit) == -(-count * bits // 8) * 8
    assert not every_bit[count * bits :].any()
    digits = every_bit[: count * bits].reshape(count, bits).astype(np.int64)
    codes = digits @ (1 << np.arange(bits))
    if signed:
        codes -= (codes >= 1 << (bits - 1)) * (1 << bits)
    return codes.reshape(shape)


def pack(codes: Any, bits: int) -> bytes:
    digits = np.ravel(codes)[:, None] >> np.arange(bits) & 1
    return np.packbits(digits.astype(np.uint8), bitorder="little").tobytes()


class Parts(NamedTuple):
    """An encoded value, its parameters spread over the shape of the payload."""

    codes: Any
    scales: Any
    zero_points: Any
    bits: int
    signed: bool

    def values(self) -> Any:
        exact = (self.codes - self.zero_points) * self.scales
        return exact.astype(np.float32)


def parts_of(value: Any, storage_type: int | None = None) -> Parts:
    affine = value.affine
    bits, signed = CODE_TYPES[storage_type or affine.storage_type]
    shape = [dim.dim_value for dim in value.logical_type.tensor_type.shape.dim]
    codes = unpack(value.raw_data, bits, signed, shape)
    scales = np.asarray(ol.to_array(affine.scale)).astype(np.float64)
    zeros = np.zeros(scales.shape, np.int64)
    if affine.has_zero_point():
        zeros = unpack(affine.zero_point.raw_data, bits, signed, scales.shape)
    grids = []
    for grid in (scales, zeros):
        axis = affine.axis % 4
        if grid.ndim == 1:
            grid = grid.reshape([-1 if i == axis else 1 for i in range(4)])
        elif grid.ndim == 4:
            grid = np.take(grid, np.arange(shape[axis]) // affine.block_size, axis=axis)
        grids.append(np.broadcast_to(grid, shape))
    return Parts(codes, grids[0], grids[1], bits, signed)


def cells(array: Any, scale: str, group: int | None) -> Any:
    """The numbers that share a scale, cell after cell."""
    batch, heads, tokens, width = array.shape
    if scale == "tensor":
        yield np.s_[:, :, :, :]
        return
    size = group or (tokens if scale == "channel" else width)
    for b in range(batch):
        for h in range(heads):
            if scale == "channel":
                for first in range(0, tokens, size):
                    for channel in range(width):
                        yield np.s_[b, h, first : first + size, channel]
            else:
                for token in range(tokens):
                    for first in range(0, width, size):
                        yield np.s_[b, h, token, first : first + size]


def by_range(
    array: Any, name: str, scale: str, group: int | None, scale_type: Any = np.float16
) -> Any:
    """Scale and zero point for each number, by range, with scales of a type."""
    bits, signed = CODE_TYPES[TYPE_NAMES[name]]
    levels = (1 << bits) - 1
    scales, zeros = np.zeros(array.shape), np.zeros(array.shape)
    for place in cells(array, scale, group):
        numbers = array[place].astype(np.float64)
        low, high = numbers.min(), numbers.max()
        unsigned_step = (max(high, 0) - min(low, 0)) / levels
        step = max(-low, high) / (levels // 2) if signed else unsigned_step
        if low == high:
            step = abs(low)
        step = float(scale_type(np.float32(step)))
        scales[place] = step
        if not signed and step:
            zeros[place] = np.clip(np.rint(np.float32(-min(low, 0)) / np.float32(step)), 0, levels)
    return scales, zeros


def quantized(array: Any, scales: Any, zeros: Any, bits: int, signed: bool) -> Any:
    """The values that codes with these parameters stand for, in float64."""
    least = -(1 << (bits - 1)) if signed else 0
    levels = np.rint(array.astype(np.float64) / np.where(scales == 0, 1, scales)) + zeros
    return (np.clip(levels, least, least + (1 << bits) - 1) - zeros) * scales
