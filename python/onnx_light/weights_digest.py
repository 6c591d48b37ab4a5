"""A digest over all tensors of an ONNX model, wherever their bytes lie."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx_light.errors import CodedError
from onnx_light.onnx import (
    EncodedValueProto,
    ModelProto,
    TensorProto,
    external,
    from_array,
    to_array,
)
from onnx_light.onnx.walk import Payload, find_payloads

_ENCODED = "ENCODED"


def weights_digest(model: ModelProto, folder: str | os.PathLike[str]) -> str:
    """``sha256:`` and SHA-256 in hex over the model's tensors.

    It is over the UTF-8 lines ``name<tab>type<tab>d0,d1<tab>sha256 of the bytes<newline>``, sorted
    by name, with ONNX's names of types. Initializers of the main graph have their names, any other
    tensor (of nodes, subgraphs, functions) its place: ``graph.node[3].attribute[0].t``. The bytes
    are those of raw_data, whichever way they are stored; of strings, each after its length in 8
    bytes, lowest first. Links are followed: nothing but the digest comes out.

    Args:
        model: the model; its payloads in other files may still be references.
        folder: what these are relative to.

    Raises:
        CodedError: ``external.*`` for a reference that is refused, ``tensor.*`` for a tensor whose
            parts do not go together; the path is its place.
        OSError: a file cannot be read.
    """
    lines = []
    for payload in find_payloads(model):
        content = hashlib.sha256()
        try:
            for piece in _pieces(payload, folder):
                content.update(piece)
        except CodedError as error:
            raise _at(payload, error) from None
        line = f"{_name(payload)}\t{_type(payload.message)}\t{_dims(payload.message)}"
        lines.append((_name(payload), f"{line}\t{content.hexdigest()}\n"))
    digest = hashlib.sha256()
    for _, line in sorted(lines):
        digest.update(line.encode())
    return f"sha256:{digest.hexdigest()}"


def data_files(model: ModelProto, folder: str | os.PathLike[str]) -> list[Path]:
    """The other files that hold payloads of the model, each once, sorted.

    Raises:
        CodedError: ``external.*`` for a reference that is refused.
    """
    locations = set()
    for payload in find_payloads(model):
        if external.is_external(payload.message):
            try:
                locations.add(external.reference(payload.message).location)
            except CodedError as error:
                raise _at(payload, error) from None
    return sorted(Path(folder, location) for location in locations)


def _at(payload: Payload, error: CodedError) -> CodedError:
    return CodedError(error.code, payload.place.path, error.message)


def _name(payload: Payload) -> str:
    message, place = payload
    parent = place.parent
    is_weight = place.field == "initializer" and parent is not None and parent.path == "graph"
    return message.name if is_weight and message.name else place.path


def _type(message: TensorProto | EncodedValueProto) -> str:
    if isinstance(message, EncodedValueProto):
        return _ENCODED
    known = message.data_type in TensorProto.DataType.values()
    return TensorProto.DataType.Name(message.data_type) if known else str(message.data_type)


def _dims(message: TensorProto | EncodedValueProto) -> str:
    if isinstance(message, TensorProto):
        return ",".join(map(str, message.dims))
    shape = message.logical_type.tensor_type.shape
    return ",".join(str(dim.dim_value) for dim in shape.dim)


def _pieces(payload: Payload, folder: str | os.PathLike[str]) -> Iterator[bytes | memoryview]:
    message = payload.message
    if isinstance(message, EncodedValueProto):
        yield from _layout(message)
    if external.is_external(message):
        yield from external.pieces(message, folder, trusted_links=True)
    elif isinstance(message, EncodedValueProto) or message.HasField("raw_data"):
        yield message.payload("raw_data")
    elif message.data_type == TensorProto.STRING:
        yield from _strings(message.string_data)
    else:
        yield from_array(to_array(message)).payload("raw_data")


def _layout(message: EncodedValueProto) -> Iterator[bytes]:
    """What says how the codes of an encoded value are to be read."""
    for field in ("affine", "struct_type"):
        if message.HasField(field):
            yield getattr(message, field).SerializeToString()


def _strings(values: Iterable[bytes]) -> Iterator[bytes]:
    for value in values:
        yield len(value).to_bytes(8, "little")
        yield value
