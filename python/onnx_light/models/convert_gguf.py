"""From a GGUF file to a ModelProto, by way of the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from onnx_light.models._messages import GraphProto, ModelProto, read_mapped
from onnx_light.models.cache_folder import published_folder
from onnx_light.models.coded_weights import CodedMatrix, coded_matrices
from onnx_light.models.errors import ModelError
from onnx_light.models.gguf_file import GgufFile
from onnx_light.models.gguf_identity import PREFIX, config_identity, gguf_digests
from onnx_light.models.graph_builder import GraphBuilder, set_external_tensor, set_tensor
from onnx_light.models.llama_config import ARCHITECTURE, LlamaConfig, read_config
from onnx_light.models.llama_graph import MICROSOFT, LlamaGraph, StandardAttention
from onnx_light.models.paged_graph import with_paged_attention
from onnx_light.models.weights import rope_factors, rope_tables, weight_sources

if TYPE_CHECKING:
    from onnx_light.cache import CachePolicy

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"

# Part of the key of a converted model: raise it whenever the same input gives another output.
_CONVERTER_VERSION = 2
# The operator sets that have Attention as it is used here, and the IR version that goes with each.
_IR_VERSIONS = {23: 11, 24: 12}
_ALIGNMENT = 64 * 1024

Progress = Callable[[int, int], object]


class _Counter:
    """Adds up the bytes that are done for the caller's `progress`."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = total
        self.done = 0
        self.progress = progress

    def advance(self, count: int) -> None:
        self.done += count
        if self.progress:
            self.progress(self.done, self.total)

    def finish(self) -> None:
        if self.done < self.total:
            self.advance(self.total - self.done)


