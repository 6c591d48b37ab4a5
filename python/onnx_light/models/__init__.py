"""Decoder models: from a GGUF file to an ONNX model, its tokenizer, and text from a session.

Needs the extra `models` (gguf, tokenizers, jinja2).
"""

from onnx_light.models.chat import chat_template, render_chat
from onnx_light.models.convert_gguf import cached_model, from_gguf
from onnx_light.models.end_tokens import end_tokens
from onnx_light.models.errors import ModelError
from onnx_light.models.generate import generate
from onnx_light.models.gguf_identity import gguf_identity
from onnx_light.models.text_stream import TextStream
from onnx_light.models.tokenizer import tokenizer_from_gguf

__all__ = [
    "ModelError",
    "TextStream",
    "cached_model",
    "chat_template",
    "end_tokens",
    "from_gguf",
    "generate",
    "gguf_identity",
    "render_chat",
    "tokenizer_from_gguf",
]
