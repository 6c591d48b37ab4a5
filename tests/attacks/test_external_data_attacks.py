"""Attacks on external data, one test for each idea of README.md."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper
import pytest
from attack import (
    DATA,
    READERS,
    SECRET,
    Entries,
    at,
    exchanging,
    outcome,
    outcomes,
    parse_inline,
    parse_one_file,
    tensor_bytes,
    write_model,
)

from onnx_light import onnx as light
from onnx_light.errors import CodedError

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with the data file `w.bin`, beside a folder with a secret."""
    folder = tmp_path / "model"
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "w.bin").write_bytes(DATA)
    (folder / "sub/w.bin").write_bytes(DATA)
    (folder / "sub/deep/w.bin").write_bytes(DATA)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/w.bin").write_bytes(SECRET)
    return folder


def test_readme_lists_these_tests() -> None:
    named = re.findall(r"`(test_\w+)`", (HERE / "README.md").read_text(encoding="utf-8"))
    here = [name for name in globals() if name.startswith("test_")]
    assert sorted(named) == sorted(set(here) - {"test_readme_lists_these_tests"})


def test_honest_references_are_read(folder: Path) -> None:
    for location in ("w.bin", "./w.bin", "sub//deep/./w.bin"):
        assert outcomes(folder, at(location)) == {DATA}
    assert outcomes(folder, at("w.bin", offset="0", length="4", checksum="x")) == {DATA}


# ---------------------------------------------------------------------------------------------
# Paths


@pytest.mark.parametrize(
    "location",
    ["..", "../outside/w.bin", "./../outside/w.bin", "sub/../../outside/w.bin", "sub/../w.bin",
     "sub/deep/../../../outside/w.bin", "../model/w.bin", "w.bin/..", "sub/.."],
)  # fmt: skip
def test_parent_folders(folder: Path, location: str) -> None:
    assert outcomes(folder, at(location)) == {"external.path"}


def test_absolute_paths(folder: Path) -> None:
    outside = folder.parent / "outside/w.bin"
    for location in (str(outside), f"/{outside}", f"//{outside}", str(folder / "w.bin"), "/"):
        assert outcomes(folder, at(location)) == {"external.path"}


def test_locations_that_are_no_files(folder: Path) -> None:
    assert outcomes(folder, at("")) == {"external.location"}
    assert outcomes(folder, []) == {"external.location"}
    assert outcomes(folder, [("offset", "0")]) == {"external.location"}
    assert outcomes(folder, at("#t0")) == {"external.location"}
    for location in (".", "sub/", "sub/.", "w.bin/"):
        assert outcomes(folder, at(location)) == {"external.path"}
    assert outcomes(folder, at("./")) <= {"external.path", "external.location"}
    assert outcomes(folder, at("sub")) == {"external.not_regular"}
    assert outcomes(folder, at("w.bin/x")) == {"NotADirectoryError"}


@pytest.mark.parametrize(
    "location",
    ["..\\outside\\w.bin", "..%2foutside%2fw.bin", "%2e%2e/outside/w.bin", "~/w.bin", "$PWD/w.bin",
     "file:w.bin", "C:\\w.bin", "\uff0e\uff0e/outside/w.bin", "\u2025/outside/w.bin", "W.BIN",
     "w.bin ", " w.bin", "w\u200b.bin", "w.bin\n", ". ./w.bin", ".../w.bin", "*.bin", "w.bin;x",
     b"\xc0\xae\xc0\xae/outside/w.bin", b"..\xc0\xafoutside\xc0\xafw.bin", b"\xff"],
)  # fmt: skip
def test_other_spellings_are_other_names(folder: Path, location: str | bytes) -> None:
    """Nothing is decoded, folded or expanded, so these are names of files that are not there."""
    assert outcomes(folder, at(location)) == {"FileNotFoundError"}


