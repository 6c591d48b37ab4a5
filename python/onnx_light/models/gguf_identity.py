"""Which model a GGUF file holds: digests and the fields of its identity, as text."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from onnx_light.models.cache_folder import kept_digests
from onnx_light.models.gguf_file import GgufFile
from onnx_light.models.llama_config import ARCHITECTURE, LlamaConfig, read_config, rope_text
from onnx_light.models.weights import factors_digest, rope_factors

PREFIX = "onnx_light.identity."
KEY_LAYOUT = "half"


def weights_digest(file: GgufFile, advance: Callable[[int], None] | None = None) -> str:
    """``sha256:`` and SHA-256 in hex over all tensors of the file.

    The digest is over the UTF-8 lines ``name<tab>type<tab>d0,d1<tab>sha256 of the bytes<newline>``,
    sorted by name, with GGUF's names of types and order of dims.

    Args:
        advance: called with the number of bytes of each tensor that is done.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(file.tensors.items()):
        with file.payload(tensor) as view:
            content = hashlib.sha256(view).hexdigest()
        dims = ",".join(map(str, tensor.dims))
        digest.update(f"{name}\t{tensor.type_name}\t{dims}\t{content}\n".encode())
        if advance:
            advance(tensor.nbytes)
    return f"sha256:{digest.hexdigest()}"


def gguf_digests(file: GgufFile, advance: Callable[[int], None] | None = None) -> dict[str, str]:
    """`weights`, `tokenizer` and `content` of a file, from the user's cache folder where known.

    `content` is over header and weights: two files with an equal one convert to the same model.
    """

    def compute() -> dict[str, str]:
        weights = weights_digest(file, advance)
        content = hashlib.sha256(f"{file.header_digest()}\n{weights}\n".encode()).hexdigest()
        return {"weights": weights, "tokenizer": file.tokenizer_digest(), "content": content}

    return kept_digests([file.path], {"weights", "tokenizer", "content"}, compute)


def config_identity(file: GgufFile, config: LlamaConfig, digests: dict[str, str]) -> dict[str, str]:
    """The fields of the identity, all as text."""
    factors = rope_factors(file, config)
    return {
        "architecture": ARCHITECTURE,
        "weights": digests["weights"],
        "tokenizer": digests["tokenizer"],
        "rope": rope_text(config, factors_digest(factors)),
        "key_layout": KEY_LAYOUT,
        "context": str(config.context),
    }


def gguf_identity(
    path: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
) -> dict[str, str]:
    """The fields of the identity of the model in a GGUF file.

    Args:
        path: the file.
        progress: called as progress(done, total) with bytes of weights, where they are not known.

    Returns:
        architecture, weights, tokenizer, rope, key_layout and context (in decimal). A converted
        model carries them as metadata under `onnx_light.identity.<field>`.

    Raises:
        ModelError: as `from_gguf`.
        OSError: the file cannot be read.
    """
    with GgufFile(path) as file:
        config = read_config(file)
        total = sum(tensor.nbytes for tensor in file.tensors.values())
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress(done, total)

        return config_identity(file, config, gguf_digests(file, advance))
