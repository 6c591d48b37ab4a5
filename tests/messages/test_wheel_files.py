"""All message files of the onnx wheel: bytes, text and equality as with protobuf."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import onnx
import pytest
from message_apis import Api

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data"
LONG_TEXT = 30_000  # bytes of a file beyond which only a sample of the texts is compared


@functools.cache
def files() -> list[tuple[str, Path]]:
    found = [("ModelProto", p) for p in FOLDER.rglob("*.onnx")]
    found += [("TensorProto", p) for p in FOLDER.rglob("*.pb")]
    return sorted(found, key=lambda pair: pair[1])


def test_all_are_there() -> None:
    assert len(files()) == 476


def test_byte_for_byte(ours: Api) -> None:
    for name, path in files():
        data = path.read_bytes()
        message = ours.cls(name).FromString(data)
        assert message.SerializeToString() == data, path
        assert message.ByteSize() == len(data), path


def test_from_and_to_files(ours: Api, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    for name, path in files():
        message = ours.cls(name)()
        message.ParseFromFile(path)
        message.SerializeToFile(target)
        assert target.read_bytes() == path.read_bytes(), path


def test_borrowed(ours: Api) -> None:
    options = ours.ParseOptions(no_copy=True)
    for name, path in files():
        message = ours.cls(name)()
        message.ParseFromString(path.read_bytes(), options)
        assert message.SerializeToString() == path.read_bytes(), path


def test_text(protobuf: Api, ours: Api) -> None:
    rng = random.Random(7)
    for name, path in files():
        data = path.read_bytes()
        if len(data) > LONG_TEXT and rng.random() < 0.7:
            continue
        want = str(protobuf.cls(name).FromString(data))
        assert str(ours.cls(name).FromString(data)) == want, path


def test_equality(ours: Api) -> None:
    before = None
    for name, path in files():
        data = path.read_bytes()
        message = ours.cls(name).FromString(data)
        again = ours.cls(name)()
        again.CopyFrom(message)
        assert message == again == ours.cls(name).FromString(message.SerializeToString()), path
        if before is not None and before[1] != data:
            assert before[0] != message, path
        again.doc_string += "x"
        assert message != again, path
        before = message, data


@pytest.mark.parametrize("attribute", ["graph.node", "graph.initializer", "opset_import"])
def test_lists_have_equal_elements(protobuf: Api, ours: Api, attribute: str) -> None:
    for name, path in files()[::5]:
        if name != "ModelProto" or path.stat().st_size > LONG_TEXT:
            continue
        data = path.read_bytes()
        theirs, mine = protobuf.ModelProto.FromString(data), ours.ModelProto.FromString(data)
        for part in attribute.split("."):
            theirs, mine = getattr(theirs, part), getattr(mine, part)
        assert [m.SerializeToString() for m in mine] == [t.SerializeToString() for t in theirs]
