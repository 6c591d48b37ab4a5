"""What a llama-architecture GGUF file says about its decoder, checked before anything is built.

A metadata key of the architecture or a tensor that is not known here is refused by name: it may
change what the model computes, and a silently different model is worse than none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from onnx_light.models.errors import ModelError
from onnx_light.models.gguf_file import GgufFile, GgufTensor

ARCHITECTURE = "llama"

# Keys below "llama." that are understood, or that describe without changing the computation.
_KNOWN_KEYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "expert_count",
        "expert_used_count",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "tensor_data_layout",
        "vocab_size",
    }
)

# Rope tables are made for every position of the context: 2 GiB each at this limit and width 256.
_MAX_CONTEXT = 1 << 22
_TENSORS_PER_LAYER = 9

# Types of tensors that gguf decodes to float32. (NVFP4 has a scale in a second tensor.)
DECODED_TYPES = frozenset(
    ("F32", "F16", "F64", "BF16")
    + ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
    + ("TQ1_0", "TQ2_0", "MXFP4", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
    + ("IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS")
)


@dataclass(frozen=True)
class LlamaConfig:
    """The numbers of a decoder. Widths are numbers of values, not bytes."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    width: int
    vocabulary: int
    context: int
    rope_base: float
    rope_factors: bool
    epsilon: float
    tied: bool


