"""The type of a cache value in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx_light._core import CACHE_TYPE_NAME, make_cache_type, read_cache_type
from onnx_light.errors import CodedError
from onnx_light.onnx import ModelProto, TypeProto

if TYPE_CHECKING:
    from onnx_light.cache import PagedCache


def cache_type(
    batch: int | None = None,
    heads: int | None = None,
    key_width: int | None = None,
    value_width: int | None = None,
) -> TypeProto:
    """The TypeProto for graph inputs and outputs that are caches.

    Args:
        batch, heads, key_width, value_width: what every such cache has; None: anything.

    Raises:
        CodedError: ``check.cache_type``: a size that is not positive.
    """
    return make_cache_type(batch, heads, key_width, value_width)


@dataclass(frozen=True)
class CacheShape:
    """What a type says of its caches; None: nothing."""

    batch: int | None = None
    heads: int | None = None
    key_width: int | None = None
    value_width: int | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The same, with 0 for nothing."""
        return self.batch or 0, self.heads or 0, self.key_width or 0, self.value_width or 0

    def check(self, name: str, cache: PagedCache) -> None:
        """Whether a cache has this type. An empty one has every.

        Raises:
            CodedError: ``runtime.shape``, at `name`.
        """
        if not len(cache):
            return
        for what in ("batch", "heads", "key_width", "value_width"):
            wanted, found = getattr(self, what), getattr(cache, what)
            if wanted is not None and found != wanted:
                raise CodedError(
                    "runtime.shape",
                    name,
                    f"a cache with {what.replace('_', ' ')} {found}; the model takes {wanted}",
                )


class TypeReader:
    """Reads the types of one model, which may refer to its struct_types."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model

    def is_structured(self, kind: TypeProto) -> bool:
        """Whether values of this type are structured, or hold such values."""
        for _ in range(100):
            if kind.HasField("struct_type"):
                return True
            if kind.HasField("sequence_type"):
                kind = kind.sequence_type.elem_type
            elif kind.HasField("optional_type"):
                kind = kind.optional_type.elem_type
            elif kind.HasField("map_type"):
                kind = kind.map_type.value_type
            else:
                return False
        return True

    def cache_shape(self, kind: TypeProto, path: str) -> CacheShape:
        """Of the type of a cache.

        Raises:
            CodedError: ``runtime.unsupported``: another structured type, named;
                ``check.cache_type``: one with the name of cache values that is none;
                ``cache.reference``, ``cache.layout``: what it refers to.
        """
        found = read_cache_type(kind, self._model, path)
        if found is None:
            raise CodedError(
                "runtime.unsupported", path, f"{_name(kind)}; {CACHE_TYPE_NAME!r} is what can run"
            )
        return CacheShape(*found)


def _name(kind: TypeProto) -> str:
    if not kind.HasField("struct_type"):
        return "a sequence, map or optional of structured values"
    struct = kind.struct_type
    if struct.HasField("type_ref"):
        return f"the structured type with type_id {struct.type_ref}"
    return f"the structured type {struct.name!r}"
