"""The tokens with which a model ends what it says."""

from __future__ import annotations

import os

from onnx_light.models.errors import ModelError
from onnx_light.models.gguf_file import GgufFile

# End of the sequence, of a turn in a chat, of a message to a tool.
_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


def end_tokens(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The ids in a GGUF file's metadata that end an answer, for `stop` of `generate`.

    Raises:
        ModelError: an id is no whole number of 0 or more, or this is no readable GGUF file.
        OSError: the file cannot be read.
    """
    ids: list[int] = []
    with GgufFile(path) as file:
        for key in _KEYS:
            value = file.metadata.get(key)
            if value is None or value in ids:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ModelError("models.value", file.path, f"{key} is {value!r}, no token id")
            ids.append(value)
    return tuple(ids)
