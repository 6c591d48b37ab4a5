"""Matrices that stay in the codes of the GGUF file, for ONNX Runtime's MatMulNBits.

Q4_0 and Q8_0 have blocks of 32 values along a row, `scale * (code - zero)` with a float16 scale
and a zero that MatMulNBits takes where none is given: 8 for 4 bits, 128 for 8 bits. Only the order
of the codes differs, so the values are the file's to the bit. The other types of GGUF are decoded:
those with a minimum of their own (Q4_1) would need `zero = -minimum / scale`, which rounds, and
those with blocks in blocks have more scales than MatMulNBits.
"""

from __future__ import annotations

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
class CodedMatrix:
    """The form of a matrix [rows, columns], that is [out, in]."""

    rows: int
    columns: int
    bits: int

    @property
    def nbytes(self) -> int:
        """Of codes and scales."""
        values = self.rows * self.columns
        return values * self.bits // 8 + values // BLOCK * 4


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


def read_codes(file: GgufFile, name: str, form: CodedMatrix) -> Codes:
    """uint8 [rows, columns / 32, 4 * bits]: with 4 bits, the even one of two values lies low."""
    payload = _blocks(file, name, form)[..., 2:]
    if form.bits == 8:
        return payload ^ np.uint8(128)  # from signed to an offset of 128
    # The file has value j in the low half of byte j, and value j + 16 in the high half.
    codes = np.concatenate([payload & np.uint8(15), payload >> np.uint8(4)], axis=-1)
    packed: Codes = codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)
    return packed


def read_scales(file: GgufFile, name: str, form: CodedMatrix) -> Scales:
    """float32 [rows, columns / 32]."""
    scales = np.ascontiguousarray(_blocks(file, name, form)[..., :2])
    return scales.view("<f2")[..., 0].astype(np.float32)


def _blocks(file: GgufFile, name: str, form: CodedMatrix) -> Codes:
    """uint8 [rows, columns / 32, 2 + 4 * bits]: a scale, then the codes."""
    with file.payload(file.tensors[name]) as view:
        raw = np.array(view, np.uint8)
    return raw.reshape(form.rows, form.columns // BLOCK, 2 + 4 * form.bits)
