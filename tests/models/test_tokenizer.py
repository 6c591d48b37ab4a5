"""Tokenizers from GGUF files: against llama.cpp's answers and against byte pairs by hand."""

from __future__ import annotations

import itertools
import json
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_samples import add_tokenizer, byte_letters, finish, tokenizer_lists, write_vocabulary
from tokenizers import Tokenizer

from onnx_light.models import ModelError, chat_template, render_chat, tokenizer_from_gguf

# Made once with llama.cpp (llama-cpp-python 0.3.36, `tokenize(text, add_bos=True, special=True)`).
TABLE = json.loads(Path(__file__).with_name("smollm_tokens.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def smollm_tokenizer(smollm: Path) -> Tokenizer:
    return tokenizer_from_gguf(smollm)


@pytest.mark.parametrize(("text", "ids"), TABLE)
def test_equals_llama_cpp(smollm_tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    assert smollm_tokenizer.encode(text).ids == ids


def test_decode_gives_the_text_back(smollm_tokenizer: Tokenizer) -> None:
    tokenizer = smollm_tokenizer
    for text in ("naïve 漢字 x2", " a\n\n  b 12.5", "🎉👩‍👩‍👧 e\u0301"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def merge(piece: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte pairs by the book: the best rank first, leftmost of equals."""
    letters = byte_letters()
    parts = [letters[byte] for byte in piece.encode()]
    while len(parts) > 1:
        pairs = list(itertools.pairwise(parts))
        best = min(range(len(pairs)), key=lambda i: (ranks.get(pairs[i], 10**9), i))
        if pairs[best] not in ranks:
            return parts
        parts[best : best + 2] = ["".join(pairs[best])]
    return parts


def class_of(letter: str) -> str:
    category = unicodedata.category(letter)
    if category[0] in "LN":
        return category[0]
    return "S" if letter.isspace() else "P"


def split_words(text: str) -> list[str]:
    """Runs of letters, of digits or of signs with one space before them; runs of white space."""
    pieces, at = [], 0
    while at < len(text):
        short = next((s for s in ("'s", "'ll") if text.startswith(s, at)), None)
        first = at + (text[at] == " " and at + 1 < len(text) and class_of(text[at + 1]) != "S")
        kind, end = class_of(text[first]), first
        while end < len(text) and class_of(text[end]) == kind:
            end += 1
        if short:
            end = at + len(short)
        elif kind == "S" and end < len(text) and end - at > 1:
            end -= 1
        pieces.append(text[at:end])
        at = end
    return pieces


def split_smollm(text: str) -> list[str]:
    """Every digit alone, then words."""
    pieces, start = [], 0
    for index, letter in enumerate([*text, None]):
        if letter is None or class_of(letter) == "N":
            pieces += split_words(text[start:index])
            pieces += [letter] if letter else []
            start = index + 1
    return pieces


@pytest.mark.parametrize(("pre", "split"), [("smollm", split_smollm), ("gpt-2", split_words)])
def test_byte_pairs_by_hand(tmp_path: Path, pre: str, split: Callable[[str], list[str]]) -> None:
    tokens, _, merges = tokenizer_lists(300)
    ids = {token: number for number, token in enumerate(tokens)}
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(merges)}
    tokenizer = tokenizer_from_gguf(write_vocabulary(tmp_path / "v.gguf", pre))
    chooser = random.Random(4)
    parts = ["the", " the", "ing", "123", " 12", "3", "'ll", "'s", " ", "  ", "\n", ".", "é", "漢"]
    for _ in range(500):
        text = "".join(chooser.choices(parts, k=chooser.randint(1, 12)))
        expected = [ids[part] for piece in split(text) for part in merge(piece, ranks)]
        assert tokenizer.encode(text).ids == expected, text


def test_digits_are_apart_in_smollm_only(tmp_path: Path) -> None:
    single = tokenizer_from_gguf(write_vocabulary(tmp_path / "a.gguf", "smollm"))
    grouped = tokenizer_from_gguf(write_vocabulary(tmp_path / "b.gguf", "gpt-2"))
    assert [len(t.encode("123").ids) for t in (single, grouped)] == [3, 1]


def test_llama_bpe_takes_three_digits_and_adds_bos(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(write_vocabulary(tmp_path / "v.gguf", "llama-bpe"))
    ids = tokenizer_lists(300)[0].index
    assert tokenizer.encode("1234").ids == [1, ids("123"), ids("4")]
    assert tokenizer.encode("1234", add_special_tokens=False).ids == [ids("123"), ids("4")]


def test_control_and_user_defined_tokens(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(write_vocabulary(tmp_path / "v.gguf"))
    ids = tokenizer.encode("<|bos|>the<tool>the<|end|>").ids
    the = tokenizer_lists(300)[0].index("the")
    assert ids == [1, the, 2, the, 0]
    assert tokenizer.decode(ids) == "the<tool>the"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|bos|>the<tool>the<|end|>"


def test_flags_frame_a_text(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", add_bos_token=True, add_eos_token=True)
    the = tokenizer_lists(300)[0].index("the")
    assert tokenizer_from_gguf(path).encode("the").ids == [1, the, 0]


@pytest.mark.parametrize("pre", ["default", "qwen2", "deepseek-llm", "smollm2"])
def test_other_pre_tokenizers_are_named(tmp_path: Path, pre: str) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", pre)
    with pytest.raises(ModelError, match="smollm") as caught:
        tokenizer_from_gguf(path)
    assert repr(pre) in caught.value.message
    assert caught.value.path == str(path)


def broken(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    tokens, kinds, merges = tokenizer_lists(300)
    lists = {"tokens": tokens, "kinds": kinds, "merges": merges, "model": "gpt2"}
    change(lists)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(lists["model"])
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(lists["tokens"])
    writer.add_token_types(lists["kinds"])
    writer.add_token_merges(lists["merges"])
    finish(writer)
    return path


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda lists: lists.update(model="llama"), "'llama'"),
        (lambda lists: lists["tokens"].__setitem__(9, "the"), "'the' occurs twice"),
        (lambda lists: lists["merges"].append("the \u6f22"), "merge"),
        (lambda lists: lists["merges"].append("the"), "merge"),
        (lambda lists: lists["merges"].append("t h e"), "merge"),
        (lambda lists: lists["kinds"].pop(), "299 token types"),
    ],
)
def test_tables_that_do_not_go_together(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], word: str
) -> None:
    path = broken(tmp_path / "v.gguf", change)
    with pytest.raises(ModelError, match=word):
        tokenizer_from_gguf(path)


def test_a_missing_bos_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, 300, add_bos_token=True)
    writer.kv_data[0]["tokenizer.ggml.bos_token_id"].value = 300
    finish(writer)
    with pytest.raises(ModelError, match="bos_token_id is 300"):
        tokenizer_from_gguf(path)


def with_template(path: Path, template: str) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, 300)
    writer.add_chat_template(template)
    finish(writer)
    return path


def test_chat_template_of_the_real_model(smollm: Path) -> None:
    assert chat_template(smollm).startswith("{% for message in messages %}")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    assert render_chat(smollm, question) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    answered = [{"role": "system", "content": "S"}, *question]
    assert render_chat(smollm, answered, add_generation_prompt=False) == (
        "<|im_start|>system\nS<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    )


def test_templates_see_tokens_and_variables(tmp_path: Path) -> None:
    template = "{{ bos_token }}{{ tools | tojson }}{{ eos_token }}"
    path = with_template(tmp_path / "v.gguf", template)
    assert chat_template(path) == template
    assert render_chat(path, [], tools=["<é>"]) == '<|bos|>["<é>"]<|end|>'


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{% for %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
    ],
)
def test_templates_that_fail_or_reach_out(tmp_path: Path, template: str) -> None:
    path = with_template(tmp_path / "v.gguf", template)
    with pytest.raises(ModelError, match="chat template failed") as caught:
        render_chat(path, [])
    assert caught.value.code == "models.chat_template"


def test_no_template(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.chat_template"):
        chat_template(write_vocabulary(tmp_path / "v.gguf"))