def test_names_that_only_look_dangerous(folder: Path) -> None:
    names = ["...", "a..b", "..a", "a..", "w\\..\\x", " .. "]
    for name in [os.fsencode(name) for name in names] + [b"\xff\xc0\xae"]:
        (folder / os.fsdecode(name)).write_bytes(DATA)
        assert outcomes(folder, at(name)) == {DATA}


def test_nul_bytes(folder: Path) -> None:
    for location in ("w.bin\0", "w.bin\0.png", "\0", "sub\0/w.bin", "\0/../../outside/w.bin"):
        assert outcomes(folder, at(location)) == {"external.path"}


def test_very_long_names(folder: Path) -> None:
    assert outcomes(folder, at("x" * 256)) == {"OSError"}  # ENAMETOOLONG
    assert outcomes(folder, at("./" * 2000 + "w.bin")) == {DATA}
    for location in ("x/" * 2048 + "x", "x" * 1_000_000, "../" * 300_000):
        assert outcomes(folder, at(location)) == {"external.path"}


def test_two_locations(folder: Path) -> None:
    """Checks and reads must not mean different ones: the last counts for all."""
    outside = [("location", "../outside/w.bin")]
    assert outcomes(folder, at("w.bin") + outside) == {"external.path"}
    assert outcomes(folder, outside + at("w.bin")) == {DATA}


def test_two_offsets_and_lengths(folder: Path) -> None:
    for key, good, bad in (("offset", "0", "1"), ("length", "4", "5"), ("offset", "0", "-1")):
        code = "external.number" if bad == "-1" else "external.range"
        entries = [*at("w.bin"), ("length", "4")]
        assert outcomes(folder, [*entries, (key, bad), (key, good)]) == {DATA}
        assert outcomes(folder, [*entries, (key, good), (key, bad)]) == {code}


def test_the_model_as_its_own_data(folder: Path) -> None:
    """It may name itself: these are bytes that the reader has anyway."""
    path = folder / "m.onnx"
    write_model(path, tensor_bytes(at("m.onnx", length="4")))
    for name in set(READERS) - {"check_model"}:
        assert outcome(READERS[name], path) == path.read_bytes()[:4]


def test_other_keys_mean_nothing(folder: Path) -> None:
    keys = ["basepath", "__class__", "raw_data", "Location", " location", "location\0", "path", ""]
    entries = [(key, "../outside") for key in keys]
    assert outcomes(folder, entries + at("w.bin") + entries) == {DATA}
    assert outcomes(folder, [(b"\xff", b"\xff"), *at("w.bin")]) == {DATA}


# ---------------------------------------------------------------------------------------------
# Links and files that are no files


@pytest.mark.parametrize("component", ["w.bin", "sub", "sub/deep", "sub/deep/w.bin"])
@pytest.mark.parametrize("target", ["absolute", "relative", "inside"])
def test_symbolic_links(folder: Path, component: str, target: str) -> None:
    """A link at any component, to the outside or not."""
    place = folder / component
    place.rename(folder / "moved")
    outside = folder.parent / "outside"
    if place.suffix:
        goal = outside / "w.bin" if target != "inside" else folder / "moved"
    else:
        goal = outside if target != "inside" else folder / "moved"
    place.symlink_to(os.path.relpath(goal, place.parent) if target == "relative" else goal)
    location = {"sub": "sub/deep/w.bin", "sub/deep": "sub/deep/w.bin"}.get(component, component)
    assert outcomes(folder, at(location)) == {"external.link"}


