"""Snapshots through Python: sources, errors, identities, reports."""

from __future__ import annotations

import gc
import gzip
import hashlib
import io
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_light import ModelIdentity, PagedCache, onnx, snapshot
from onnx_light.errors import CodedError
from onnx_light.identity import PREFIX


def cache(tokens: int = 45, seed: int = 1, **options: Any) -> PagedCache:
    rows = np.random.default_rng(seed).standard_normal((2, 1, 2, tokens, 8)).astype(np.float16)
    return PagedCache.from_arrays(*rows, **{"page_size": 16, **options})


def caches(tokens: int = 45) -> dict[str, PagedCache]:
    return {f"layers.{i}": cache(tokens, i) for i in range(3)}


def coded(error: pytest.ExceptionInfo[ValueError]) -> CodedError:
    assert isinstance(error.value, CodedError)
    return error.value


def test_every_kind_of_source(tmp_path: Path) -> None:
    content = caches()
    path = tmp_path / "a.kvcache"
    report = snapshot.save(content, path, tokens=range(45))
    data = path.read_bytes()
    assert report.nbytes == len(data)
    assert report.to_dict()["records"] == 1
    assert str(report).startswith(f"{len(data)} bytes in 1 record")
    unaligned = memoryview(b"x" + data)[1:]
    writable = bytearray(data)
    with path.open("rb") as file, path.open("rb", buffering=0) as raw:
        file.seek(7)
        for source in (path, str(path), data, unaligned, writable, file, raw, io.BytesIO(data)):
            with snapshot.open(source, verify="full") as opened:
                assert dict(opened.caches) == content
                assert opened.tokens is not None
                assert np.array_equal(opened.tokens, np.arange(45))
                assert not opened.tokens.flags.writeable
            assert snapshot.verify(source).ok
        assert file.tell() == 7
    writable[:] = bytes(len(writable))
    with pytest.raises(TypeError, match="not int"):
        snapshot.open(3)  # type: ignore[arg-type]


def test_file_objects_give_what_they_read(tmp_path: Path) -> None:
    """Not what lies in the file behind them, which may be compressed, or not all of it yet."""
    content = {"a": cache(3000)}
    data = snapshot.dumps(content)
    with gzip.open(tmp_path / "a.gz", "wb") as packed:
        packed.write(data)
    with (
        gzip.open(tmp_path / "a.gz", "rb") as packed,
        (tmp_path / "buffered").open("w+b") as buffered,
        tempfile.SpooledTemporaryFile(len(data)) as spooled,
        tempfile.NamedTemporaryFile() as named,
    ):
        for file in (buffered, spooled, named):
            file.write(data[:-100])
            file.write(data[-100:])
        for source in (packed, buffered, spooled, named):
            assert dict(snapshot.open(source).caches) == content
            assert snapshot.verify(source).ok
        mapped = mmap.mmap(buffered.fileno(), 0, access=mmap.ACCESS_READ)
        with snapshot.open(mapped) as opened:
            kept = opened["a"]
            with pytest.raises(BufferError):  # used where it lies
                mapped.close()
        assert kept == content["a"]
        del kept, opened
        mapped.close()


@pytest.mark.parametrize("size", [1000, 1023, 1024, 1 << 18, (1 << 18) + 1, 3 << 20])
def test_names_and_entries_of_any_size(tmp_path: Path, size: int) -> None:
    text = "x" * size
    content = {"a" + text: cache(seed=1), "b" + text: cache(seed=2)}
    options: dict[str, Any] = {
        "identity": ModelIdentity(salt=text),
        "metadata": {text: text, "k": "v"},
    }
    path = tmp_path / "a.kvcache"
    snapshot.save(content, path, **options)
    assert path.read_bytes() == snapshot.dumps(content, **options)
    with snapshot.open(path) as opened:
        assert opened.verify().ok
        assert dict(opened.caches) == content
        assert (opened.identity.salt, opened.metadata) == (text, options["metadata"])


def test_a_buffer_lives_as_long_as_a_page_of_it() -> None:
    class Owner(bytearray):
        pass

    owner = Owner(snapshot.dumps(caches()))
    alive = weakref.ref(owner)
    opened = snapshot.open(memoryview(owner).toreadonly())
    kept = opened["layers.1"]
    del owner
    opened.close()
    del opened
    gc.collect()
    assert alive() is not None
    assert kept == cache(45, 1)
    del kept
    gc.collect()
    assert alive() is None


