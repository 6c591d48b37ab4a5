"""Matrices that stay in the codes of the GGUF file, for ONNX Runtime's MatMulNBits.

Q4_0 and Q8_0 have blocks of 32 values along a row, `scale * (code - zero)` with a float16 scale.
Only the order of the codes differs: the values are the file's to the bit. A matrix of 8 bits is the
sum of two of 4: `16 * scale * high + scale * low` with `code = 16 * high + low`, which is exact,
too. MatMulNBits has 8 bits of its own, but computes with them in float32 by decoding all of the
matrix in each run, or else rounds the other operand to 8 bits. The other types of GGUF are decoded:
those with a minimum of their own (Q4_1) would need `zero = -minimum / scale`, which rounds, and
those with blocks in blocks have more scales than MatMulNBits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnx_light.models.gguf_file import GgufFile
from onnx_light.models.llama_config import LlamaConfig

BLOCK = 32
_BITS = {"Q4_0": 4, "Q8_0": 8}
_LAYER_PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

Codes = npt.NDArray[np.uint8]
Scales = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CodedPart:
    """4 bits of each value of a matrix: an operand of MatMulNBits.

    Attributes:
        suffix: its weights are NAME + suffix + ".codes", ".scales" and, if `zero` is 0, ".zeros".
        factor: of the file's scales.
        zero: the code of the value 0; MatMulNBits takes 8 where it is not told.
    """

    suffix: str
    factor: int
    zero: int


_PARTS = {
    4: (CodedPart("", 1, 8),),
    8: (CodedPart(".high", 16, 8), CodedPart(".low", 1, 0)),
}


@dataclass(frozen=True)
class CodedMatrix:
    """The form of a matrix [rows, columns], that is [out, in]."""

    rows: int
    columns: int
    bits: int

    @property
    def parts(self) -> tuple[CodedPart, ...]:
        """The matrices of 4 bits whose sum it is."""
        return _PARTS[self.bits]

    @property
    def blocks(self) -> int:
        """In a row."""
        return self.columns // BLOCK

    @property
    def nbytes(self) -> int:
        """Of codes, scales and zeros."""
        codes = self.rows * self.columns // 2
        scales = self.rows * self.blocks * 4
        zeros = sum(part.zero == 0 for part in self.parts) * self.rows * _packed(self.blocks)
        return len(self.parts) * (codes + scales) + zeros


def _packed(count: int) -> int:
    """The bytes that codes of 4 bits take."""
    return -(-count // 2)


def coded_matrices(file: GgufFile, config: LlamaConfig) -> dict[str, CodedMatrix]:
    """The matrices that can stay as they are, by name; no embedding, which is looked up in."""
    parts = [f"blk.{layer}.{part}" for layer in range(config.layers) for part in _LAYER_PARTS]
    names = [f"{part}.weight" for part in parts]
    if not config.tied:
        names.append("output.weight")
    found = {}
    for name in names:
        tensor = file.tensors[name]
        if tensor.type_name in _BITS:
            columns, rows = tensor.dims
            found[name] = CodedMatrix(rows, columns, _BITS[tensor.type_name])
    return found


def coded_arrays(
    file: GgufFile, name: str, form: CodedMatrix
) -> dict[str, Callable[[], npt.NDArray[np.generic]]]:
    """The weights of a matrix by name, each with the function that reads it.

    Their first dimension is the rows: codes uint8 [rows, columns / 32, 16], the even one of two
    values low; scales float32 [rows, columns / 32]; zeros uint8 [rows, columns / 64 rounded up].
    """
    arrays: dict[str, Callable[[], npt.NDArray[np.generic]]] = {}
    for part in form.parts:
        at = name + part.suffix
        arrays[at + ".codes"] = functools.partial(_read_codes, file, name, form, part)
        arrays[at + ".scales"] = functools.partial(_read_scales, file, name, form, part)
        if part.zero == 0:
            arrays[at + ".zeros"] = functools.partial(_zeros, form)
    return arrays


def _read_codes(file: GgufFile, name: str, form: CodedMatrix, part: CodedPart) -> Codes:
    payload = _blocks(file, name, form)[..., 2:]
    if form.bits == 4:
        # The file has value j in the low half of byte j, and value j + 16 in the high half.
        codes = np.concatenate([payload & np.uint8(15), payload >> np.uint8(4)], axis=-1)
    elif part.zero:
        codes = payload >> np.uint8(4) ^ np.uint8(8)  # from two's complement to an offset of 8
    else:
        codes = payload & np.uint8(15)
    packed: Codes = codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)
    return packed


def _read_scales(file: GgufFile, name: str, form: CodedMatrix, part: CodedPart) -> Scales:
    scales = np.ascontiguousarray(_blocks(file, name, form)[..., :2])
    return scales.view("<f2")[..., 0].astype(np.float32) * np.float32(part.factor)


def _zeros(form: CodedMatrix) -> Codes:
    return np.zeros((form.rows, _packed(form.blocks)), np.uint8)


def _blocks(file: GgufFile, name: str, form: CodedMatrix) -> Codes:
    """uint8 [rows, columns / 32, 2 + 4 * bits]: a scale, then the codes."""
    with file.payload(file.tensors[name]) as view:
        raw = np.array(view, np.uint8)
    return raw.reshape(form.rows, form.blocks, 2 + 4 * form.bits)
