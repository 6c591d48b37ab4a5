"""From token ids, one at a time, to text: whole characters only, up to a stop text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onnx_light.models.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def _byte_of_letter() -> dict[str, int]:
    """Byte-level vocabularies write a byte that is no visible letter as one from U+0100 on."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {chr(byte): byte for byte in visible}
    return letters | {chr(256 + index): byte for index, byte in enumerate(hidden)}


class TextStream:
    """The text of tokens that arrive one by one.

    A character whose bytes are spread over tokens appears with its last one; bytes that are no
    UTF-8 appear as U+FFFD. Control tokens have no text. Text that may be the begin of a stop text
    is held back until the next tokens tell.

    Attributes:
        stopped: whether a stop text came; nothing comes out from it on.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Iterable[str] = ()) -> None:
        """Begins a text.

        Args:
            tokenizer: of `tokenizer_from_gguf`.
            stop: texts that end the text; they are no part of it.

        Raises:
            ModelError: a stop text is empty.
        """
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        if "" in self._stop:
            raise ModelError("models.option", "stop", "an empty text; it would end every answer")
        self._added = tokenizer.get_added_tokens_decoder()
        self._bytes = _byte_of_letter()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def push(self, token: int) -> str:
        """The text that is certain with this token and has not come out yet."""
        return self._advance(self._decoder.decode(self._bytes_of(token)), is_last=False)

    def finish(self) -> str:
        """The rest, when no token follows."""
        return self._advance(self._decoder.decode(b"", final=True), is_last=True)

    def _bytes_of(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else added.content.encode()
        letters = self._tokenizer.id_to_token(token)
        if letters is None:
            raise ModelError("models.token", "", f"the tokenizer has no token {token}")
        if all(letter in self._bytes for letter in letters):
            return bytes(self._bytes[letter] for letter in letters)
        return letters.encode()  # as the decoder of tokenizers takes it

    def _advance(self, text: str, *, is_last: bool) -> str:
        if self.stopped:
            return ""
        self._held += text
        places = [place for stop in self._stop if (place := self._held.find(stop)) >= 0]
        self.stopped = bool(places)
        end = len(self._held)
        if self.stopped:
            end = min(places)
        elif not is_last:
            end -= self._uncertain()
        out, self._held = self._held[:end], "" if self.stopped else self._held[end:]
        return out

    def _uncertain(self) -> int:
        """How many of the last letters are the begin of a stop text."""
        most = max((len(stop) - 1 for stop in self._stop), default=0)
        for count in range(min(most, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stop):
                return count
        return 0