class _Metadata:
    """Typed access to the keys of the architecture."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file

    def fail(self, code: str, message: str) -> ModelError:
        return ModelError(code, self.file.path, message)

    def get(self, key: str) -> Any:
        return self.file.metadata.get(f"{ARCHITECTURE}.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive whole number; without a default it has to be there."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fail("models.missing", f"the key {ARCHITECTURE}.{key} is missing")
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            shown = str(value)[:60]
            message = f"{ARCHITECTURE}.{key} is {shown}; one whole number from 1 on is needed"
            raise self.fail("models.value", message)
        return value

    def integer_up_to(self, key: str, limit: int, why: str) -> int:
        value = self.integer(key)
        if value > limit:
            message = f"{ARCHITECTURE}.{key} is {value}; {limit} is the most, {why}"
            raise self.fail("models.value", message)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number; without a default it has to be there."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fail("models.missing", f"the key {ARCHITECTURE}.{key} is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail("models.value", f"{ARCHITECTURE}.{key} is {value!r}, no number")
        if not (math.isfinite(value) and value > 0):
            raise self.fail("models.value", f"{ARCHITECTURE}.{key} is {value}; it must be above 0")
        return float(value)


def _check_kind(metadata: _Metadata) -> None:
    """Refuses what is no plain llama decoder."""
    values = metadata.file.metadata
    architecture = values.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise metadata.fail(
            "models.architecture",
            f"the architecture is {architecture!r}; {ARCHITECTURE!r} can be converted",
        )
    if values.get("split.count", 1) not in (0, 1):
        count = values["split.count"]
        raise metadata.fail(
            "models.split", f"this is one of {count} parts; merge them into one file first"
        )
    if metadata.get("expert_count"):
        raise metadata.fail(
            "models.unsupported", f"{ARCHITECTURE}.expert_count: expert layers are not supported"
        )
    scaling = metadata.get("rope.scaling.type")
    if scaling not in (None, "none"):
        raise metadata.fail(
            "models.unsupported",
            f"{ARCHITECTURE}.rope.scaling.type {scaling!r} is not supported; 'none' is",
        )
    for key in sorted(values):
        prefix, _, name = key.partition(".")
        if prefix == ARCHITECTURE and name not in _KNOWN_KEYS:
            raise metadata.fail(
                "models.unsupported", f"the key {key} is not known; it may change the model"
            )


def _tensor_dims(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """The tensors that the decoder consists of, with their dims in the file's order."""
    hidden, width = config.hidden, config.width
    dims: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (hidden, config.vocabulary),
        "output_norm.weight": (hidden,),
    }
    if not config.tied:
        dims["output.weight"] = (hidden, config.vocabulary)
    if config.rope_factors:
        dims["rope_freqs.weight"] = (width // 2,)
    for layer in range(config.layers):
        block = f"blk.{layer}."
        dims[block + "attn_norm.weight"] = (hidden,)
        dims[block + "attn_q.weight"] = (hidden, config.heads * width)
        dims[block + "attn_k.weight"] = (hidden, config.kv_heads * width)
        dims[block + "attn_v.weight"] = (hidden, config.kv_heads * width)
        dims[block + "attn_output.weight"] = (config.heads * width, hidden)
        dims[block + "ffn_norm.weight"] = (hidden,)
        dims[block + "ffn_gate.weight"] = (hidden, config.feed_forward)
        dims[block + "ffn_up.weight"] = (hidden, config.feed_forward)
        dims[block + "ffn_down.weight"] = (config.feed_forward, hidden)
    return dims


def _find(file: GgufFile, name: str) -> GgufTensor:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelError("models.missing", file.path, f"the tensor {name} is missing")
    return tensor


def _check_tensors(file: GgufFile, config: LlamaConfig) -> None:
    expected = _tensor_dims(config)
    for name, dims in expected.items():
        tensor = _find(file, name)
        if tensor.dims != dims:
            raise ModelError(
                "models.shape",
                file.path,
                f"the tensor {name} has dims {list(tensor.dims)}; {list(dims)} follow from the"
                " metadata",
            )
        if tensor.type_name not in DECODED_TYPES:
            raise ModelError(
                "models.tensor_type",
                file.path,
                f"the tensor {name} has type {tensor.type_name}; known are"
                f" {', '.join(sorted(DECODED_TYPES))}",
            )
    for name in file.tensors:
        if name not in expected:
            raise ModelError(
                "models.unsupported",
                file.path,
                f"the tensor {name} is no part of a plain {ARCHITECTURE} decoder",
            )


def _head_width(metadata: _Metadata, hidden: int, heads: int) -> int:
    if metadata.get("attention.key_length") is None and hidden % heads:
        raise metadata.fail(
            "models.value", f"{hidden} values of the hidden state do not divide by {heads} heads"
        )
    width = metadata.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        other = metadata.integer(key, width)
        if other != width:
            message = f"{ARCHITECTURE}.{key} is {other}; only the key width {width} is supported"
            raise metadata.fail("models.unsupported", message)
    if width % 2:
        raise metadata.fail("models.value", f"the head width is {width}; rope needs an even one")
    return width


def read_config(file: GgufFile) -> LlamaConfig:
    """The decoder's numbers, after all checks that need no weight to be decoded.

    Raises:
        ModelError: another architecture, something unsupported (named), a missing tensor or key,
            or dims that do not go together.
    """
    metadata = _Metadata(file)
    _check_kind(metadata)
    hidden = metadata.integer("embedding_length")
    heads = metadata.integer("attention.head_count")
    kv_heads = metadata.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        message = f"{heads} query heads are no multiple of {kv_heads} kv heads"
        raise metadata.fail("models.value", message)
    embedding = _find(file, "token_embd.weight")
    vocabulary = metadata.integer("vocab_size", embedding.dims[-1])
    config = LlamaConfig(
        layers=metadata.integer_up_to(
            "block_count",
            len(file.tensors) // _TENSORS_PER_LAYER,
            f"as the file has {len(file.tensors)} tensors",
        ),
        hidden=hidden,
        feed_forward=metadata.integer("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        width=_head_width(metadata, hidden, heads),
        vocabulary=vocabulary,
        context=metadata.integer_up_to(
            "context_length", _MAX_CONTEXT, "as rope tables hold every position"
        ),
        rope_base=metadata.number("rope.freq_base", 10000.0),
        rope_factors="rope_freqs.weight" in file.tensors,
        epsilon=metadata.number("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in file.tensors,
    )
    _check_tensors(file, config)
    return config


def rope_text(config: LlamaConfig, factors_digest: str) -> str:
    """How rope turns keys, as text for the identity; `factors_digest` is empty without factors."""
    text = f"base={config.rope_base:.9g} width={config.width}"
    return f"{text} factors=sha256:{factors_digest}" if factors_digest else text