def test_caches_is_a_mapping_in_order() -> None:
    names = ["b", "a", "c"]
    opened = snapshot.open(snapshot.dumps({name: cache(5, i) for i, name in enumerate(names)}))
    assert list(opened.caches) == names
    assert len(opened.caches) == 3
    assert "a" in opened.caches
    assert "d" not in opened.caches
    assert "a" in opened
    assert "d" not in opened
    assert opened[1] == opened["a"] == opened[-2] == opened.caches["a"]
    with pytest.raises(KeyError):
        opened["d"]
    with pytest.raises(IndexError):
        opened[3]
    assert (
        repr(opened) == f"<Snapshot of 3 caches, positions [0, 5), {3 * 2 * 5 * 2 * 8 * 2} bytes>"
    )
    assert repr(opened.caches) == "<caches b, a, c>"


def test_asking_for_a_name_reads_no_cache() -> None:
    data = bytearray(snapshot.dumps(caches()))
    keys = caches()["layers.1"].pages[0].key.array
    data[data.index(keys[0, 0, 0].tobytes())] ^= 1
    opened = snapshot.open(bytes(data))
    assert "layers.1" in opened
    assert "layers.1" in opened.caches
    with pytest.raises(CodedError):
        opened["layers.1"]


def test_closed() -> None:
    opened = snapshot.open(snapshot.dumps(caches()))
    lazy = opened.caches
    opened.close()
    opened.close()
    for use in (lambda: opened["layers.0"], lambda: lazy["layers.0"], lambda: opened.tokens):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert repr(opened) == "<Snapshot, closed>"


def test_slice() -> None:
    content = caches()
    opened = snapshot.open(snapshot.dumps(content, tokens=np.arange(90).reshape(1, 90)[:, :45]))
    part = opened.slice(10, 20)
    assert (part.start, part.end, len(part)) == (10, 20, 10)
    assert dict(part.caches) == {name: c.slice(10, 20) for name, c in content.items()}
    assert part.tokens is not None
    assert part.tokens.shape == (1, 20)
    assert part.identity == opened.identity
    with pytest.raises(CodedError, match="does not lie"):
        part.slice(9, 20)


def test_model() -> None:
    content = caches()
    data = snapshot.dumps(
        content, tokens=np.arange(45), identity=ModelIdentity(salt="s"), metadata={"k": "v"}
    )
    model = snapshot.open(data).model
    onnx.check_model(model)
    graph = model.graph
    assert [
        PagedCache.from_proto(proto, page_size=16) for proto in graph.paged_cache_initializer
    ] == list(content.values())
    assert np.array_equal(onnx.to_array(graph.initializer[0]), np.arange(45))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata == {PREFIX + "salt": "s", "k": "v"}
    # Canonical, without a trace of the format.
    assert b"kvend" not in model.SerializeToString()
    assert onnx.ModelProto.FromString(model.SerializeToString()) == model


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "a.kvcache"
    for code, where, arguments in (
        ("snapshot.end", "layers.1", {"caches": [cache(45), cache(44)]}),
        ("snapshot.tokens", "tokens", {"caches": [cache()], "tokens": [1, 2]}),
        ("snapshot.tokens", "tokens", {"caches": [cache()], "tokens": np.zeros((1, 1, 45), int)}),
        ("snapshot.tokens", "tokens", {"caches": [cache()], "tokens": np.zeros((2, 45), int)}),
        (
            "snapshot.tokens",
            "tokens",
            {"caches": [cache()], "tokens": np.full(45, 2**63, np.uint64)},
        ),
        ("snapshot.metadata", "metadata[onnx_light.x]", {"metadata": {"onnx_light.x": ""}}),
        ("snapshot.name", "caches[0]", {"caches": {"": cache()}}),
        ("snapshot.policy", "policy['x']", {"policy": {"x": "int8"}}),
        ("quant.policy", "policy", {"policy": ""}),
        ("quant.width", "layers.0.key", {"policy": "k=q8_0"}),
    ):
        with pytest.raises(CodedError) as error:
            snapshot.save(**{"caches": caches(), "path": path, **arguments})  # type: ignore[arg-type]
        assert (error.value.code, error.value.path) == (code, where)
    for words, arguments in (
        (r"^caches: a mapping or a sequence", {"caches": cache()}),
        (r"^caches\['a'\]: a PagedCache", {"caches": {"a": np.zeros(3)}}),
        (r"^caches\[3\]: a name is text", {"caches": {3: cache()}}),
        (r"^tokens: .* not float64", {"tokens": np.zeros(45)}),
        (r"^tokens: .* not bool", {"tokens": [True] * 45}),
        (r"^metadata\['a'\]: text .* not 1$", {"metadata": {"a": 1}}),
        (r"^metadata\[1\]: text", {"metadata": {1: "a"}}),
        (r"^identity: a ModelIdentity .* not str", {"identity": "llama"}),
    ):
        with pytest.raises(TypeError, match=words):
            snapshot.save(**{"caches": caches(), "path": path, **arguments})  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        snapshot.save(caches(), tmp_path / "no" / "a.kvcache")
    assert list(tmp_path.iterdir()) == []


