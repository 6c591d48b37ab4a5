"""The KV cache of one attention layer as an immutable value."""

from collections.abc import Sequence as _Sequence

from onnx_light._core import (
    CacheComparison,
    Page,
    PagedCache,
    PageError,
    PagePayload,
    Pages,
)

__all__ = ["CacheComparison", "Page", "PageError", "PagePayload", "PagedCache", "Pages"]

# Where they are public, and where pickles look for them.
PagedCache.__module__ = "onnx_light"
for _class in (CacheComparison, Page, PageError, PagePayload, Pages):
    _class.__module__ = __name__
_Sequence.register(Pages)
