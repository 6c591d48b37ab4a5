"""ONNX Runtime with a state between runs.

Needs the extra `runtime` (onnxruntime).
"""

from onnx_light.runtime.session import InferenceSession

__all__ = ["InferenceSession"]
