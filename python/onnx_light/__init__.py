"""The KV cache of a language model as a value that outlives the process.

``onnx_light.onnx`` holds the message classes: the standard ONNX messages and those of this project.
"""

from importlib.metadata import version as _version

__all__ = ["__version__"]

__version__ = _version("onnx_light")
