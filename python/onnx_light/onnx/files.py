"""Models in files, with the arguments of the functions of the same names in `onnx`."""

from __future__ import annotations

import copy
import os
import re
from typing import IO, Any

from onnx_light.errors import CodedError
from onnx_light.onnx import external
from onnx_light.onnx.tensors import to_array
from onnx_light.onnx.walk import Payload, find_payloads
from onnx_light.onnx_py._onnxpyprotoop import (
    Message,
    ModelProto,
    TensorProto,
    _load_external_data,
    _MessageFile,
)

_Path = str | os.PathLike[str]
_Readable = _Path | IO[bytes]
_Writable = _Path | IO[bytes]

_PROTOBUF = "protobuf"
_ONNX_TEXT = "onnxtxt"
_FORMATS = {
    ".onnx": _PROTOBUF,
    ".pb": _PROTOBUF,
    ".txtpb": "textproto",
    ".textproto": "textproto",
    ".prototxt": "textproto",
    ".pbtxt": "textproto",
    ".json": "json",
    ".onnxjson": "json",
    ".onnxtxt": _ONNX_TEXT,
    ".onnxtext": _ONNX_TEXT,
}
# Payloads in one file begin at multiples of this, so that mapped ones can be used in place.
_ALIGNMENT = 64


def load_model(
    f: _Readable, format: str | None = None, load_external_data: bool = True
) -> ModelProto:
    """Reads a model.

    Args:
        f: the path of a file, or an object with ``read()``.
        format: ``protobuf``, or one that the ``onnx`` package can read (``textproto``, ``json``,
            ``onnxtxt``), which must then be installed. None: by the file's extension, else
            protobuf.
        load_external_data: whether payloads in other files are read, too. They must lie in or
            below the folder of `f`; without it, or where `f` has no path, they stay references.

    Raises:
        ParseError: the bytes are no model.
        CodedError: ``files.format`` for an unknown format; ``external.*`` for a reference to data
            that is refused.
        OSError: a file cannot be read.
    """
    path = _path_of(f)
    chosen = _format_of(path, format)
    if isinstance(f, str | os.PathLike) and chosen == _PROTOBUF:
        model = ModelProto()
        model.ParseFromFile(f)
    else:
        model = _decode(_read(f), chosen)
    if load_external_data and path is not None:
        _load_external_data(model, os.fsencode(os.path.dirname(path)))
    return model


def load_model_from_string(s: bytes | str, format: str = _PROTOBUF) -> ModelProto:
    """Reads a model from bytes, or from the text of a text format. External data stay outside.

    Raises:
        As load_model().
    """
    return _decode(s, format)


def save_model(
    proto: Message | bytes,
    f: _Writable,
    format: str | None = None,
    *,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = True,
    location: str | None = None,
    size_threshold: int = 1024,
    convert_attribute: bool = False,
) -> None:
    """Writes a model. The message in memory stays as it is.

    Files are written under another name first, so that an old file stays whole until the new one
    is; files of external data come before the model.

    Args:
        proto: the message, or the bytes of a model.
        f: the path of a file, or an object with ``write()``.
        format: as for load_model(). Formats of ``onnx`` refuse models with fields or tensors that
            they would lose.
        save_as_external_data: whether raw_data of at least size_threshold bytes goes to other
            files in or below the folder of `f`. Payloads that are external already keep their
            place.
        all_tensors_to_one_file: one file for all; else one for each, named as the tensor where
            that is possible.
        location: the relative path of the one file; None: the name of `f` and ``.data``.
        size_threshold: in bytes.
        convert_attribute: whether payloads in attributes of nodes go there, too.

    Raises:
        CodedError: ``files.format``; ``files.lossy`` for what the format would lose;
            ``files.path`` for external data of a model without a path; ``external.path`` for a
            location that is refused; ``external.overwrite`` for one that the model uses already.
        OSError: a file cannot be written.
    """
    message = ModelProto.FromString(proto) if isinstance(proto, bytes) else proto
    path = _path_of(f)
    chosen = _format_of(path, format)
    folder, model_name = os.path.split(path or "")
    with external.NewFiles(folder) as files:
        if save_as_external_data:
            if path is None:
                raise CodedError(
                    "files.path", "f", "external data need the path of the model's file"
                )
            message = copy.copy(message)
            payloads = list(find_payloads(message))
            moved = _payloads_to_move(payloads, size_threshold, convert_attribute)
            names = _Names(payloads, model_name)
            if all_tensors_to_one_file:
                _move_to_one_file(moved, files, names.single(location))
            else:
                _move_to_own_files(moved, files, names)
        _write(message, f, chosen, files)


load = load_model
load_from_string = load_model_from_string
save = save_model


def _payloads_to_move(
    payloads: list[Payload], size_threshold: int, convert_attribute: bool
) -> list[external.PayloadMessage]:
    return [
        payload
        for payload, place in payloads
        if (convert_attribute or not place.in_attribute)
        and payload.HasField("raw_data")
        and not external.is_external(payload)
        and len(payload.payload("raw_data")) >= size_threshold
    ]


