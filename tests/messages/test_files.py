"""load and save: what onnx wrote is read, and onnx reads what is written."""

from __future__ import annotations

import base64
import copy
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper
import pytest

from onnx_light.errors import CodedError
from onnx_light.onnx import (
    ModelProto,
    NodeProto,
    ParseError,
    TensorProto,
    from_array,
    load,
    load_from_string,
    load_model,
    load_model_from_string,
    save,
    save_model,
    to_array,
)

FORMATS = {
    "protobuf": ["m.onnx", "m.pb", "m", "m.bin"],
    "textproto": ["m.txtpb", "m.textproto", "m.prototxt", "m.pbtxt"],
    "json": ["m.json", "m.onnxjson"],
}
FORMAT_NAMES = [(name, file) for name, files in FORMATS.items() for file in files]


def onnx_model() -> onnx.ModelProto:
    """Initializers, attributes and subgraphs with payloads of several sizes."""

    def tensor(name: str, count: int) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(np.arange(count, dtype=np.float32), name)

    info = oh.make_tensor_value_info
    body = oh.make_graph(
        [oh.make_node("Constant", [], ["c"], value=tensor("", 500))],
        "body",
        [],
        [info("c", 1, [500])],
        [tensor("inner", 600), tensor("same", 400)],
    )
    nodes = [
        oh.make_node("Constant", [], ["k"], value=tensor("constant", 300)),
        oh.make_node("If", ["cond"], ["y"], then_branch=body, else_branch=body),
    ]
    typed = oh.make_tensor("typed", 1, [400], [1.0] * 400)
    texts = onnx.numpy_helper.from_array(np.array(["x" * 2000], object), "texts")
    graph = oh.make_graph(
        nodes,
        "main",
        [info("cond", 9, [])],
        [info("y", 1, [500])],
        [tensor("same", 400), tensor("small", 10), tensor("a/b", 256), typed, texts],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)])


def load_opened(path: Path) -> ModelProto:
    with open(path, "rb") as file:
        return load(file)


@pytest.fixture
def theirs() -> onnx.ModelProto:
    return onnx_model()


@pytest.fixture
def model(theirs: onnx.ModelProto) -> ModelProto:
    return ModelProto.from_onnx(theirs)


def test_names() -> None:
    assert load is load_model
    assert save is save_model
    assert load_from_string is load_model_from_string


@pytest.mark.parametrize(("format_name", "file_name"), FORMAT_NAMES)
def test_formats(
    tmp_path: Path, theirs: onnx.ModelProto, model: ModelProto, format_name: str, file_name: str
) -> None:
    path = tmp_path / file_name
    onnx.save(theirs, path)
    expected = path.read_bytes()
    assert load(path) == model
    assert load(str(path)) == model
    assert load(path, format_name) == model
    path.unlink()
    save(model, path)
    assert path.read_bytes() == expected
    assert os.listdir(tmp_path) == [file_name]
    save(model, tmp_path / "other", format_name)
    assert (tmp_path / "other").read_bytes() == expected
    assert load_from_string(expected, format_name) == model
    if format_name != "protobuf":
        assert load_from_string(expected.decode(), format_name) == model


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    """Infinities and NaN are texts there; 64 bits are, too, and bytes are base64."""
    path = tmp_path / "m.json"
    model = ModelProto(ir_version=10)
    attribute = model.graph.node.add(op_type="x").attribute.add(name="a")
    attribute.floats.extend([float("inf"), float("-inf"), float("nan"), -0.0])
    attribute.ints.extend([2**63 - 1, -(2**63)])
    attribute.s = b"\0\xff"
    save(model, path)
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    (shown,) = content["graph"]["node"][0]["attribute"]
    assert shown["floats"] == ["Infinity", "-Infinity", "NaN", -0.0]
    assert shown["ints"] == [str(2**63 - 1), str(-(2**63))]
    assert base64.b64decode(shown["s"]) == b"\0\xff"
    assert content["ir_version"] == "10"
    assert load(path).SerializeToString() == model.SerializeToString()


def test_text_of_onnx(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 19]>\nmain (float[2] x) => (float[2] y) {y = Neg (x)}'
    )
    with pytest.warns(UserWarning, match="experimental"):
        theirs = onnx.load_from_string(text, "onnxtxt")
    with pytest.warns(UserWarning, match="experimental"):
        model = load_from_string(text, "onnxtxt")
    assert model == ModelProto.from_onnx(theirs)
    save(model, tmp_path / "m.onnxtxt")
    assert (tmp_path / "m.onnxtxt").read_text() == onnx.printer.to_text(theirs)


