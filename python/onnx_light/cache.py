"""The KV cache of one attention layer as an immutable value."""

from collections.abc import Sequence as _Sequence

from onnx_light._core import (
    CacheComparison,
    CachePolicy,
    Page,
    PagedCache,
    PageError,
    PageFormat,
    PagePayload,
    Pages,
    paged_attention,
    quantize_paged_cache,
)

__all__ = [
    "CacheComparison",
    "CachePolicy",
    "Page",
    "PageError",
    "PageFormat",
    "PagePayload",
    "PagedCache",
    "Pages",
    "paged_attention",
    "quantize_paged_cache",
]

# Where they are public, and where pickles look for them.
for _public in (CachePolicy, PageFormat, PagedCache):
    _public.__module__ = "onnx_light"
for _class in (CacheComparison, Page, PageError, PagePayload, Pages):
    _class.__module__ = __name__
_Sequence.register(Pages)