class _Names:
    """Names for files of external data that are free."""

    def __init__(self, payloads: list[Payload], model_name: str) -> None:
        self._model_name = model_name
        self._used = {model_name}
        for payload, _ in payloads:
            if external.is_external(payload):
                location = external.reference(payload).location
                self._used.add("/".join(external.check_location(location)))

    def single(self, location: str | None) -> str:
        if location is None:
            location = f"{self._model_name}.data"
        if "/".join(external.check_location(location, "location")) in self._used:
            raise CodedError(
                "external.overwrite",
                "location",
                f"{location!a} holds the model or its data",
            )
        return location

    def next(self, tensor_name: str | bytes) -> str:
        name = tensor_name if isinstance(tensor_name, str) else ""  # bytes are no UTF-8
        if not _is_plain_file_name(name) or name in self._used:
            number = len(self._used)
            while (name := f"{self._model_name}.{number}.data") in self._used:
                number += 1
        self._used.add(name)
        return name


def _is_plain_file_name(name: str) -> bool:
    return re.fullmatch(r"(?!\.)[^\x00-\x1f<>:;,?\"*|/\\]{1,50}", name) is not None


def _move_to_one_file(
    moved: list[external.PayloadMessage], files: external.NewFiles, location: str
) -> None:
    if not moved:
        return
    end = 0
    with files.write(location) as file:
        for payload in moved:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            data = payload.payload("raw_data")
            file.write(bytes(begin - end))
            file.write(data)
            end = begin + len(data)
            external.refer(payload, external.Reference(location, begin, len(data)))


def _move_to_own_files(
    moved: list[external.PayloadMessage], files: external.NewFiles, names: _Names
) -> None:
    for payload in moved:
        location = names.next(payload.name)
        data = payload.payload("raw_data")
        with files.write(location) as file:
            file.write(data)
        external.refer(payload, external.Reference(location, 0, len(data)))


def _path_of(f: object) -> str | None:
    """The absolute path of a path or of an open file."""
    name = f if isinstance(f, str | os.PathLike) else getattr(f, "name", None)
    return os.path.abspath(name) if isinstance(name, str | os.PathLike) else None


def _format_of(path: str | None, format: str | None) -> str:
    if format is not None:
        return format
    return _FORMATS.get(os.path.splitext(path or "")[1], _PROTOBUF)


def _read(f: _Readable) -> bytes:
    if isinstance(f, str | os.PathLike):
        with open(f, "rb") as file:
            return file.read()
    return f.read()


def _write(message: Message, f: _Writable, format: str, files: external.NewFiles) -> None:
    """Writes the message; the files of its external data get their names just before."""
    text = b""
    if format != _PROTOBUF:
        text = _serializer(format).serialize_proto(_lossless_onnx(message, format))
        if format == _ONNX_TEXT:
            _check_tensors(message, text)
    if not isinstance(f, str | os.PathLike):
        files.commit()
        if format == _PROTOBUF:
            message.SerializeToOstream(f)
        else:
            _write_all(f, text)
    elif format == _PROTOBUF:
        model = _MessageFile(message, os.fsencode(f))
        model.prepare()
        files.commit(model)
    else:
        with files.write(os.path.basename(f)) as file:
            file.write(text)
        files.commit()


def _write_all(f: IO[bytes], data: bytes) -> None:
    """Raw streams may take less than they get; those that say nothing have taken everything."""
    while data:
        count = f.write(data)
        if count is None:
            return
        if not 0 < count <= len(data):
            raise OSError(f"write() returned {count} for {len(data)} bytes")
        data = data[count:]


def _decode(data: bytes | str, format: str) -> ModelProto:
    if format == _PROTOBUF:
        return ModelProto.FromString(data)
    serializer = _serializer(format)
    import onnx

    return ModelProto.from_onnx(serializer.deserialize_proto(data, onnx.ModelProto()))


def _serializer(format: str) -> Any:
    """What the onnx package has registered for a format that is not our own."""
    try:
        from onnx import serialization
    except ModuleNotFoundError as error:
        raise CodedError(
            "files.format", "format", f"{format!r} needs the onnx package, which is not installed"
        ) from error
    try:
        return serialization.registry.get(format)
    except ValueError as error:
        raise CodedError("files.format", "format", str(error)) from None


def _lossless_onnx(message: Message, format: str) -> Any:
    """The message of the onnx package, if it knows all that is in it."""
    converted = message.to_onnx()
    size = converted.ByteSize()
    converted.DiscardUnknownFields()
    if converted.ByteSize() != size:
        raise CodedError(
            "files.lossy",
            "format",
            f"{format!r} would lose fields that the onnx package does not know; use 'protobuf'",
        )
    return converted


def _check_tensors(message: Message, text: bytes) -> None:
    """The text of onnx has dots, or nothing, in place of tensors that it cannot show."""
    import onnx.parser

    kind = type(message).__name__.removesuffix("Proto").lower()  # others have no such text
    try:
        shown = getattr(onnx.parser, f"parse_{kind}")(text.decode())
        complete = _contents(type(message).from_onnx(shown)) == _contents(message)
    except onnx.parser.ParseError:
        complete = False
    if not complete:
        raise CodedError(
            "files.lossy",
            "format",
            f"{_ONNX_TEXT!r} does not show every tensor of this model; use {_PROTOBUF!r}",
        )


def _contents(message: Message) -> list[object]:
    """What the tensors in `message` hold, whatever their form."""
    found: list[object] = []
    for tensor, _ in find_payloads(message):
        assert isinstance(tensor, TensorProto)  # onnx knows no others
        if external.is_external(tensor):
            found.append(external.reference(tensor))
        else:
            array = to_array(tensor)
            content = array.tolist() if array.dtype == object else array.tobytes()
            found.append((array.dtype, array.shape, content))
    return found