def test_file_objects(tmp_path: Path, theirs: onnx.ModelProto, model: ModelProto) -> None:
    data = theirs.SerializeToString()
    assert load(io.BytesIO(data)) == model
    output = io.BytesIO()
    save(model, output)
    assert output.getvalue() == data
    # The name of an open file says the format.
    with open(tmp_path / "m.json", "wb") as file:
        save(model, file)
    assert onnx.load(tmp_path / "m.json") == theirs
    assert load_opened(tmp_path / "m.json") == model
    read_end, write_end = os.pipe()  # its name is a number
    with os.fdopen(write_end, "wb") as file:
        save(ModelProto(ir_version=3), file)
    with os.fdopen(read_end, "rb") as file:
        assert load(file) == ModelProto(ir_version=3)


def test_bytes_and_other_messages(tmp_path: Path, model: ModelProto) -> None:
    save(model.SerializeToString(), tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx") == model
    node = NodeProto(op_type="Neg")
    save(node, tmp_path / "node.pb")
    assert NodeProto.FromString((tmp_path / "node.pb").read_bytes()) == node


def test_bad_input(tmp_path: Path, model: ModelProto) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.onnx")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString()[:-1])
    with pytest.raises(ParseError):
        load(tmp_path / "m.onnx")
    for call in (
        lambda: load(tmp_path / "m.onnx", "yaml"),
        lambda: save(model, tmp_path / "m.onnx", "yaml"),
        lambda: load_from_string(b"", "yaml"),
    ):
        with pytest.raises(CodedError, match="yaml") as caught:
            call()
        assert caught.value.code == "files.format"


def test_formats_that_lose_fields(tmp_path: Path, model: ModelProto) -> None:
    model.graph.paged_cache_initializer.add(name="cache")
    for format_name in ("textproto", "json"):
        path = tmp_path / "m"
        with pytest.raises(CodedError, match="protobuf") as caught:
            save(model, path, format_name)
        assert caught.value.code == "files.lossy"
        assert not path.exists()


TENSORS: dict[str, tuple[dict[str, Any], bool]] = {
    "float": ({"initializer": [from_array(np.float32([1, np.nan, -0.0]), "w")]}, True),
    "raw int8": ({"initializer": [from_array(np.arange(3, dtype=np.int8), "w")]}, True),
    "bfloat16": ({"initializer": [from_array(np.ones(3, ml_dtypes.bfloat16), "w")]}, True),
    "texts": ({"initializer": [from_array(np.array(["a", "é"], object), "w")]}, True),
    "int4": ({"initializer": [from_array(np.ones(3, ml_dtypes.int4), "w")]}, False),
    "complex": ({"initializer": [from_array(np.ones(2, np.complex64), "w")]}, False),
    "sparse": ({"sparse_initializer": [{"values": from_array(np.ones(1, np.float32))}]}, False),
    "attribute": (
        {"node": [{"op_type": "X", "attribute": [
            {"name": "a", "type": 4, "t": from_array(np.ones(3, ml_dtypes.uint2))}
        ]}]},
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_text_of_onnx_shows_every_tensor(tmp_path: Path, name: str) -> None:
    """Where it does not, nothing is written: onnx itself leaves dots, or nothing."""
    fields, complete = TENSORS[name]
    model = ModelProto(ir_version=10, opset_import=[{"version": 21}], graph={"name": "g", **fields})
    path = tmp_path / "m.onnxtxt"
    if complete:
        save(model, path)
        with pytest.warns(UserWarning, match="experimental"):
            (read,) = load(path).graph.initializer
        written = to_array(model.graph.initializer[0])
        if written.dtype == object:
            assert to_array(read).tolist() == written.tolist()
        else:
            assert to_array(read).tobytes() == written.tobytes()
        return
    with pytest.raises(CodedError, match="protobuf") as caught:
        save(model, path)
    assert caught.value.code == "files.lossy"
    assert os.listdir(tmp_path) == []


class Trickle(io.RawIOBase):
    """A raw stream: it takes a few bytes at a time, and says so."""

    def __init__(self, says: Any = ...) -> None:
        self.data, self.says = b"", says

    def write(self, data: Any) -> Any:
        piece = bytes(data)[:7]
        self.data += piece
        return len(piece) if self.says is ... else self.says


@pytest.mark.parametrize("format_name", ["protobuf", "json", "textproto"])
def test_raw_streams_get_everything(model: ModelProto, format_name: str) -> None:
    stream = Trickle()
    save(model, stream, format_name)
    expected = io.BytesIO()
    save(model, expected, format_name)
    assert stream.data == expected.getvalue()
    for says in (0, -1, 10**9):
        with pytest.raises(OSError, match="write"):
            save(model, Trickle(says), format_name)


def test_failed_write_leaves_the_old_file(tmp_path: Path, model: ModelProto) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(b"old")
    model.graph.paged_cache_initializer.add(name="cache")
    with pytest.raises(CodedError):
        save(model, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m.json"]


# External data.


def references(model: ModelProto) -> dict[str, dict[str, str]]:
    """The entries of every external tensor by its name, in subgraphs and attributes, too."""
    found = {}
    graphs = [("", model.graph)]
    while graphs:
        prefix, graph = graphs.pop()
        tensors = [(prefix + t.name, t) for t in graph.initializer]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.has_t():
                    tensors.append((f"{prefix}{node.output[0]}", attribute.t))
                if attribute.has_g():
                    graphs.append((f"{prefix}{attribute.name}.", attribute.g))
        for name, tensor in tensors:
            if tensor.data_location == TensorProto.EXTERNAL:
                assert not tensor.has_raw_data()
                found[name] = {entry.key: entry.value for entry in tensor.external_data}
    return found


INITIALIZERS = {
    "same", "a/b",
    "then_branch.inner", "then_branch.same",
    "else_branch.inner", "else_branch.same",
}  # fmt: skip
ATTRIBUTES = {"k", "then_branch.c", "else_branch.c"}


@pytest.mark.parametrize("one_file", [True, False])
@pytest.mark.parametrize("convert_attribute", [False, True])
def test_external_round_trip(
    tmp_path: Path,
    theirs: onnx.ModelProto,
    model: ModelProto,
    one_file: bool,
    convert_attribute: bool,
) -> None:
    before = model.SerializeToString()
    path = tmp_path / "m.onnx"
    for _ in range(2):  # the second time over the first
        save(
            model,
            path,
            save_as_external_data=True,
            all_tensors_to_one_file=one_file,
            convert_attribute=convert_attribute,
        )
        assert model.SerializeToString() == before
        files = set(os.listdir(tmp_path))
        kept = load(path, load_external_data=False)
        found = references(kept)
        assert set(found) == INITIALIZERS | (ATTRIBUTES if convert_attribute else set())
        assert {entries["location"] for entries in found.values()} == files - {"m.onnx"}
        if one_file:
            assert files == {"m.onnx", "m.onnx.data"}
            assert all(int(entries["offset"]) % 64 == 0 for entries in found.values())
        else:
            assert len(files) == 1 + len(found)
            assert {"same", "inner"} < files
    for read in (load, load_opened):
        assert read(path) == model
    read_by_onnx = onnx.load(path)
    for tensor in onnx.external_data_helper._get_all_tensors(read_by_onnx):
        tensor.ClearField("data_location")  # it sets the default
    assert read_by_onnx == theirs
    onnx.checker.check_model(str(path))


@pytest.mark.parametrize("one_file", [True, False])
def test_what_onnx_wrote(tmp_path: Path, model: ModelProto, one_file: bool) -> None:
    path = tmp_path / "m.onnx"
    theirs = onnx_model()
    # onnx appends to a file of the same name, so that equal names come out apart.
    onnx.save(
        theirs,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=one_file,
        location="w.data" if one_file else None,
        convert_attribute=True,
    )
    assert load(path) == model
    assert load_opened(path) == model


def test_size_threshold(tmp_path: Path, model: ModelProto) -> None:
    path = tmp_path / "m.onnx"
    for threshold, expected in ((1601, {"inner"}), (1600, {"inner", "same"}), (10**9, set())):
        save(model, path, save_as_external_data=True, size_threshold=threshold)
        found = references(load(path, load_external_data=False))
        assert {name.split(".")[-1] for name in found} == expected
    assert load(path) == model
    save(model, path, save_as_external_data=True, size_threshold=0)
    assert "small" in references(load(path, load_external_data=False))


def test_location(tmp_path: Path, model: ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    save(model, "m.onnx", save_as_external_data=True, location="sub/w.data")
    assert sorted(os.listdir("sub")) == ["w.data"]
    assert load("m.onnx") == model
    with open("m2.onnx", "wb") as file:
        save(model, file, save_as_external_data=True, location="sub/w2.data")
    assert load("m2.onnx") == model
    with pytest.raises(FileNotFoundError):
        save(model, "m3.onnx", save_as_external_data=True, location="none/w.data")
    assert not os.path.exists("m3.onnx")


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("", "external.path"),
        ("/tmp/w.data", "external.path"),
        ("../w.data", "external.path"),
        ("sub/../w.data", "external.path"),
        ("sub/", "external.path"),
        ("link/w.data", "external.link"),
        ("m.onnx", "external.overwrite"),
        ("./m.onnx", "external.overwrite"),
    ],
)
def test_refused_locations(tmp_path: Path, model: ModelProto, location: str, code: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("sub")
    with pytest.raises(CodedError) as caught:
        save(model, tmp_path / "m.onnx", save_as_external_data=True, location=location)
    assert caught.value.code == code
    assert sorted(os.listdir(tmp_path)) == ["link", "sub"]
    assert os.listdir(tmp_path / "sub") == []


def test_external_data_need_a_path(model: ModelProto) -> None:
    with pytest.raises(CodedError) as caught:
        save(model, io.BytesIO(), save_as_external_data=True)
    assert caught.value.code == "files.path"


def test_references_that_stay(tmp_path: Path, model: ModelProto) -> None:
    """New data never replace a file that the model still refers to."""
    path = tmp_path / "m.onnx"
    save(model, path, save_as_external_data=True, location="w.data")
    kept = load(path, load_external_data=False)
    kept.graph.initializer.append(from_array(np.ones(1000), "w.data"))
    for location in ("w.data", "./w.data"):
        with pytest.raises(CodedError) as caught:
            save(kept, path, save_as_external_data=True, location=location)
        assert caught.value.code == "external.overwrite"
    save(kept, path, save_as_external_data=True, all_tensors_to_one_file=False)
    expected = copy.copy(model)
    expected.graph.initializer.append(kept.graph.initializer[-1])
    assert load(path) == expected
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../up", "a/b", "a\\b", "m.onnx", "a\nb", "a:b", "é" * 200, ".hidden", "same"],
)
def test_names_of_files_for_tensors(tmp_path: Path, name: str) -> None:
    model = ModelProto(ir_version=10)
    for i, tensor_name in enumerate(["same", name, "same"]):
        model.graph.initializer.append(from_array(np.full(500, i, np.float32), tensor_name))
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "m.onnx"
    save(model, path, save_as_external_data=True, all_tensors_to_one_file=False)
    assert len(os.listdir(folder)) == 4
    assert os.listdir(tmp_path) == ["folder"]
    assert load(path) == model


def test_names_of_tensors_need_not_be_utf8(tmp_path: Path) -> None:
    model = ModelProto(ir_version=10)
    model.graph.initializer.append(from_array(np.zeros(500, np.float32)))
    model.graph.initializer[0].MergeFromString(b"\x42\x02\xff\xfe")  # name
    path = tmp_path / "m.onnx"
    save(model, path, save_as_external_data=True, all_tensors_to_one_file=False)
    assert len(os.listdir(tmp_path)) == 2
    assert load(path) == model


def test_readers_keep_the_old_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = ModelProto(ir_version=10)
    model.graph.initializer.append(from_array(np.zeros(100_000, np.float32), "w"))
    save(model, path, save_as_external_data=True)
    with open(tmp_path / "m.onnx.data", "rb") as reader:
        model.graph.initializer[0].CopyFrom(from_array(np.ones(10, np.float64), "w"))
        save(model, path, save_as_external_data=True, size_threshold=1)
        assert reader.read() == bytes(400_000)
    assert to_array(load(path).graph.initializer[0]).tolist() == [1] * 10


def test_encoded_values_and_pages_go_outside(tmp_path: Path) -> None:
    model = ModelProto(ir_version=10)
    model.graph.encoded_initializer.add(name="e", raw_data=b"e" * 2000, affine={})
    block = model.graph.paged_cache_initializer.add(name="c").blocks.add(start=0, length=1)
    block.key.CopyFrom(from_array(np.ones((1, 1, 1, 500), np.float32)))
    block.encoded_value.raw_data = b"v" * 3000
    path = tmp_path / "m.onnx"
    save(model, path, save_as_external_data=True)
    kept = load(path, load_external_data=False)
    assert kept.graph.encoded_initializer[0].data_location == TensorProto.EXTERNAL
    assert path.stat().st_size < 1000
    assert (tmp_path / "m.onnx.data").stat().st_size >= 7000
    assert load(path) == model
    assert load_opened(path) == model


def test_refused_external_data(tmp_path: Path, model: ModelProto) -> None:
    (tmp_path / "w.data").write_bytes(bytes(4000))
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder/m.onnx"
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../w.data")
    save(model, path)
    for read in (load, load_opened):
        with pytest.raises(CodedError) as caught:
            read(path)
        assert caught.value.code == "external.path"
        assert caught.value.path == "graph.initializer[0]"
    assert load(path, load_external_data=False) == model


def test_without_the_onnx_package(
    tmp_path: Path, model: ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    save(model, tmp_path / "m.onnx", save_as_external_data=True)
    assert load(tmp_path / "m.onnx") == model
    with pytest.raises(CodedError, match="onnx package"):
        save(model, tmp_path / "m.json")
