"""A llama-architecture decoder in numpy, straight from the GGUF file's own layout.

It computes in float64 unless told otherwise, keeps the file's order of query and key rows (pairs of
neighbours are rotated), reads with the gguf package, and shares no code with the converter.
`mistakes` builds in the well-known errors, so that tests can show that a comparison would notice
each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize

MISTAKES = ("epsilon", "pairs", "inverse", "base", "resume", "groups") + (
    "causal",
    "scale",
    "gate",
    "tied",
    "factors",
)


class Oracle:
    def __init__(
        self, path: str | Path, mistakes: Iterable[str] = (), dtype: type = np.float64
    ) -> None:
        reader = gguf.GGUFReader(path)
        self.mistakes = set(mistakes)
        self.weights = {
            tensor.name: np.array(dequantize(tensor.data, tensor.tensor_type))
            .reshape([int(dim) for dim in tensor.shape[::-1]])
            .astype(dtype, copy=False)
            for tensor in reader.tensors
        }

        def field(name: str) -> float:
            return reader.fields[f"llama.{name}"].contents()

        self.layers = field("block_count")
        self.heads = field("attention.head_count")
        self.kv_heads = field("attention.head_count_kv")
        self.width = field("rope.dimension_count")
        self.base = field("rope.freq_base")
        self.epsilon = field("attention.layer_norm_rms_epsilon")

    def norm(self, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
        epsilon = self.epsilon * (10 if "epsilon" in self.mistakes else 1)
        squares = (values.astype(np.float64) ** 2).mean(-1, keepdims=True)
        return values / np.sqrt(squares + epsilon).astype(values.dtype) * weight

    def rotate(self, values: np.ndarray) -> np.ndarray:
        """[tokens, heads, width], pairs of neighbours, positions from 0 on."""
        half = self.width // 2
        base = 10000.0 if "base" in self.mistakes else self.base
        frequencies = base ** (-np.arange(half) * 2 / self.width)
        if "rope_freqs.weight" in self.weights and "factors" not in self.mistakes:
            frequencies = frequencies / self.weights["rope_freqs.weight"]
        positions = np.arange(len(values))
        if "resume" in self.mistakes:  # a second chunk that begins at 0 again
            positions = positions % 16
        turned = np.exp(1j * positions[:, None, None] * frequencies)
        if "inverse" in self.mistakes:  # rows reordered in the wrong direction
            swapped = values.reshape(*values.shape[:-1], 2, half).swapaxes(-1, -2)
            values = swapped.reshape(values.shape)
        if self.mistakes & {"pairs", "inverse"}:
            result = (values[..., :half] + 1j * values[..., half:]) * turned
            return np.concatenate([result.real, result.imag], -1)
        result = (values[..., 0::2] + 1j * values[..., 1::2]) * turned
        return np.stack([result.real, result.imag], -1).reshape(values.shape)

    def attention(self, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        tokens, group = len(query), self.heads // self.kv_heads
        order = np.arange(self.heads) // group
        if "groups" in self.mistakes:
            order = np.arange(self.heads) % self.kv_heads
        scale = 1.0 if "scale" in self.mistakes else self.width**-0.5
        scores = np.einsum("qhd,khd->hqk", query, key[:, order]) * scale
        if "causal" not in self.mistakes:
            scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", scores, value[:, order]).reshape(tokens, -1)

    def forward(self, ids: Iterable[int]) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Logits [tokens, vocabulary], and keys and values [tokens, kv_heads, width] by layer.

        Keys come in the order that a rotation by halves gives: even entries, then odd ones.
        """
        weights, state = self.weights, []
        hidden = weights["token_embd.weight"][np.asarray(list(ids))]
        tokens = len(hidden)
        for layer in range(self.layers):
            block = f"blk.{layer}."
            normed = self.norm(hidden, weights[block + "attn_norm.weight"])
            query, key, value = (
                (normed @ weights[f"{block}attn_{part}.weight"].T).reshape(tokens, -1, self.width)
                for part in "qkv"
            )
            query, key = (self.rotate(part).astype(value.dtype) for part in (query, key))
            state.append((np.concatenate([key[..., 0::2], key[..., 1::2]], -1), value))
            mixed = self.attention(query, key, value)
            hidden = hidden + mixed @ weights[block + "attn_output.weight"].T
            normed = self.norm(hidden, weights[block + "ffn_norm.weight"])
            gate = normed @ weights[block + "ffn_gate.weight"].T
            up = normed @ weights[block + "ffn_up.weight"].T
            if "gate" in self.mistakes:
                gate, up = up, gate
            product = gate / (1 + np.exp(-gate)) * up
            hidden = hidden + product @ weights[block + "ffn_down.weight"].T
        table = weights.get("output.weight", weights["token_embd.weight"])
        if "tied" in self.mistakes:
            table = weights["token_embd.weight"]
        return self.norm(hidden, weights["output_norm.weight"]) @ table.T, state

    def logits(self, ids: Iterable[int]) -> np.ndarray:
        return self.forward(ids)[0]
