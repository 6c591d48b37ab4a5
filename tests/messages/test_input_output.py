"""Forms of input, files, descriptors, streams, copies, and messages of the onnx package."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from message_apis import Api, class_names, random_message


def cache(ours: Api, size: int = 5000) -> Any:
    key = {"raw_data": bytes(range(250)) * (size // 250), "dims": [size], "data_type": 2}
    encoded = {"raw_data": b"e" * size, "affine": {"axis": -1}}
    block = {"start": 0, "length": 1, "key": key, "encoded_value": encoded}
    return ours.PagedCacheProto(name="c", blocks=[block] * 3)


# ---------------------------------------------------------------------------------------------
# Input


def test_forms_of_input(ours: Api) -> None:
    data = cache(ours).SerializeToString()
    forms = [data, bytearray(data), memoryview(data), memoryview(bytearray(data))]
    forms += [np.frombuffer(data, np.uint8), memoryview(b"xx" + data)[2:]]
    for form in forms:
        message = ours.PagedCacheProto(doc_string="old")
        assert message.ParseFromString(form) is None
        assert message.SerializeToString() == data
        assert ours.PagedCacheProto.FromString(form) == message
        assert ours.PagedCacheProto().MergeFromString(form) == len(data)
    message = ours.NodeProto()
    assert message.ParseFromString("\x1a\x02é") is None  # the text's UTF-8 bytes
    assert message.name == "é"
    assert ours.NodeProto.FromString("\x1a\x01a").name == "a"


@pytest.mark.parametrize("wrong", [None, 1, [], {}, object(), memoryview(b"abcd")[::2]], ids=repr)
def test_other_input_is_refused(ours: Api, wrong: Any) -> None:
    message = ours.NodeProto(name="kept")
    for parse in (message.ParseFromString, message.MergeFromString, ours.NodeProto.FromString):
        with pytest.raises((TypeError, BufferError)):
            parse(wrong)
    assert message == ours.NodeProto(name="kept")


def test_lone_surrogates_are_no_utf8(ours: Api) -> None:
    message = ours.NodeProto(name="kept")
    with pytest.raises(ValueError, match="surrogates"):
        message.ParseFromString("\x1a\x01\ud800")
    assert message.name == "kept"


# ---------------------------------------------------------------------------------------------
# Files


def test_files(ours: Api, tmp_path: Path) -> None:
    message = cache(ours)
    data = message.SerializeToString()
    for name in (tmp_path / "a", str(tmp_path / "b"), os.fsencode(tmp_path / "c")):
        assert message.SerializeToFile(name) is None
        assert Path(os.fsdecode(name)).read_bytes() == data
        for mode in ours.FileLoadMode:
            for no_copy in (False, True):
                options = ours.ParseOptions(file_load_mode=mode, no_copy=no_copy)
                read = ours.PagedCacheProto(doc_string="old")
                assert read.ParseFromFile(name, options) is None
                assert read == message
    assert len(list(tmp_path.iterdir())) == 3


def test_a_mapped_file_may_be_replaced(ours: Api, tmp_path: Path) -> None:
    path = tmp_path / "m"
    message = cache(ours, 100_000)
    message.SerializeToFile(path)
    options = ours.ParseOptions(file_load_mode=ours.FileLoadMode.MMAP, no_copy=True)
    read = ours.PagedCacheProto()
    read.ParseFromFile(path, options)
    read.name = "changed"
    read.SerializeToFile(path)  # over the file that it borrows from
    message.name = "changed"
    assert read == message
    again = ours.PagedCacheProto()
    again.ParseFromFile(path, options)
    assert again == message
    path.unlink()
    assert again == read


def test_files_that_are_not_there(ours: Api, tmp_path: Path) -> None:
    message = cache(ours)
    kept = ours.PagedCacheProto(message)
    missing = tmp_path / "missing"
    for mode in ours.FileLoadMode:
        with pytest.raises(FileNotFoundError) as caught:
            message.ParseFromFile(missing, ours.ParseOptions(file_load_mode=mode))
        assert os.fspath(missing) in str(caught.value)
        with pytest.raises(OSError):  # noqa: PT011  # which one is the system's choice
            message.ParseFromFile(tmp_path, ours.ParseOptions(file_load_mode=mode))
    with pytest.raises(OSError, match="missing"):
        message.SerializeToFile(missing / "x")
    with pytest.raises(OSError):  # noqa: PT011
        message.SerializeToFile(tmp_path)
    for wrong in (None, 1.5, [], "a\0b"):
        with pytest.raises((TypeError, ValueError)):
            message.ParseFromFile(wrong)
        with pytest.raises((TypeError, ValueError)):
            message.SerializeToFile(wrong)
    assert message == kept
    assert list(tmp_path.iterdir()) == []


def test_a_broken_file_leaves_the_message(ours: Api, tmp_path: Path) -> None:
    message = cache(ours)
    path = tmp_path / "cut"
    path.write_bytes(message.SerializeToString()[:-1])
    kept = ours.PagedCacheProto(name="kept")
    for mode in ours.FileLoadMode:
        with pytest.raises(ours.ParseError) as caught:
            kept.ParseFromFile(path, ours.ParseOptions(file_load_mode=mode))
        assert caught.value.offset <= path.stat().st_size
        assert kept == ours.PagedCacheProto(name="kept")
    path.write_bytes(b"")
    kept.ParseFromFile(path)
    assert kept == ours.PagedCacheProto()


@pytest.mark.parametrize("threshold", [0, 5000, 5001])
@pytest.mark.parametrize("alignment", [0, 64, 4096])
def test_external_data(
    ours: Api, protobuf: Api, tmp_path: Path, threshold: int, alignment: int
) -> None:
    message = cache(ours)
    data = message.SerializeToString()
    options = ours.SerializeOptions(raw_data_threshold=threshold, alignment=alignment)
    target, external = tmp_path / "m", tmp_path / "sub" / "d"
    external.parent.mkdir()
    message.SerializeToFile(target, options, external)
    assert message.SerializeToString() == data
    assert external.exists() == (threshold <= 5000)
    written = protobuf.PagedCacheProto.FromString(target.read_bytes())
    for block in written.blocks if threshold <= 5000 else []:
        for payload in (block.key, block.encoded_value):
            entries = {e.key: e.value for e in payload.external_data}
            assert payload.data_location == 1
            assert not payload.HasField("raw_data")
            assert entries["location"] == "sub/d"
            offset = int(entries["offset"])
            assert offset % max(alignment, 1) == 0
            assert external.read_bytes()[offset:][:5000] in (
                message.blocks[0].key.raw_data,
                message.blocks[0].encoded_value.raw_data,
            )
    read = ours.PagedCacheProto()
    read.ParseFromFile(target, external_data_file=external)
    assert read.SerializeToString() == data
    read.ParseFromFile(target)
    assert read.SerializeToString() == written.SerializeToString()


# ---------------------------------------------------------------------------------------------
# Descriptors and streams


def test_descriptors(ours: Api, tmp_path: Path) -> None:
    message = cache(ours)
    with open(tmp_path / "f", "w+b", buffering=0) as file:
        message.SerializeToFileDescriptor(file.fileno())
        message.SerializeToFileDescriptor(fd=file.fileno(), options=ours.SerializeOptions())
        file.seek(0)
        assert file.read() == message.SerializeToString() * 2
        assert not file.closed
        os.fstat(file.fileno())
    with open(os.devnull, "rb") as readonly, pytest.raises(OSError):  # noqa: PT011
        message.SerializeToFileDescriptor(readonly.fileno())
    with pytest.raises(OSError):  # noqa: PT011
        message.SerializeToFileDescriptor(10**6)
    for wrong in ("x", None, 1.5, -1):
        with pytest.raises((TypeError, ValueError)):
            message.SerializeToFileDescriptor(wrong)


def test_a_pipe_takes_everything(ours: Api) -> None:
    message = cache(ours, 200_000)
    reader, writer = os.pipe()
    pieces: list[bytes] = []

    def drain() -> None:
        while piece := os.read(reader, 1000):
            pieces.append(piece)

    thread = threading.Thread(target=drain)
    thread.start()
    message.SerializeToFileDescriptor(writer)
    os.close(writer)
    thread.join()
    os.close(reader)
    assert b"".join(pieces) == message.SerializeToString()


class Stream:
    """Writes at most `most` bytes of each piece and says so, or says what it is told."""

    def __init__(self, most: int = 10**9, says: Any = ...) -> None:
        self.data, self.most, self.says = bytearray(), most, says
        self.largest = 0

    def write(self, piece: Any) -> Any:
        view = memoryview(piece)
        self.largest = max(self.largest, view.nbytes)
        taken = view[: self.most]
        self.data += taken
        return len(taken) if self.says is ... else self.says


@pytest.mark.parametrize("method", ["SerializeToOstream", "SerializeToOStream"])
def test_streams(ours: Api, tmp_path: Path, method: str) -> None:
    for message in (cache(ours), ours.PagedCacheProto(), cache(ours, 100_000)):
        data = message.SerializeToString()
        buffer = io.BytesIO()
        assert getattr(message, method)(buffer) is None
        assert buffer.getvalue() == data
        with open(tmp_path / "f", "wb") as file:
            getattr(message, method)(file)
        assert (tmp_path / "f").read_bytes() == data
        for stream in (Stream(), Stream(says=None), Stream(most=777)):
            getattr(message, method)(stream)
            assert stream.data == data


def test_streams_that_fail(ours: Api) -> None:
    class FullError(Exception):
        pass

    class Fails(Stream):
        def write(self, piece: Any) -> Any:
            if len(self.data) > 3000:
                raise FullError
            return super().write(piece)

    message = cache(ours)
    with pytest.raises(FullError):
        message.SerializeToOstream(Fails())
    for says in (0, -1, 10**9):
        with pytest.raises(OSError, match="write"):
            message.SerializeToOstream(Stream(says=says))
    for says in ("x", 1.5):
        with pytest.raises(TypeError):
            message.SerializeToOstream(Stream(says=says))
    for wrong in (None, 1, object(), "x"):
        with pytest.raises((AttributeError, TypeError)):
            message.SerializeToOstream(wrong)
    assert message == cache(ours)


def test_a_stream_that_changes_the_message(ours: Api) -> None:
    """What is written is the message at the time of the call."""

    class Changes(Stream):
        def write(self, piece: Any) -> Any:
            message.Clear()
            message.blocks.add(start=9)
            return super().write(bytes(piece))

    message = cache(ours, 100_000)
    data = message.SerializeToString()
    stream = Changes()
    message.SerializeToOstream(stream)
    assert stream.data == data


def test_big_payloads_go_in_pieces(ours: Api) -> None:
    payload = b"p" * (40 << 20)
    message = ours.TensorProto(raw_data=payload, name="n")
    stream = Stream()
    message.SerializeToOstream(stream)
    assert stream.largest <= 16 << 20
    assert len(stream.data) == message.ByteSize()


# ---------------------------------------------------------------------------------------------
# Copies


@pytest.mark.parametrize("name", class_names())
def test_copies_of_every_class(ours: Api, name: str) -> None:
    rng = random.Random(name)
    for _ in range(3):
        data = random_message(name, rng, 2).SerializeToString() + b"\xf8\xff\x01\x05"
        message = ours.cls(name).FromString(data)
        made = [copy.copy(message), copy.deepcopy(message), ours.cls(name)(message)]
        made += [pickle.loads(pickle.dumps(message, p)) for p in range(2, 6)]
        for each in made:
            assert each == message
            assert type(each) is type(message)
            assert each.SerializeToString() == data
            each.Clear()
        assert message.SerializeToString() == data


def test_copies_of_structures(ours: Api) -> None:
    message = cache(ours)
    together = {"a": message, "b": [message.blocks[0]]}
    made = copy.deepcopy(together)
    assert made == together
    made["a"].name = "x"
    assert message.name == "c"
    assert pickle.loads(pickle.dumps(together)) == together
    element = pickle.loads(pickle.dumps(message.blocks[0].key))
    assert element == message.blocks[0].key
    stub = ours.PagedCacheBlockProto().key
    assert pickle.loads(pickle.dumps(stub)) == copy.copy(stub) == ours.TensorProto()


def test_errors_are_pickled(ours: Api) -> None:
    with pytest.raises(ours.ParseError) as caught:
        ours.ModelProto.FromString(b"\x3a\x02\x0a\x05")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), str(error)) == (type(caught.value), str(caught.value))
    assert (error.code, error.path, error.offset) == (
        caught.value.code,
        caught.value.path,
        caught.value.offset,
    )
    assert ours.DecodeError is ours.ParseError
    assert issubclass(ours.ParseError, ValueError)


# ---------------------------------------------------------------------------------------------
# Messages of the onnx package


def test_to_and_from_onnx(ours: Api) -> None:
    node = onnx.helper.make_node("Add", ["a", "b"], ["c"], name="n", alpha=1.5)
    graph = onnx.helper.make_graph([node], "g", [], [])
    theirs = onnx.helper.make_model(graph)
    mine = ours.ModelProto.from_onnx(theirs)
    assert mine.SerializeToString() == theirs.SerializeToString()
    back = mine.to_onnx()
    assert type(back) is onnx.ModelProto
    assert back == theirs
    mine.graph.paged_cache_initializer.add(name="kept")
    travelled = mine.to_onnx()
    assert travelled.graph.node[0] == node
    assert ours.ModelProto.from_onnx(travelled) == mine
    dimension = onnx.TensorShapeProto.Dimension(dim_value=3)
    assert ours.TensorShapeProto.Dimension.from_onnx(dimension).to_onnx() == dimension
    for wrong in (graph, None, b"", mine, 1):
        with pytest.raises(TypeError):
            ours.ModelProto.from_onnx(wrong)
    with pytest.raises(TypeError, match="PagedCacheProto"):
        ours.PagedCacheProto().to_onnx()


@pytest.mark.parametrize("name", class_names())
def test_every_onnx_class_is_found(ours: Api, name: str) -> None:
    message = ours.cls(name)()
    ours_only = ("Paged", "Encoded", "Affine", "StructType", "PersistentBinding")
    if name.startswith(ours_only):
        with pytest.raises(TypeError):
            message.to_onnx()
    else:
        assert type(message.to_onnx()).DESCRIPTOR.name == name.rsplit(".", 1)[-1]