def test_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a.kvcache"
    snapshot.save(caches(), path, overwrite=False)
    before = snapshot.open(path)
    with pytest.raises(FileExistsError) as error:
        snapshot.save(caches(10), path, overwrite=False)
    assert error.value.filename == os.fspath(path)
    snapshot.save(caches(10), path)
    assert len(snapshot.open(path)) == 10
    assert dict(before.caches) == caches()  # the old file, as it was mapped


def test_progress(tmp_path: Path) -> None:
    rows = np.zeros((1, 1, 4096, 1024), np.float32)
    big = [PagedCache.from_arrays(rows, rows)]
    path = tmp_path / "a.kvcache"

    def stop(done: int, total: int) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError):
        snapshot.save(big, path, progress=stop)
    assert list(tmp_path.iterdir()) == []
    for call in (
        lambda told: snapshot.save(big, path, sync=False, progress=told),
        lambda told: snapshot.dumps(big, progress=told),
        lambda told: snapshot.verify(path, told),
        lambda told: snapshot.open(path).verify(told),
    ):
        steps: list[tuple[int, int]] = []
        call(lambda done, total, steps=steps: steps.append((done, total)))
        size = path.stat().st_size
        assert len(steps) >= 2
        assert steps == sorted(steps)
        assert steps[-1] == (size, size)