def test_links_in_a_circle(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert outcomes(folder, at("a")) == {"external.link"}
    assert outcomes(folder, at("a/w.bin")) == {"external.link"}
    with pytest.raises(OSError, match="symbolic links"):
        parse_inline(folder / "m.onnx", trusted_links=True)


def test_hard_links(folder: Path) -> None:
    os.link(folder.parent / "outside/w.bin", folder / "hard")
    assert outcomes(folder, at("hard")) == {"external.link"}
    (folder.parent / "outside/w.bin").unlink()
    write_model(folder / "m.onnx", tensor_bytes(at("hard")))
    assert parse_inline(folder / "m.onnx") == SECRET  # now the only name


def test_trusted_links_do_not_open_other_paths(folder: Path) -> None:
    (folder / "link").symlink_to("../outside/w.bin")
    path = folder / "m.onnx"
    write_model(path, tensor_bytes(at("link")))
    assert parse_inline(path, trusted_links=True) == SECRET  # what it is for
    for location in ("../outside/w.bin", str(folder.parent / "outside/w.bin"), "link/../w.bin"):
        write_model(path, tensor_bytes(at(location)))
        with pytest.raises(CodedError) as caught:
            parse_inline(path, trusted_links=True)
        assert caught.value.code == "external.path"


def test_the_folder_itself_may_be_a_link(folder: Path) -> None:
    """The way to the model is the user's, and no part of the location."""
    (folder.parent / "alias").symlink_to("model")
    assert outcomes(folder.parent / "alias", at("sub/w.bin")) == {DATA}


def test_device_files(folder: Path) -> None:
    for name, device in (("zero", os.makedev(1, 5)), ("tty", os.makedev(5, 0))):
        try:
            os.mknod(folder / name, stat.S_IFCHR | 0o600, device)
        except PermissionError:
            pytest.skip("only root can make devices")
        assert outcomes(folder, at(name, length="4")) == {"external.not_regular"}
    (folder / "link").symlink_to("/dev/zero")
    assert outcomes(folder, at("link", length="4")) == {"external.link"}
    with pytest.raises(CodedError) as caught:
        parse_inline(folder / "m.onnx", trusted_links=True)
    assert caught.value.code == "external.not_regular"


def test_sockets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert outcomes(folder, at("socket")) == {"external.not_regular"}


# Reads a model with every reader in a process that may hang; prints the outcomes.
READ_ALL = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from attack import READERS, outcome
print({{outcome(read, Path({path!r})) for read in READERS.values()}})
"""


def read_elsewhere(path: Path) -> str:
    code = READ_ALL.format(here=str(HERE), path=str(path))
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_fifos_do_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    write_model(folder / "m.onnx", tensor_bytes(at("fifo")))
    assert read_elsewhere(folder / "m.onnx") == "{'external.not_regular'}"
    with pytest.raises(CodedError) as caught:  # where the caller expects the data
        light.ModelProto().ParseFromFile(folder / "m.onnx", external_data_file=folder / "fifo")
    assert caught.value.code == "file.not_regular"
    os.mkfifo(folder / "fifo.onnx")  # the model itself
    with pytest.raises(CodedError) as caught:
        light.ModelProto().ParseFromFile(folder / "fifo.onnx")
    assert caught.value.code == "file.not_regular"


def test_proc_files(folder: Path) -> None:
    for location in ("../../../../proc/self/environ", "/proc/self/environ"):
        assert outcomes(folder, at(location)) == {"external.path"}
    (folder / "link").symlink_to("/proc/self/environ")
    (folder / "process").symlink_to("/proc/self")
    for location in ("link", "process/environ", "process/cwd/w.bin", "process/root/etc/passwd"):
        assert outcomes(folder, at(location)) == {"external.link"}
    write_model(folder / "m.onnx", tensor_bytes(at("link", length="4")))
    with pytest.raises(CodedError) as caught:  # it claims to have no bytes
        parse_inline(folder / "m.onnx", trusted_links=True)
    assert caught.value.code == "external.range"


# ---------------------------------------------------------------------------------------------
# Numbers

NO_NUMBERS = [
    "", "-1", "-0", "+1", " 1", "1 ", "1\n", "\t1", "0x1", "0b1", "0o1", "1.0", "1e1", "1_0", "1,0",
    "one", "\u0661", "\uff11", "1\0", "18446744073709551616", "-18446744073709551615", "9" * 400,
    "nan", "inf", b"1\xff", b"\xff",
]  # fmt: skip


@pytest.mark.parametrize("number", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("key", ["offset", "length"])
def test_texts_that_are_no_numbers(folder: Path, key: str, number: str | bytes) -> None:
    assert outcomes(folder, [*at("w.bin"), (key, number)]) == {"external.number"}
    assert outcome(parse_one_file, folder / "m.onnx") == "external.number"


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 5), (1, 4), (4, 1), (5, 0), (5, None), (2**63 - 1, 1), (2**63, 1), (2**64 - 1, 1),
     (1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (2**64 - 2, 6), (4, 2**63), (2**32, 4),
     (0, 2**32 + 4)],
)  # fmt: skip
def test_huge_numbers(folder: Path, offset: int, length: int | None) -> None:
    """Sums that would wrap, and lengths that nobody must allocate."""
    more = {"offset": str(offset)} | ({} if length is None else {"length": str(length)})
    # The option of ParseFromFile leaves payloads of its threshold and above where they are.
    left = {b""} if length is not None and length > 2**62 else set()
    assert outcomes(folder, at("w.bin", **more)) == {"external.range"} | left
    for name in ("load", "load of an open file", "to_array", "check_model"):
        assert outcome(READERS[name], folder / "m.onnx") == "external.range"
    assert outcome(parse_one_file, folder / "m.onnx") == "external.range"


def test_sizes_that_the_dims_deny(folder: Path) -> None:
    """The data may be smaller or larger than what the tensor's dims say: no read past its end."""
    path = folder / "m.onnx"
    for size in (3, 5, 2**40):
        write_model(path, tensor_bytes(at("w.bin"), size=size))
        tensor = light.load(path).graph.initializer[0]
        assert tensor.raw_data == DATA
        with pytest.raises(CodedError) as caught:
            light.to_array(tensor)
        assert caught.value.code == "tensor.size"
        for name in ("to_array", "check_model"):
            assert outcome(READERS[name], path) == "tensor.size"


# ---------------------------------------------------------------------------------------------
# More memory than there are bytes


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def test_overlapping_ranges_share_memory(folder: Path) -> None:
    """2,000 references to one file of 4 MiB would be 8 GiB as copies."""
    size = 4 << 20
    content = os.urandom(size)
    (folder / "large").write_bytes(content)
    path = folder / "m.onnx"
    locations = ["large", "./large", ".//large"]
    write_model(
        path, *(tensor_bytes(at(locations[i % 3], offset=str(i)), str(i)) for i in range(2000))
    )
    onnx.save(onnx.load(path, load_external_data=False), folder / "m.json", "json")

    def load_opened(name: str) -> Any:
        with (folder / name).open("rb") as file:
            return light.load(file)

    def parse(**options: Any) -> Any:
        model = light.ModelProto()
        model.ParseFromFile(path, light.ParseOptions(num_threads=2, **options))
        return model

    def parse_one(**options: Any) -> Any:
        model = light.ModelProto()
        model.ParseFromFile(path, light.ParseOptions(**options), folder / "large")
        return model

    stream = light.FileLoadMode.STREAM
    for load in (
        lambda: parse(tiny_external_data_threshold=2**62, file_load_mode=stream),
        lambda: parse_one(file_load_mode=stream),
        lambda: light.load(path),
        lambda: load_opened("m.onnx"),
        lambda: light.load(folder / "m.json"),
    ):
        before = resident()
        model = load()
        assert resident() - before < 100 << 20
        for i, tensor in enumerate(model.graph.initializer):
            view = tensor.payload("raw_data")
            assert len(view) == size - i
            assert view[0] == content[i]
            assert view[-1] == content[-1]


def test_huge_sparse_files_end_in_an_error(folder: Path) -> None:
    """A file can claim far more bytes than it has on the disk."""
    with (folder / "hole").open("wb") as file:
        file.truncate(1 << 42)
    write_model(folder / "m.onnx", tensor_bytes(at("hole")))
    with pytest.raises(CodedError) as caught:
        parse_inline(folder / "m.onnx", max_tensor_size_bytes=1 << 30)
    assert caught.value.code == "external.payload_limit"
    code = f"""
        import resource
        from onnx_light import onnx
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        try:
            onnx.load({str(folder / "m.onnx")!r})
        except MemoryError:
            print("MemoryError")
        onnx.load({str(folder / "m.onnx")!r}, load_external_data=False)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (result.returncode, result.stdout) == (0, "MemoryError\n"), result.stderr


def test_many_files_are_not_open_at_once(folder: Path) -> None:
    names = [f"{i}.bin" for i in range(300)]
    for name in names:
        (folder / name).write_bytes(DATA)
    write_model(folder / "m.onnx", *(tensor_bytes(at(name), name) for name in names))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        model = light.load(folder / "m.onnx")
        with (folder / "m.onnx").open("rb") as file:
            assert light.load(file) == model
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(tensor.raw_data == DATA for tensor in model.graph.initializer)
    assert len(os.listdir("/proc/self/fd")) == used


# ---------------------------------------------------------------------------------------------
# Contradictions, and everywhere in a model

INLINE: dict[str, Any] = {
    "raw_data": b"evil", "float_data": [1.0], "int32_data": [1, 2, 3, 4], "string_data": [b"evil"],
    "int64_data": [1], "double_data": [1.0], "uint64_data": [1],
}  # fmt: skip


@pytest.mark.parametrize("field", INLINE)
def test_inline_data_beside_external(folder: Path, field: str) -> None:
    """Two readers could see two different tensors."""
    inline = onnx.TensorProto(**{field: INLINE[field]}).SerializeToString()
    path = folder / "m.onnx"
    write_model(path, tensor_bytes(at("w.bin")) + inline)
    assert {outcome(read, path) for read in READERS.values()} == {"external.inline"}


def test_entries_of_an_inline_tensor_are_not_followed(folder: Path) -> None:
    tensor = onnx.TensorProto(name="w", dims=[4], data_type=2, raw_data=DATA)
    tensor.external_data.add(key="location", value="../outside/w.bin")
    path = folder / "m.onnx"
    for location in (None, onnx.TensorProto.DEFAULT):
        if location is not None:
            tensor.data_location = location
        write_model(path, tensor.SerializeToString())
        for name in set(READERS) - {"check_model"}:
            assert outcome(READERS[name], path) == DATA


TENSOR = onnx.TensorProto.FromString(tensor_bytes(at("../outside/w.bin")))
GRAPH = onnx.GraphProto(initializer=[TENSOR])
ATTRIBUTES = {
    "t": onnx.AttributeProto(name="a", t=TENSOR),
    "tensors": onnx.AttributeProto(name="a", tensors=[TENSOR]),
    "sparse_tensor": onnx.AttributeProto(name="a", sparse_tensor={"values": TENSOR}),
    "g": onnx.AttributeProto(name="a", g=GRAPH),
    "graphs": onnx.AttributeProto(name="a", graphs=[GRAPH]),
}
NODES = {key: onnx.NodeProto(attribute=[value]) for key, value in ATTRIBUTES.items()}
PLACES = {
    **{f"attribute {key}": onnx.ModelProto(graph={"node": [node]}) for key, node in NODES.items()},
    "function": onnx.ModelProto(functions=[onnx.FunctionProto(node=[NODES["t"]])]),
    "training": onnx.ModelProto(training_info=[{"initialization": GRAPH}]),
    "sparse values": onnx.ModelProto(graph={"sparse_initializer": [{"values": TENSOR}]}),
    "sparse indices": onnx.ModelProto(graph={"sparse_initializer": [{"indices": TENSOR}]}),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_a_model(folder: Path, place: str) -> None:
    path = folder / "m.onnx"
    path.write_bytes(PLACES[place].SerializeToString())
    for name in ("load", "ParseFromFile"):
        assert outcome(READERS[name], path) == "external.path"


def test_every_place_of_a_cache(folder: Path) -> None:
    path = folder / "m.onnx"
    tensor = light.TensorProto.FromString(TENSOR.SerializeToString())
    encoded = light.EncodedValueProto(data_location=1, external_data=tensor.external_data)
    scaled = light.EncodedValueProto(affine={"scale": tensor})
    for block in (
        {"key": tensor},
        {"value": tensor},
        {"encoded_key": encoded},
        {"encoded_value": encoded},
        {"encoded_key": scaled},
    ):
        model = light.ModelProto()
        model.graph.paged_cache_initializer.add(blocks=[block])
        light.save(model, path)
        assert outcome(READERS["load"], path) == "external.path"


def test_a_refusal_changes_nothing(folder: Path) -> None:
    """The good tensors before the bad one are not half loaded."""
    path = folder / "m.onnx"
    write_model(path, tensor_bytes(at("w.bin")), tensor_bytes(at("../x"), "bad"))
    model = light.ModelProto(domain="kept")
    with pytest.raises(CodedError) as caught:
        model.ParseFromFile(path, light.ParseOptions(tiny_external_data_threshold=100))
    assert caught.value.path == "graph.initializer[1]"
    assert model == light.ModelProto(domain="kept")


# ---------------------------------------------------------------------------------------------
# Races


def race(folder: Path, entries: Entries, *allowed: str | bytes) -> None:
    """Reads until every reader has seen all outcomes, and never another one."""
    path = folder / "m.onnx"
    write_model(path, tensor_bytes(entries))
    for name in ("load", "load of an open file", "ParseFromFile", "to_array"):
        seen: set[str | bytes] = set()
        for i in range(30_000):
            seen.add(outcome(READERS[name], path))
            assert seen <= {*allowed, "NotADirectoryError"}, name
            if i >= 200 and seen >= set(allowed):
                break
        assert seen >= set(allowed), name


def test_a_folder_becomes_a_link(folder: Path) -> None:
    (folder / "swap").symlink_to("../outside")
    with exchanging(folder / "sub", folder / "swap"):
        race(folder, at("sub/w.bin", length="4"), DATA, "external.link")


def test_a_file_becomes_a_link(folder: Path) -> None:
    (folder / "swap").symlink_to("../outside/w.bin")
    with exchanging(folder / "w.bin", folder / "swap"):
        race(folder, at("w.bin", length="4"), DATA, "external.link")


def test_a_file_becomes_a_hard_link(folder: Path) -> None:
    os.link(folder.parent / "outside/w.bin", folder / "swap")
    with exchanging(folder / "w.bin", folder / "swap"):
        race(folder, at("w.bin", length="4"), DATA, "external.link")


def test_a_file_becomes_a_fifo(folder: Path) -> None:
    os.mkfifo(folder / "swap")
    with exchanging(folder / "w.bin", folder / "swap"):
        race(folder, at("w.bin"), DATA, "external.not_regular")


def test_a_file_changes_its_size(folder: Path) -> None:
    """Shrinking after the check of the range is noticed; no bytes are made up."""
    path, data = folder / "m.onnx", folder / "w.bin"
    size = 1 << 20
    data.write_bytes(b"x" * size)
    write_model(path, tensor_bytes(at("w.bin", length=str(size)), size=size))
    stop = threading.Event()

    def resize() -> None:
        with data.open("r+b") as file:
            while not stop.is_set():
                file.truncate(10)
                file.seek(0)
                file.write(b"x" * size)
                file.flush()

    thread = threading.Thread(target=resize)
    thread.start()
    try:
        for name in ("load", "to_array"):
            for _ in range(300):
                result = outcome(READERS[name], path)
                if isinstance(result, bytes):
                    assert result == b"x" * size
                else:
                    assert result in ("external.range", "file.range", "file.changed")
    finally:
        stop.set()
        thread.join()


# ---------------------------------------------------------------------------------------------
# Writing


def large_model() -> Any:
    model = light.ModelProto(ir_version=10)
    model.graph.initializer.add(name="w", dims=[2000], data_type=2, raw_data=b"n" * 2000)
    return model


@pytest.mark.parametrize(
    "location", ["../outside/w.bin", "/tmp/w.bin", "link/w.bin", "sub/../w.bin", "", "sub/", "a\0"]
)
def test_writing_outside_the_folder(folder: Path, location: str) -> None:
    (folder / "link").symlink_to("../outside")
    before = sorted(os.listdir(folder))
    with pytest.raises(CodedError) as caught:
        light.save(large_model(), folder / "m.onnx", save_as_external_data=True, location=location)
    assert caught.value.code in ("external.path", "external.link")
    assert sorted(os.listdir(folder)) == before
    assert (folder.parent / "outside/w.bin").read_bytes() == SECRET


def test_writing_through_a_link(folder: Path) -> None:
    """A link where the data are to be is replaced or refused, and never followed."""
    (folder / "link").symlink_to("../outside/w.bin")
    path = folder / "m.onnx"
    with pytest.raises(CodedError) as caught:
        large_model().SerializeToFile(path, external_data_file=folder / "link")
    assert caught.value.code == "external.link"
    light.save(large_model(), path, save_as_external_data=True, location="link")
    assert not (folder / "link").is_symlink()
    assert light.load(path) == large_model()
    assert (folder.parent / "outside/w.bin").read_bytes() == SECRET


def write_data(path: Path, data: Path) -> bytes:
    large_model().SerializeToFile(path, external_data_file=data)
    return b"written"


def test_writing_while_links_appear(folder: Path) -> None:
    """A link that comes after the check is refused or replaced, and never followed."""
    target = folder.parent / "outside/w.bin"
    data, swap = folder / "data", folder / "swap"
    written = 0
    for _ in range(15):
        swap.unlink(missing_ok=True)
        swap.symlink_to(target)
        data.unlink(missing_ok=True)
        data.write_bytes(b"")
        with exchanging(data, swap):
            for _ in range(10):
                result = outcome(lambda path: write_data(path, data), folder / "m.onnx")
                assert result in (b"written", "external.link", "file.not_regular")
                assert target.read_bytes() == SECRET
                written += result == b"written"
    assert written > 0


def test_names_of_tensors_are_no_paths(folder: Path) -> None:
    model = light.ModelProto(ir_version=10)
    names = ["../outside/w.bin", "/tmp/x", "..", "sub/w.bin", "m.onnx", "a\0b", "x" * 300, ".", ""]
    for i, name in enumerate(names):
        model.graph.initializer.add(name=name, dims=[2000], data_type=2, raw_data=bytes([i]) * 2000)
    new = folder / "new"
    new.mkdir()
    light.save(model, new / "m.onnx", save_as_external_data=True, all_tensors_to_one_file=False)
    assert light.load(new / "m.onnx") == model
    assert len(os.listdir(new)) == 1 + len(names)
    assert (folder.parent / "outside/w.bin").read_bytes() == SECRET
    assert (folder / "sub/w.bin").read_bytes() == DATA


def test_references_are_not_followed_to_write(folder: Path) -> None:
    """Reading payloads again for a new data file keeps to the rules of reading."""
    (folder / "link").symlink_to("../outside/w.bin")
    options = light.SerializeOptions(use_external_data_location=False, raw_data_threshold=0)
    for location, code in (("../outside/w.bin", "external.path"), ("link", "external.link")):
        model = light.ModelProto()
        tensor = light.TensorProto.FromString(tensor_bytes(at(location)))
        model.graph.initializer.append(tensor)
        with pytest.raises(CodedError) as caught:
            model.SerializeToFile(folder / "new.onnx", options, folder / "new.data")
        assert caught.value.code == code
    assert not (folder / "new.onnx").exists()
    assert json.dumps(sorted(os.listdir(folder))) == '["link", "sub", "w.bin"]'
