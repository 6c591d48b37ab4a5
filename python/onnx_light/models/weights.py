"""Decodes the tensors of a llama-architecture GGUF file into the arrays that the graph uses.

Arrays are float32 and matrices come out as [in, out], ready for ``x @ w``; the embedding table and
the output head stay [vocabulary, hidden]. Coded matrices are two arrays, [out, ...].
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from onnx_light.models.coded_weights import CodedMatrix, coded_arrays
from onnx_light.models.gguf_file import GgufFile, GgufTensor
from onnx_light.models.llama_config import LlamaConfig

Array = npt.NDArray[np.float32]
_T = TypeVar("_T", bound=np.generic)


def decode(file: GgufFile, tensor: GgufTensor) -> Array:
    """The tensor's values in float32, shaped by its dims in reverse order: a matrix [out, in]."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize, quant_shape_to_byte_shape

    kind = GGMLQuantizationType[tensor.type_name]
    shape = tensor.dims[::-1]
    with file.payload(tensor) as view:
        raw = np.array(view, np.uint8)
    if kind == GGMLQuantizationType.F64:
        return raw.view(np.float64).astype(np.float32).reshape(shape)
    blocks = raw.reshape(quant_shape_to_byte_shape(shape, kind))
    return np.asarray(dequantize(blocks, kind), np.float32).reshape(shape)


def halves(matrix: npt.NDArray[_T], heads: int) -> npt.NDArray[_T]:
    """Undoes the row order that llama.cpp's converter gives to the query and key matrices.

    There, the rows of a head that rope turns together are neighbours (0, 1), (2, 3), ...; here they
    are half a head apart, as the rotation by halves of the graph expects it.

    Args:
        matrix: [heads * width, in] values, or rows of codes.
        heads: the heads of this matrix.
    """
    rows, columns = matrix.shape
    pairs = matrix.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def rope_tables(config: LlamaConfig, factors: Array | None) -> tuple[Array, Array]:
    """Cosines and sines [context, width / 2], computed in float64 and rounded once."""
    steps = np.arange(0, config.width, 2, dtype=np.float64) / config.width
    frequencies = np.float64(config.rope_base) ** -steps
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    cosines = np.empty((config.context, config.width // 2), np.float32)
    sines = np.empty_like(cosines)
    for first in range(0, config.context, 4096):
        positions = np.arange(first, min(first + 4096, config.context), dtype=np.float64)
        angles = positions[:, None] * frequencies
        cosines[first : first + 4096] = np.cos(angles)
        sines[first : first + 4096] = np.sin(angles)
    return cosines, sines


def rope_factors(file: GgufFile, config: LlamaConfig) -> Array | None:
    """The divisors of the rope frequencies [width / 2], where the model has them."""
    return decode(file, file.tensors["rope_freqs.weight"]) if config.rope_factors else None


def factors_digest(factors: Array | None) -> str:
    """SHA-256 in hex of the factors, empty without any."""
    return "" if factors is None else hashlib.sha256(factors.tobytes()).hexdigest()


def weight_sources(
    file: GgufFile, config: LlamaConfig, coded: Mapping[str, CodedMatrix]
) -> dict[str, Callable[[], npt.NDArray[np.generic]]]:
    """The graph's weights by name, each with the function that decodes it, in the graph's order.

    A matrix of `coded` is what `coded_arrays` says. Nothing is decoded yet, so that a caller can
    hold one weight at a time.
    """
    sources: dict[str, Callable[[], npt.NDArray[np.generic]]] = {}

    def tensor(name: str) -> Array:
        return decode(file, file.tensors[name])

    def as_is(name: str) -> Callable[[], Array]:
        return lambda: tensor(name)

    def transposed(name: str) -> Callable[[], Array]:
        return lambda: np.ascontiguousarray(tensor(name).T)

    def unpaired(name: str, heads: int) -> Callable[[], Array]:
        return lambda: np.ascontiguousarray(halves(tensor(name), heads).T)

    def matrix(name: str, decoded: Callable[[], Array], heads: int = 0) -> None:
        if name not in coded:
            sources[name] = decoded
            return
        for part, read in coded_arrays(file, name, coded[name]).items():
            sources[part] = functools.partial(coded_part, read, heads) if heads else read

    def coded_part(
        read: Callable[[], npt.NDArray[np.generic]], heads: int
    ) -> npt.NDArray[np.generic]:
        part = read()
        rows = halves(part.reshape(len(part), -1), heads)
        return np.ascontiguousarray(rows.reshape(part.shape))

    sources["token_embd.weight"] = as_is("token_embd.weight")
    for layer in range(config.layers):
        block = f"blk.{layer}."
        sources[block + "attn_norm.weight"] = as_is(block + "attn_norm.weight")
        for part, heads in (("attn_q", config.heads), ("attn_k", config.kv_heads)):
            name = f"{block}{part}.weight"
            matrix(name, unpaired(name, heads), heads)
        sources[block + "ffn_norm.weight"] = as_is(block + "ffn_norm.weight")
        for part in ("attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            name = f"{block}{part}.weight"
            matrix(name, transposed(name))
    sources["output_norm.weight"] = as_is("output_norm.weight")
    if not config.tied:
        matrix("output.weight", as_is("output.weight"))
    return sources
