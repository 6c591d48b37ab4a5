"""The error of this package: something about a model, a tokenizer or an option is wrong."""

from __future__ import annotations

from onnx_light.errors import CodedError


class ModelError(CodedError):
    """A model file, a tokenizer or an option that cannot be used; codes are ``models.*``."""