class _WeightWriter:
    """Puts large arrays into the file of weights and small ones into the message."""

    def __init__(self, graph: GraphProto, file: BinaryIO, counter: _Counter) -> None:
        self.graph = graph
        self.file = file
        self.end = 0
        self.counter = counter

    def add(self, name: str, array: npt.NDArray[np.generic]) -> None:
        tensor = self.graph.initializer.add()
        if array.nbytes < _ALIGNMENT:
            set_tensor(tensor, name, array)
        else:
            offset = -(-self.end // _ALIGNMENT) * _ALIGNMENT
            self.file.seek(offset)
            self.file.write(array.data)
            self.end = offset + array.nbytes
            set_external_tensor(tensor, name, array, WEIGHTS_FILE, offset)
        self.counter.advance(array.nbytes)


def _fail_option(name: str, message: str) -> ModelError:
    return ModelError("models.option", name, message)


def _check_options(
    attention: str, page_size: int, policy: object, weights: str, opset: int
) -> None:
    if attention not in ("standard", "paged"):
        raise _fail_option(
            "attention", f"{attention!r} is not available; 'standard' and 'paged' are"
        )
    if isinstance(page_size, bool) or not isinstance(page_size, int) or page_size < 1:
        raise _fail_option("page_size", f"{page_size!r}; a number of tokens from 1 on is needed")
    if policy is not None and attention == "standard":
        raise _fail_option("policy", "attention='standard' keeps plain tensors, which have none")
    if weights not in ("float32", "native"):
        raise _fail_option("weights", f"{weights!r} is not available; 'float32' and 'native' are")
    if opset not in _IR_VERSIONS:
        raise _fail_option("opset", f"{opset!r} is not available; {sorted(_IR_VERSIONS)} are")


def _policy_text(policy: CachePolicy | str | None) -> str:
    """For the attribute of the operators; empty for None.

    Raises:
        CodedError: ``quant.policy``, ``quant.format``: no policy. TypeError: no text either.
    """
    from onnx_light.cache import CachePolicy

    if policy is None:
        return ""
    if not isinstance(policy, CachePolicy | str):
        raise TypeError(f"policy: a CachePolicy or its text is needed, not {type(policy).__name__}")
    return str(policy if isinstance(policy, CachePolicy) else CachePolicy.parse(policy))


def _payload_bytes(file: GgufFile) -> int:
    return sum(tensor.nbytes for tensor in file.tensors.values())


def _coded(file: GgufFile, config: LlamaConfig, weights: str) -> dict[str, CodedMatrix]:
    return coded_matrices(file, config) if weights == "native" else {}


def _converted_bytes(file: GgufFile, config: LlamaConfig, coded: dict[str, CodedMatrix]) -> int:
    count = 4 * config.context * config.width
    for name, tensor in file.tensors.items():
        if name in coded:
            count += coded[name].nbytes
        elif name != "rope_freqs.weight":
            count += 4 * math.prod(tensor.dims)
    return count


def _write_model(
    folder: Path,
    file: GgufFile,
    config: LlamaConfig,
    coded: dict[str, CodedMatrix],
    identity: dict[str, str],
    opset: int,
    counter: _Counter,
) -> None:
    """Writes the message and the file of weights; one weight at a time is in memory."""
    model = ModelProto()
    model.ir_version = _IR_VERSIONS[opset]
    model.producer_name = "onnx_light"
    model.opset_import.add(domain="", version=opset)
    if coded:
        model.opset_import.add(domain=MICROSOFT, version=1)
    model.graph.name = str(file.metadata.get("general.name") or ARCHITECTURE)
    for field, text in identity.items():
        model.metadata_props.add(key=PREFIX + field, value=text)
    with open(folder / WEIGHTS_FILE, "wb") as output:
        writer = _WeightWriter(model.graph, output, counter)
        for name, source in weight_sources(file, config, coded).items():
            writer.add(name, source())
        cosines, sines = rope_tables(config, rope_factors(file, config))
        writer.add("rope.cos", cosines)
        writer.add("rope.sin", sines)
    if writer.end == 0:
        (folder / WEIGHTS_FILE).unlink()  # a tiny model: all of it is in the message
    builder = GraphBuilder(model.graph)
    LlamaGraph(builder, config, StandardAttention(config), coded).build()
    (folder / MODEL_FILE).write_bytes(model.SerializeToString())


def _model_key(content: str, weights: str, opset: int) -> str:
    """What a converted model depends on, and nothing else."""
    parts = [content, _CONVERTER_VERSION, "standard", weights, opset]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def cached_model(
    path: str | os.PathLike[str],
    *,
    weights: str = "float32",
    opset: int = 23,
    progress: Progress | None = None,
) -> Path:
    """The converted model as a file in the user's cache folder, made if it is not there yet.

    It has standard attention; the other options are those of `from_gguf`. The file is `model.onnx`;
    its weights lie beside it in `model.onnx.data`, aligned to 64 KiB, so that
    ``onnxruntime.InferenceSession(path)`` maps them. Neither is changed afterwards: a model of
    other content gets another folder.

    Raises:
        ModelError, OSError: as `from_gguf`.
    """
    _check_options("standard", 1, None, weights, opset)
    with GgufFile(path) as file:
        config = read_config(file)
        hashed = _payload_bytes(file)
        coded = _coded(file, config, weights)
        counter = _Counter(hashed + _converted_bytes(file, config, coded), progress)
        digests = gguf_digests(file, counter.advance)

        def fill(folder: Path) -> None:
            identity = config_identity(file, config, digests)
            _write_model(folder, file, config, coded, identity, opset, counter)

        folder = published_folder("models", _model_key(digests["content"], weights, opset), fill)
        counter.finish()
    return folder / MODEL_FILE


def from_gguf(
    path: str | os.PathLike[str],
    *,
    attention: str = "paged",
    page_size: int = 64,
    policy: CachePolicy | str | None = None,
    weights: str = "float32",
    opset: int = 23,
    progress: Progress | None = None,
) -> ModelProto:
    """Converts a llama-architecture GGUF file to an ONNX model.

    Inputs of the model: `input_ids` int64 [1, tokens], and `num_logits`, an int64 scalar that is 1
    unless fed. Output: `logits` float32 [1, num_logits, vocabulary] for the last tokens. The state,
    from whose length the positions follow: with standard attention `past_key_values.N.key` and
    `.value` float32 [1, kv_heads, past, width], and `present.N.key` and `.value`; with paged
    attention the caches `layers.N` and `present.layers.N`, which are bound to each other, for
    `onnx_light.runtime.InferenceSession`.

    The converted model is kept in the user's cache folder by content; the weights of the result
    are inline and borrowed from the mapping of a file there, so the second call is quick and
    processes share the memory.

    Args:
        path: the GGUF file, of version 2 or 3.
        attention: "paged", the operators of `ai.rt`, which attend on pages as they are stored; or
            "standard", ONNX's own Attention operator on plain tensors, for programs that run the
            model without this package.
        page_size: tokens per page, for paged attention.
        policy: how pages are stored, for paged attention only: a CachePolicy or its text. None: as
            the state's caches say, or else in float32.
        weights: "float32": all weights are decoded to it. "native": matrices that the file has in
            Q4_0 or Q8_0 stay in its 4 or 8 bits, for onnxruntime's com.microsoft::MatMulNBits, with
            the very same values (8 bits as the sum of two matrices of 4); the embedding and the
            other types are decoded.
        opset: 23 or 24, the version of ONNX's operators; onnxruntime 1.23 has 23.
        progress: called as progress(done, total) with bytes of digests and weights.

    Raises:
        ModelError: a ValueError with `code` and `path`. Another architecture, unsupported keys,
            tensors or types (by name), a cut or damaged file, a missing tensor, dims that do not
            go together, an option that is not available. All before anything long begins.
        CodedError: ``quant.policy``, ``quant.format``: the text is no policy.
        OSError: the file cannot be read or the cache folder not written.
    """
    _check_options(attention, page_size, policy, weights, opset)
    text = _policy_text(policy)
    converted = cached_model(path, weights=weights, opset=opset, progress=progress)
    external = converted.with_name(WEIGHTS_FILE)
    model = read_mapped(converted, external if external.exists() else None)
    if attention == "paged":
        with GgufFile(path) as file:
            config = read_config(file)
            coded = _coded(file, config, weights)
            with_paged_attention(model, config, coded, page_size, text)
    return model
