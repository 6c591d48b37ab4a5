"""The messages of ONNX and of paged caches, and functions in the style of the `onnx` package.

The message classes, their enums and options have the Python interface of protobuf and come from the
extension module ``onnx_light.onnx_py._onnxpyprotoop``.
"""

from onnx_light.onnx.checker import ValidationError, check_model
from onnx_light.onnx.files import (
    load,
    load_from_string,
    load_model,
    load_model_from_string,
    save,
    save_model,
)
from onnx_light.onnx.tensors import from_array, to_array
from onnx_light.onnx_py import _onnxpyprotoop
from onnx_light.onnx_py._onnxpyprotoop import *  # noqa: F403

__all__ = [
    "ValidationError",
    "check_model",
    "from_array",
    "load",
    "load_from_string",
    "load_model",
    "load_model_from_string",
    "save",
    "save_model",
    "to_array",
]
__all__ += [name for name in vars(_onnxpyprotoop) if not name.startswith("_")]
