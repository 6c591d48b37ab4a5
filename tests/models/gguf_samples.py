"""Small GGUF files, written with the gguf package: models with random weights, and tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

SMALL: dict[str, Any] = {
    "layers": 2,
    "hidden": 64,
    "feed_forward": 96,
    "heads": 6,
    "kv_heads": 2,
    "width": 8,
    "vocabulary": 640,
    "context": 96,
    "rope_base": 700.0,
    "epsilon": 0.03,
}


def byte_letters() -> list[str]:
    """The 256 letters that stand for bytes in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    rest = [byte for byte in range(256) if byte not in letters]
    letters.update({byte: chr(256 + index) for index, byte in enumerate(rest)})
    return [letters[byte] for byte in range(256)]


def tokenizer_lists(size: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, token types and merges of a vocabulary with `size` tokens."""
    tokens = ["<|end|>", "<|bos|>", "<tool>", *byte_letters()]
    kinds = [3, 3, 4] + [1] * 256
    merges = []
    for pair in (
        "t h",
        "th e",
        "\u0120 the",
        "1 2",
        "12 3",
        "i n",
        "in g",
        "l l",
        "' ll",
        "\u0120 a",
    ):
        left, right = pair.split(" ")
        merges.append(pair)
        tokens.append(left + right)
        kinds.append(1)
    while len(tokens) < size:
        tokens.append(f"<unused{len(tokens)}>")
        kinds.append(5)
    return tokens, kinds, merges


def add_tokenizer(writer: gguf.GGUFWriter, size: int, pre: str = "smollm", **flags: bool) -> None:
    tokens, kinds, merges = tokenizer_lists(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    for key, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)


def random_weights(
    config: dict[str, Any], *, tied: bool = False, factors: bool = False, seed: int = 0
) -> dict[str, np.ndarray]:
    """Weights by GGUF name, matrices [out, in], of a size that makes every part matter."""
    random = np.random.default_rng(seed)
    hidden, width = config["hidden"], config["width"]

    def matrix(rows: int, columns: int, scale: float = 1.5) -> np.ndarray:
        values = random.standard_normal((rows, columns)) * scale / columns**0.5
        return values.astype(np.float32)

    def norm() -> np.ndarray:
        return random.uniform(0.5, 1.5, hidden).astype(np.float32)

    weights = {"token_embd.weight": matrix(config["vocabulary"], hidden, 3.0)}
    weights["output_norm.weight"] = norm()
    if not tied:
        weights["output.weight"] = matrix(config["vocabulary"], hidden, 3.0)
    if factors:
        weights["rope_freqs.weight"] = random.uniform(1, 4, width // 2).astype(np.float32)
    for layer in range(config["layers"]):
        block = f"blk.{layer}."
        weights[block + "attn_norm.weight"] = norm()
        weights[block + "attn_q.weight"] = matrix(config["heads"] * width, hidden)
        weights[block + "attn_k.weight"] = matrix(config["kv_heads"] * width, hidden)
        weights[block + "attn_v.weight"] = matrix(config["kv_heads"] * width, hidden)
        weights[block + "attn_output.weight"] = matrix(hidden, config["heads"] * width)
        weights[block + "ffn_norm.weight"] = norm()
        weights[block + "ffn_gate.weight"] = matrix(config["feed_forward"], hidden)
        weights[block + "ffn_up.weight"] = matrix(config["feed_forward"], hidden)
        weights[block + "ffn_down.weight"] = matrix(hidden, config["feed_forward"])
    return weights


def add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["layers"])
    writer.add_context_length(config["context"])
    writer.add_embedding_length(config["hidden"])
    writer.add_feed_forward_length(config["feed_forward"])
    writer.add_head_count(config["heads"])
    writer.add_head_count_kv(config["kv_heads"])
    writer.add_key_length(config["width"])
    writer.add_value_length(config["width"])
    writer.add_rope_dimension_count(config["width"])
    writer.add_rope_freq_base(config["rope_base"])
    writer.add_layer_norm_rms_eps(config["epsilon"])


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(
    path: Path,
    config: dict[str, Any] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    *,
    types: dict[str, str] | None = None,
    architecture: str = "llama",
    extra: dict[str, Any] | None = None,
) -> Path:
    """A model file.

    Args:
        types: the GGUF type of each tensor, by a part of its name; F32 where none fits.
        extra: more metadata: strings, ints, floats or bools.
    """
    config = SMALL | (config or {})
    weights = random_weights(config) if weights is None else weights
    writer = gguf.GGUFWriter(path, architecture)
    add_config(writer, config)
    add_tokenizer(writer, config["vocabulary"])
    for key, value in (extra or {}).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
        add.get(type(value), writer.add_float32)(key, value)
    for name, array in weights.items():
        kind = next((kind for part, kind in (types or {}).items() if part in name), "F32")
        number = gguf.GGMLQuantizationType[kind]
        data = array if kind == "F32" else quantize(array, number)
        writer.add_tensor(name, data, raw_dtype=number)
    finish(writer)
    return path


def write_vocabulary(path: Path, pre: str = "smollm", **flags: bool) -> Path:
    """A file with a tokenizer and no weights."""
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, 300, pre, **flags)
    finish(writer)
    return path
