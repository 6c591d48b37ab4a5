"""The KV cache of a language model as a value that outlives the process.

``PagedCache`` is the cache of one attention layer, ``CachePolicy`` and ``PageFormat`` say how its
pages are stored, ``ModelIdentity`` says which model made it, and
``onnx_light.snapshot`` keeps both in files. ``onnx_light.onnx`` holds the message classes: the
standard ONNX messages and those of this project.
"""

from onnx_light.cache import CachePolicy, PagedCache, PageFormat
from onnx_light.identity import ModelIdentity

__all__ = ["CachePolicy", "ModelIdentity", "PageFormat", "PagedCache", "__version__"]

__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # half of the time of importing all the rest

    return version("onnx_light")
