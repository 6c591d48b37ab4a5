"""Models that refer to external data, and every way of reading them."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx.helper as oh

from onnx_light import onnx as light
from onnx_light.errors import CodedError

Entries = list[tuple[str | bytes, str | bytes]]
DATA = b"data"
SECRET = b"SECRET of another folder"


def entry_bytes(key: str | bytes, value: str | bytes) -> bytes:
    """One StringStringEntryProto on the wire: protobuf's objects take no text that is not UTF-8."""
    body = b""
    for number, text in ((1, key), (2, value)):
        raw = text.encode() if isinstance(text, str) else text
        body += bytes([number << 3 | 2]) + varint(len(raw)) + raw
    return body


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def tensor_bytes(entries: Entries, name: str = "w", size: int = len(DATA)) -> bytes:
    tensor = onnx.TensorProto(name=name, dims=[size], data_type=onnx.TensorProto.UINT8)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    body = tensor.SerializeToString()
    for key, value in entries:
        entry = entry_bytes(key, value)
        body += b"\x6a" + varint(len(entry)) + entry  # TensorProto.external_data
    return body


def at(location: str | bytes, **more: str) -> Entries:
    return [("location", location), *more.items()]


def write_model(path: Path, *tensors: bytes) -> None:
    """A valid model with these initializers, if their data were fine."""
    info = oh.make_tensor_value_info("y", onnx.TensorProto.UINT8, ["n"])
    graph = oh.make_graph([oh.make_node("Identity", ["w"], ["y"])], "g", [], [info])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)])
    graph_bytes = model.graph.SerializeToString()
    for tensor in tensors:
        graph_bytes += b"\x2a" + varint(len(tensor)) + tensor  # GraphProto.initializer
    model.ClearField("graph")
    path.write_bytes(model.SerializeToString() + b"\x3a" + varint(len(graph_bytes)) + graph_bytes)


def load_opened(path: Path) -> bytes:
    with path.open("rb") as file:
        return bytes(light.load(file).graph.initializer[0].raw_data)


def parse_inline(path: Path, **options: Any) -> bytes:
    model = light.ModelProto()
    model.ParseFromFile(path, light.ParseOptions(tiny_external_data_threshold=2**62, **options))
    return bytes(model.graph.initializer[0].raw_data)


def parse_one_file(path: Path) -> bytes:
    """The caller names the data file: its path stands for the location, the numbers count."""
    model = light.ModelProto()
    model.ParseFromFile(path, external_data_file=path.parent / "w.bin")
    return bytes(model.graph.initializer[0].raw_data)


def to_array(path: Path) -> bytes:
    tensor = light.load(path, load_external_data=False).graph.initializer[0]
    return bytes(light.to_array(tensor, path.parent).tobytes())


def check(path: Path) -> bytes:
    light.check_model(path)
    return DATA  # it reads no bytes; tests give it no other


READERS: dict[str, Callable[[Path], bytes]] = {
    "load": lambda path: bytes(light.load(path).graph.initializer[0].raw_data),
    "load of an open file": load_opened,
    "ParseFromFile": parse_inline,
    "ParseFromFile, mapped": lambda path: parse_inline(
        path, no_copy=True, file_load_mode=light.FileLoadMode.MMAP
    ),
    "to_array": to_array,
    "check_model": check,
}


def outcome(read: Callable[[Path], bytes], path: Path) -> str | bytes:
    """The bytes that are read, the code of the refusal, or what the system says."""
    try:
        return read(path)
    except CodedError as error:
        result, text = str(error.code), str(error)
    except OSError as error:
        result, text = type(error).__name__, str(error)
    assert len(text) < 6000  # a path of the longest kind
    assert SECRET.decode() not in text
    return result


def outcomes(folder: Path, entries: Entries) -> set[str | bytes]:
    """What all readers say to a model in `folder` that refers to these data."""
    path = folder / "m.onnx"
    write_model(path, tensor_bytes(entries))
    return {outcome(read, path) for read in READERS.values()}


@contextmanager
def exchanging(a: Path, b: Path) -> Iterator[None]:
    """Exchanges two names, again and again, while the block runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    stop = threading.Event()

    def swap() -> None:
        names = os.fsencode(a), os.fsencode(b)
        while not stop.is_set():
            at_cwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
            if libc.renameat2(at_cwd, names[0], at_cwd, names[1], exchange) != 0:
                raise OSError(ctypes.get_errno(), "renameat2")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
