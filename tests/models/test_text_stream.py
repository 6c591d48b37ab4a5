"""Text from tokens that come one by one: whole characters and stop texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gguf_samples import byte_letters, tokenizer_lists, write_vocabulary
from tokenizers import Tokenizer

from onnx_light.models import ModelError, TextStream, tokenizer_from_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_from_gguf(write_vocabulary(tmp_path_factory.mktemp("v") / "v.gguf"))


def byte_ids(data: bytes) -> list[int]:
    """One token for each byte: ids 3 to 258 of the small vocabularies."""
    letters = byte_letters()
    tokens = tokenizer_lists(300)[0]
    return [tokens.index(letters[byte]) for byte in data]


def pieces(stream: TextStream, ids: list[int]) -> list[str]:
    return [*(stream.push(token) for token in ids), stream.finish()]


def test_a_character_comes_with_its_last_byte(tokenizer: Tokenizer) -> None:
    got = pieces(TextStream(tokenizer), byte_ids("é漢🎉a".encode()))
    assert got == ["", "é", "", "", "漢", "", "", "", "🎉", "a", ""]


def test_bytes_that_are_no_text(tokenizer: Tokenizer) -> None:
    for data in (b"a\xffb", b"\xe6\xbc", b"\xe6\xbcx", b"\xf0\x9f\x8e", b"\xc0\xafz"):
        got = pieces(TextStream(tokenizer), byte_ids(data))
        assert "".join(got) == data.decode(errors="replace")
    # What cannot become a character any more does not wait for the end.
    assert pieces(TextStream(tokenizer), byte_ids(b"\xe6x")) == ["", "\ufffdx", ""]


def test_equals_decoding_at_once(tokenizer: Tokenizer) -> None:
    chooser = random.Random(3)
    count = tokenizer.get_vocab_size()
    for _ in range(200):
        ids = [chooser.randrange(count) for _ in range(chooser.randrange(12))]
        ids += byte_ids(chooser.choice(["naïve ", "漢字", "🎉", "\n\t", "x"]).encode())
        assert "".join(pieces(TextStream(tokenizer), ids)) == tokenizer.decode(ids)


def test_equals_decoding_at_once_with_a_real_vocabulary(smollm: Path) -> None:
    tokenizer = tokenizer_from_gguf(smollm)
    for text in ("naïve 漢字 x2\r\n\n", "👩‍👩‍👧 <|im_start|>user\n1.5 e\u0301", " \u00a0\u0001"):
        ids = tokenizer.encode(text).ids
        assert "".join(pieces(TextStream(tokenizer), ids)) == tokenizer.decode(ids)


def test_control_tokens_have_no_text_and_others_have(tokenizer: Tokenizer) -> None:
    assert pieces(TextStream(tokenizer), [1, 2, 0]) == ["", "<tool>", "", ""]


def test_a_token_past_the_vocabulary(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="no token 300"):
        TextStream(tokenizer).push(300)


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one\ntwo", ["\n"], "one"),
        ("one END two", ["END"], "one "),
        ("one ENDE", ["E", "END"], "one "),
        ("aaab", ["aab"], "a"),
        ("ababac", ["abac"], "ab"),
        ("漢字漢", ["字"], "漢"),
        ("a EN", ["END"], "a EN"),
        ("END", ["END"], ""),
    ],
)
def test_stop_texts(tokenizer: Tokenizer, text: str, stop: list[str], expected: str) -> None:
    stream = TextStream(tokenizer, stop)
    seen = ""
    for token in byte_ids(text.encode()):
        seen += stream.push(token)
        assert expected.startswith(seen)  # nothing comes out that has to be taken back
        if stream.stopped:
            break
    assert stream.stopped is (expected != text)
    assert seen + stream.finish() == expected
    assert stream.finish() == ""


def test_nothing_comes_after_a_stop(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["b"])
    assert pieces(stream, byte_ids(b"abc")) == ["a", "", "", ""]


def test_an_empty_stop_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="empty"):
        TextStream(tokenizer, ["x", ""])
