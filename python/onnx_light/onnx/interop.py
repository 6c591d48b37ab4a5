"""Messages of the onnx package and ours: one becomes the other, by way of the bytes."""

from __future__ import annotations

import importlib
from typing import Any, TypeVar

from onnx_light.onnx_py._onnxpyprotoop import Message

_AnyMessage = TypeVar("_AnyMessage", bound=Message)

# The package itself does not offer all of its messages.
_MODULES = ("onnx", "onnx.onnx_ml_pb2", "onnx.onnx_data_pb2", "onnx.onnx_operators_ml_pb2")


def to_onnx(message: Message) -> Any:
    """The message of the onnx package with the same name and content.

    Fields that onnx does not know travel as unknown fields.

    Raises:
        ImportError: the onnx package is not installed.
        TypeError: onnx has no message of that name.
        ValueError: protobuf refuses the message (2 GiB at most, 100 levels).
    """
    converted = _onnx_class(type(message))()
    converted.ParseFromString(message.SerializeToString())
    return converted


def from_onnx(cls: type[_AnyMessage], message: Any) -> _AnyMessage:
    """A new message of class `cls` with the content of one of the onnx package.

    Raises:
        TypeError: `message` is not of the onnx class with the name of `cls`.
    """
    expected = _onnx_class(cls)
    if not isinstance(message, expected):
        raise TypeError(
            f"{cls.__qualname__}.from_onnx takes an onnx.{cls.__qualname__}, "
            f"not {type(message).__module__}.{type(message).__qualname__}"
        )
    return cls.FromString(message.SerializeToString())


def _onnx_class(cls: type[Message]) -> type[Any]:
    for module_name in _MODULES:
        found: Any = importlib.import_module(module_name)
        for name in cls.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise TypeError(f"the onnx package has no message {cls.__qualname__}")
