"""The tokens with which a model ends what it says."""

from __future__ import annotations

import os

from onnx_light.models.errors import ModelError
from onnx_light.models.gguf_file import GgufFile

# End of the sequence, of a turn in a chat, of a message to a tool.
_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
# Files that name the end of a sequence only, leave the end of a turn to its usual name.
_NAMES = frozenset({"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>"})
_CONTROL = 3


def end_tokens(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The ids that end an answer, ascending, for `stop` of `generate`.

    Those that the metadata of a GGUF file name, and its control tokens with the usual names.

    Raises:
        ModelError: the metadata name a token that does not exist, or this is no readable GGUF file.
        OSError: the file cannot be read.
    """
    with GgufFile(path) as file:
        tokens = file.metadata.get("tokenizer.ggml.tokens") or []
        kinds = file.metadata.get("tokenizer.ggml.token_type") or []
        pairs = enumerate(zip(tokens, kinds, strict=False))
        ids = {i for i, (token, kind) in pairs if kind == _CONTROL and token in _NAMES}
        for key in _KEYS:
            value = file.metadata.get(key)
            if value is None:
                continue
            is_id = isinstance(value, int) and not isinstance(value, bool)
            if not is_id or not 0 <= value < len(tokens):
                message = f"{key} is {value!r}; there are {len(tokens)} tokens"
                raise ModelError("models.value", file.path, message)
            ids.add(value)
    return tuple(sorted(ids))