def damaged(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def test_report(tmp_path: Path) -> None:
    content = caches()
    data = snapshot.dumps(content)
    page = content["layers.1"].pages[2]
    at = data.find(page.key.array[0, 0].tobytes())
    assert at > 0
    path = tmp_path / "a.kvcache"
    path.write_bytes(damaged(data, at + 4))
    report = snapshot.verify(path)
    assert not report.ok
    (problem,) = report.problems
    assert (problem.layer, problem.page) == ("layers.1", 2)
    assert problem.offset <= at
    assert report.to_dict()["problems"][0]["code"] == "snapshot.corrupt"
    assert json.loads(json.dumps(report.to_dict()))["ok"] is False
    assert "layers.1.blocks[2]" in str(report)
    with pytest.raises(CodedError) as error:
        snapshot.open(path)["layers.1"]
    assert error.value.path == f"{path}: layers.1.blocks[2]"
    assert snapshot.verify(data).to_dict() == {
        "ok": True,
        "length": 45,
        "records": 1,
        "problems": (),
        "bytes_checked": len(data),
    }
    assert str(snapshot.verify(data)) == f"45 tokens in 1 record, {len(data)} bytes checked: ok"


def test_recover() -> None:
    data = snapshot.dumps(caches())
    torn = data + data[:100]
    with pytest.raises(CodedError) as error:
        snapshot.open(torn)
    assert error.value.code == "snapshot.torn"
    assert dict(snapshot.open(torn, recover=True).caches) == caches()
    assert [problem.code for problem in snapshot.verify(torn).problems] == ["snapshot.torn"]


def test_what_is_no_snapshot(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with empty.open("rb") as file:
        for source in (empty, file, b""):
            with pytest.raises(CodedError, match="empty"):
                snapshot.open(source)
    with pytest.raises(CodedError) as error:
        snapshot.verify(b"GGUF" + bytes(100))
    assert error.value.code == "snapshot.kind"
    with pytest.raises(IsADirectoryError):
        snapshot.open(tmp_path)
    with pytest.raises(ValueError, match="'lazy' or 'full'"):
        snapshot.open(snapshot.dumps([]), verify="some")  # type: ignore[arg-type]


def test_many_threads_open_and_read(tmp_path: Path) -> None:
    path = tmp_path / "a.kvcache"
    content = caches(300)
    snapshot.save(content, path)
    shared = snapshot.open(path)
    failures: list[object] = []

    def work() -> None:
        try:
            assert dict(shared.caches) == content
            assert dict(snapshot.open(path, verify="full").caches) == content
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.kvcache"
    snapshot.save(caches(20), path)
    code = (
        "import sys; from onnx_light import snapshot\n"
        "for _ in range(200): assert len(snapshot.open(sys.argv[1], verify='full')) in (20, 45)"
    )
    reader = subprocess.Popen([sys.executable, "-c", code, str(path)])
    while reader.poll() is None:
        snapshot.save(caches(45), path, sync=False)
        snapshot.save(caches(20), path, sync=False)
    assert reader.returncode == 0


class TestIdentity:
    FULL = ModelIdentity(
        architecture="llama",
        weights="sha256:aa",
        revision="r",
        adapters=("one", "two"),
        tokenizer="sha256:bb",
        rope="100000",
        key_layout="half",
        context=8192,
        shard="0/2",
        dtype="float16",
        salt="s",
        producer="p",
        extra={"k": "v", "n": 3},
    )

    def test_comes_back(self) -> None:
        opened = snapshot.open(snapshot.dumps([], identity=self.FULL))
        assert opened.identity == self.FULL
        assert hash(opened.identity) == hash(self.FULL)
        assert snapshot.open(snapshot.dumps([])).identity == ModelIdentity()
        assert opened.metadata == {}

    def test_every_field_counts_but_two(self) -> None:
        data = snapshot.dumps([], identity=self.FULL)
        for name, value in vars(self.FULL).items():
            other: Any = {str: "x", int: 1, tuple: ("x",), dict: {"x": "y"}}[type(value)]
            expect = ModelIdentity(**{name: other})
            if name in ("producer", "extra"):
                snapshot.open(data, expect=expect)
                continue
            with pytest.raises(CodedError, match=name) as error:
                snapshot.open(data, expect=expect)
            assert error.value.code == "snapshot.identity"
            snapshot.open(data, expect=ModelIdentity(**{name: value}))
        snapshot.open(data, expect=ModelIdentity())
        snapshot.open(snapshot.dumps([]), expect=self.FULL)
        with pytest.raises(TypeError, match=r"^expect: a ModelIdentity .* not str"):
            snapshot.open(data, expect="llama")  # type: ignore[arg-type]

    def test_types(self) -> None:
        wrong: dict[str, Any] = {"weights": 3, "context": -1, "adapters": "x", "extra": {1: 2}}
        for name, value in {**wrong, "salt": None}.items():
            with pytest.raises(TypeError, match=name):
                ModelIdentity(**{name: value})

    def test_a_value_that_cannot_be_read(self) -> None:
        deep = "[" * 200_000
        for name, text in (
            ("context", "many"),
            ("context", "9" * 10_000),
            ("context", "1e400"),
            ("adapters", "{}"),
            ("adapters", deep),
            ("extra", "["),
            ("extra", deep),
        ):
            with pytest.raises(CodedError, match=name) as error:
                ModelIdentity.from_metadata({name: text})
            assert error.value.code == "identity.value"
        assert ModelIdentity.from_metadata({"later": "x", "salt": "s"}) == ModelIdentity(salt="s")

    def test_of_an_onnx_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
        raw = onnx.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
        typed = onnx.TensorProto(name="b", dims=[2], data_type=7, int64_data=[1, -1])
        model = onnx.ModelProto(ir_version=10, graph={"initializer": [raw, typed]})
        path = tmp_path / "m.onnx"
        onnx.save(model, path)
        # Line by line what a digest of weights is over.
        lines = (
            f"b\tINT64\t2\t{hashlib.sha256(np.array([1, -1]).tobytes()).hexdigest()}\n"
            f"w\tFLOAT\t2,3\t{hashlib.sha256(np.arange(6, dtype='f4').tobytes()).hexdigest()}\n"
        )
        weights = "sha256:" + hashlib.sha256(lines.encode()).hexdigest()
        assert ModelIdentity.from_onnx(path) == ModelIdentity(weights=weights)
        onnx.save(model, path, save_as_external_data=True, size_threshold=0)
        assert ModelIdentity.from_onnx(path) == ModelIdentity(weights=weights)
        for key, value in self.FULL.to_metadata().items():
            model.metadata_props.add(key=PREFIX + key, value=value)
        onnx.save(model, path)
        assert ModelIdentity.from_onnx(path) == self.FULL
