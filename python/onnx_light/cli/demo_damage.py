"""Files that are wrong, and what the library says to each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx_light import PagedCache, onnx
from onnx_light.errors import CodedError, ParseError


@dataclass
class Failure:
    """What came of one wrong input.

    Attributes:
        what: what was done to it.
        refused: whether there was an error, and the target kept what it held.
        code, path, message: of the error; offset: its byte, where it is one of parsing.
    """

    what: str
    refused: bool
    code: str = ""
    path: str = ""
    message: str = ""
    offset: int | None = None


def damaged_files(model: onnx.ModelProto, folder: Path) -> list[Failure]:
    """Cuts, overwrites and misleads; each case through the public interface."""
    data = model.SerializeToString()
    path = folder / "damaged.onnx"
    page = model.graph.paged_cache_initializer[3].blocks[5]
    payload = data.find(page.key.SerializeToString())

    def parse(damaged: bytes) -> Callable[[onnx.ModelProto], None]:
        path.write_bytes(damaged)
        return lambda target: target.ParseFromFile(path)

    cut = data[: len(data) // 2]
    overwritten = data[:payload] + b"\xff\xff\xff" + data[payload + 3 :]
    return [
        _try("the file cut in half", parse(cut)),
        _try("three bytes overwritten in one page", parse(overwritten)),
        _try("external data outside of the folder", _leave_folder(folder)),
        _try("a page longer than its payload", _too_long(model)),
    ]


def _try(what: str, read: Callable[[onnx.ModelProto], None]) -> Failure:
    target = onnx.ModelProto(producer_name="before")
    before = target.SerializeToString()
    try:
        read(target)
    except CodedError as error:
        offset = error.offset if isinstance(error, ParseError) else None
        unchanged = target.SerializeToString() == before
        return Failure(what, unchanged, error.code, error.path, error.message, offset)
    return Failure(what, False)


def _leave_folder(folder: Path) -> Callable[[onnx.ModelProto], None]:
    model = onnx.ModelProto()
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    path = folder / "leaving.onnx"
    model.SerializeToFile(path)
    inline = onnx.ParseOptions(tiny_external_data_threshold=1 << 40)
    return lambda target: target.ParseFromFile(path, inline)


def _too_long(model: onnx.ModelProto) -> Callable[[onnx.ModelProto], None]:
    proto = onnx.PagedCacheProto(model.graph.paged_cache_initializer[0])
    proto.blocks[1].length = 1000

    def read(target: onnx.ModelProto) -> None:
        PagedCache.from_proto(proto)

    return read
