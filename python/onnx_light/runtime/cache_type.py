"""The type of a cache value in a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx_light.errors import CodedError
from onnx_light.onnx import ModelProto, StructTypeProto, TensorProto, TypeProto

if TYPE_CHECKING:
    from onnx_light.cache import PagedCache

TYPE_NAME = "onnx_light.PagedKVCache"
_VERSION_KEY = "onnx_light.type_version"
_VERSION = "1"
_SIDES = ("key", "value")


def cache_type(
    batch: int | None = None,
    heads: int | None = None,
    key_width: int | None = None,
    value_width: int | None = None,
) -> TypeProto:
    """The TypeProto for graph inputs and outputs that are caches.

    Args:
        batch, heads, key_width, value_width: what every such cache has; None: anything.
    """
    kind = TypeProto()
    struct = kind.add_struct_type()
    struct.name = TYPE_NAME
    struct.metadata_props.add(key=_VERSION_KEY, value=_VERSION)
    blocks = struct.add_structure().field.add(name="blocks").add_type()
    block = blocks.add_sequence_type().add_elem_type().add_struct_type().add_structure()
    for name in ("start", "length"):
        scalar = block.field.add(name=name).add_type().add_tensor_type()
        scalar.elem_type = TensorProto.INT64
        scalar.add_shape()
    for side, width in zip(_SIDES, (key_width, value_width), strict=True):
        tensor = block.field.add(name=side).add_type().add_tensor_type()
        tensor.elem_type = TensorProto.FLOAT
        shape = tensor.add_shape()
        for size in (batch, heads, None, width):
            dim = shape.dim.add()
            if size is not None:
                dim.dim_value = size
    return kind


@dataclass(frozen=True)
class CacheShape:
    """What a type says of its caches; None: nothing."""

    batch: int | None = None
    heads: int | None = None
    key_width: int | None = None
    value_width: int | None = None

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
        self._known: Mapping[int, StructTypeProto] = {
            struct.type_id: struct for struct in model.struct_types if struct.HasField("type_id")
        }

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
            CodedError: ``runtime.unsupported``: another structured type, named.
        """
        if not kind.HasField("struct_type"):
            _refuse(path, "a sequence, map or optional of structured values")
        struct = self._resolved(kind.struct_type, path)
        version = {item.key: item.value for item in struct.metadata_props}.get(_VERSION_KEY)
        if struct.name != TYPE_NAME:
            _refuse(path, f"the structured type {struct.name!r}; {TYPE_NAME!r} is known")
        if version != _VERSION:
            _refuse(path, f"{TYPE_NAME} of version {version!r}; {_VERSION!r} is known")
        found: dict[str, int] = {}
        for side, dims in self._payload_dims(struct, path):
            for name, axis in (("batch", 0), ("heads", 1), (f"{side}_width", 3)):
                if dims[axis] is not None:
                    found[name] = dims[axis] or 0
        return CacheShape(**found)

    def _resolved(self, struct: StructTypeProto, path: str) -> StructTypeProto:
        for _ in range(100):
            if not struct.HasField("type_ref"):
                return struct
            if struct.type_ref not in self._known:
                break
            struct = self._known[struct.type_ref]
        raise CodedError("runtime.type", path, f"no struct_types entry for {struct.type_ref}")

    def _payload_dims(
        self, struct: StructTypeProto, path: str
    ) -> list[tuple[str, list[int | None]]]:
        """The dims that the type gives for keys and values, where it has them."""
        found = []
        for blocks in struct.structure.field:
            element = blocks.type.sequence_type.elem_type
            if blocks.name != "blocks" or not element.HasField("struct_type"):
                continue
            for field in self._resolved(element.struct_type, path).structure.field:
                dims = field.type.tensor_type.shape.dim
                if field.name in _SIDES and len(dims) == 4:
                    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
                    found.append((field.name, sizes))
        return found


def _refuse(path: str, what: str) -> None:
    raise CodedError("runtime.unsupported", path, f"{what}; not supported in ONNX Runtime")
