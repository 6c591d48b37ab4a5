"""ONNX Runtime with a state between runs, and caches as values.

Needs the extra `runtime` (onnxruntime).
"""

from onnx_light.runtime.cache_type import cache_type
from onnx_light.runtime.handles import get_library_path, handle, release, value
from onnx_light.runtime.lowering import lower
from onnx_light.runtime.session import InferenceSession

__all__ = [
    "InferenceSession",
    "cache_type",
    "get_library_path",
    "handle",
    "lower",
    "release",
    "value",
]
