"""The tokens that end an answer."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from gguf_samples import add_tokenizer, finish

from onnx_light.models import ModelError, end_tokens


def with_keys(path: Path, **keys: int) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, 300)
    for key, number in keys.items():
        writer.add_uint32(f"tokenizer.ggml.{key}", number)
    finish(writer)
    return path


def test_tokens_that_end_an_answer(tmp_path: Path) -> None:
    assert end_tokens(with_keys(tmp_path / "a.gguf")) == (0,)
    keys = {"eot_token_id": 7, "eom_token_id": 5, "unknown_token_id": 9}
    assert end_tokens(with_keys(tmp_path / "b.gguf", **keys)) == (0, 5, 7)
    with pytest.raises(ModelError, match="eot_token_id is 300"):
        end_tokens(with_keys(tmp_path / "c.gguf", eot_token_id=300))


def test_control_tokens_that_end_by_name(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["<|im_end|>", "<|eot_id|>", "<|im_start|>", "x"])
    writer.add_token_types([3, 1, 3, 1])  # the second is no control token, but plain text
    finish(writer)
    assert end_tokens(path) == (0,)


def test_those_of_a_real_model(smollm: Path) -> None:
    tokens = gguf.GGUFReader(smollm).fields["tokenizer.ggml.tokens"].contents()
    assert [tokens[number] for number in end_tokens(smollm)] == ["<|endoftext|>", "<|im_end|>"]
