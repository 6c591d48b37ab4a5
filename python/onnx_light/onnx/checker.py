"""Whether a model is well-formed: our rules, and those of the ``onnx`` package where it is."""

from __future__ import annotations

import os

from onnx_light import _core
from onnx_light.errors import CodedError
from onnx_light.onnx.files import load_model
from onnx_light.onnx_py._onnxpyprotoop import ModelProto, ParseError


class ValidationError(CodedError):
    """A model that is not well-formed; the path is that of the message or field."""


def check_model(model: ModelProto | bytes | str | os.PathLike[str]) -> None:
    """Checks a model, all its subgraphs and functions included.

    Nothing is missing, names are unique, payloads have their size, references are resolved, caches
    and encoded values are as they must be, persistent bindings are well typed. Where ``onnx`` is
    installed, ``onnx.checker`` then sees the standard part: the model without the fields of this
    project, with small tensors for large or external ones and INT64 scalars for structured values.

    Args:
        model: the model, its bytes, or the path of its file. With a path, files of external data
            are looked at, too; without one only the references to them.

    Raises:
        ValidationError: the first thing that is wrong, with the path and a stable code:
            ``check.*``, ``cache.*``, ``tensor.*``, ``external.*``, or ``check.onnx`` for what
            ``onnx.checker`` says, without a path.
        ParseError: the bytes are no model.
        OSError: a file cannot be read.
    """
    folder = None
    if isinstance(model, str | os.PathLike):
        folder = os.path.dirname(os.path.abspath(model))
        model = load_model(model, load_external_data=False)
    elif isinstance(model, bytes):
        model = ModelProto.FromString(model)
    elif not isinstance(model, ModelProto):
        raise TypeError(f"check_model takes a ModelProto, bytes or a path, not {type(model)}")
    try:
        _core.check_model(model, folder)
        _check_standard_part(model)
    except ParseError:
        raise
    except CodedError as error:
        raise ValidationError(error.code, error.path, error.message) from None


def _check_standard_part(model: ModelProto) -> None:
    try:
        import onnx.checker
    except ModuleNotFoundError as error:
        if error.name not in ("onnx", "onnx.checker"):
            raise
        return
    try:
        onnx.checker.check_model(_core.standard_part(model))
    except onnx.checker.ValidationError as error:
        raise CodedError("check.onnx", "", str(error)) from None
    except UnicodeDecodeError as error:  # its message quotes a name that is no UTF-8
        text = error.object.decode("utf-8", "backslashreplace")
        raise CodedError("check.onnx", "", text) from None
