"""The tokenizer and the chat template that a GGUF file carries.

Byte-pair tokenizers (`gpt2` in GGUF) split the text first, by rules that the file only names. A
wrong rule changes the tokens without any error, so that only names whose rule is known exactly are
taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from onnx_light.models.errors import ModelError
from onnx_light.models.gguf_file import GgufFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL = 3
_USER_DEFINED = 4

# Contractions in any case, words with one leading sign, up to three digits, signs, line ends.
_LLAMA3_SPLIT = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> PreTokenizer:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    from tokenizers import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2()])


def _split(pattern: str) -> Callable[[], PreTokenizer]:
    def make() -> PreTokenizer:
        from tokenizers import Regex, pre_tokenizers

        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, rest])

    return make


_PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "gpt-2": _gpt2,
    "llama-bpe": _split(_LLAMA3_SPLIT),
    "smollm": _single_digits,
}
# Those that take a whole piece of text as one token where the vocabulary has it.
_IGNORE_MERGES = frozenset({"llama-bpe"})
# Those that begin with bos where the file does not say.
_BOS_BY_DEFAULT = frozenset({"llama-bpe"})


class _Metadata:
    """The keys below `tokenizer.ggml.`, checked."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def fail(self, message: str) -> ModelError:
        return ModelError("models.tokenizer", self.path, message)

    def get(self, key: str) -> Any:
        return self.values.get(f"tokenizer.ggml.{key}")

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        return default if value is None else bool(value)

    def list_of(self, key: str, kind: type) -> list[Any]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
            raise self.fail(f"tokenizer.ggml.{key} is missing or no array of {kind.__name__}")
        return value


def _vocabulary(metadata: _Metadata) -> list[str]:
    tokens = metadata.list_of("tokens", str)
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            raise metadata.fail(f"the token {token!r} occurs twice")
        seen.add(token)
    return tokens


def _merges(metadata: _Metadata, known: set[str]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for text in metadata.list_of("merges", str):
        left, separator, right = text.partition(" ")
        if not separator or " " in right or not {left, right, left + right} <= known:
            raise metadata.fail(f"the merge {text!r} is no pair of tokens that gives a token")
        merges.append((left, right))
    return merges


def _pre_tokenizer_name(metadata: _Metadata) -> str:
    model = metadata.get("model")
    if model != "gpt2":
        raise metadata.fail(f"the tokenizer model is {model!r}; 'gpt2' (byte pairs) is supported")
    name = metadata.get("pre")
    if name not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise metadata.fail(f"the pre-tokenizer is {name!r}; known are {known}")
    return str(name)


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], metadata: _Metadata) -> None:
    """Control tokens and tokens that are taken out of the text before it is split."""
    from tokenizers import AddedToken

    kinds = metadata.list_of("token_type", int)
    if len(kinds) != len(tokens):
        raise metadata.fail(f"{len(kinds)} token types for {len(tokens)} tokens")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    defined = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in defined])


def _frame(metadata: _Metadata, tokens: list[str], name: str) -> Any:
    """A post-processor that adds the begin and end of a text, or None."""
    from tokenizers import processors

    flags = {
        "bos": metadata.flag("add_bos_token", name in _BOS_BY_DEFAULT),
        "eos": metadata.flag("add_eos_token", False),
    }
    special: dict[str, tuple[str, int]] = {}
    for side in (side for side, wanted in flags.items() if wanted):
        number = metadata.get(f"{side}_token_id")
        if not isinstance(number, int) or not 0 <= number < len(tokens):
            raise metadata.fail(f"add_{side}_token is set, but {side}_token_id is {number!r}")
        special[side] = (tokens[number], number)
    if not special:
        return None
    first = f"{special['bos'][0]} " if "bos" in special else ""
    last = f" {special['eos'][0]}" if "eos" in special else ""
    return processors.TemplateProcessing(
        single=f"{first}$A{last}",
        pair=f"{first}$A{last} {first}$B{last}",
        special_tokens=list(special.values()),
    )


def tokenizer_from_gguf(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a GGUF file, equal to llama.cpp's token for token.

    Text is split at the file's control and user-defined tokens first, as `encode` of any tokenizer
    does; ``tokenizer.encode_special_tokens = True`` takes control tokens in a text as plain text.
    Bytes that the vocabulary has no token for are left out.

    Raises:
        ModelError: no byte-pair tokenizer, a pre-tokenizer that is not known (named), tables that
            do not go together, or no readable GGUF file.
        OSError: the file cannot be read.
    """
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE

    with GgufFile(path) as file:
        metadata = _Metadata(file.path, file.metadata)
        name = _pre_tokenizer_name(metadata)
        tokens = _vocabulary(metadata)
        merges = _merges(metadata, set(tokens))
        ids = {token: number for number, token in enumerate(tokens)}
        tokenizer = Tokenizer(BPE(ids, merges, ignore_merges=name in _IGNORE_MERGES))
        tokenizer.pre_tokenizer = _PRE_TOKENIZERS[name]()
        tokenizer.decoder = decoders.ByteLevel()
        _add_special_tokens(tokenizer, tokens, metadata)
        frame = _frame(metadata, tokens, name)
        if frame is not None:
            tokenizer.post_processor = frame
        return tokenizer
