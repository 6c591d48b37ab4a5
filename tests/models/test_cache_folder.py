"""The cache folder: where it is, and that what it holds appears at once and is made once."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from onnx_light.models.cache_folder import cache_folder, kept_digests, published_folder

OLD = 10**18


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("ONNX_LIGHT_CACHE", "/own")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("ONNX_LIGHT_CACHE")
    assert cache_folder() == Path("/caches/onnx_light")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/someone/.cache/onnx_light")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill_slowly(place: Path) -> None:
    (place / "a").write_text("half")
    time.sleep(0.3)
    (place / "a").write_text(f"whole {os.getpid()}")


def publish(_: int) -> str:
    return (published_folder("models", "key", fill_slowly) / "a").read_text()


def test_processes_that_want_the_same_make_it_once(folder: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        answers = pool.map(publish, range(3), chunksize=1)
    assert len(set(answers)) == 1
    assert answers[0].startswith("whole ")


def test_a_failure_leaves_nothing(folder: Path) -> None:
    def fail(place: Path) -> None:
        (place / "a").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        published_folder("models", "key", fail)
    assert [entry.name for entry in (folder / "models").iterdir()] == ["key.lock"]


def test_what_a_killed_process_left_is_made_anew(folder: Path) -> None:
    left = folder / "models" / "key.unfinished"
    left.mkdir(parents=True)
    (left / "old").write_text("x")
    place = published_folder("models", "key", fill_slowly)
    assert [entry.name for entry in place.iterdir()] == ["a"]
    assert not left.exists()


class Compute:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, str]:
        self.calls += 1
        return {"weights": str(self.calls)}


def digest(path: Path, compute: Compute) -> str:
    return kept_digests([path], {"weights"}, compute)["weights"]


def test_digests_are_kept_by_size_time_and_inode(folder: Path, tmp_path: Path) -> None:
    path, compute = tmp_path / "file", Compute()
    path.write_bytes(b"abc")
    os.utime(path, ns=(OLD, OLD))
    assert [digest(path, compute) for _ in range(2)] == ["1", "1"]
    os.utime(path, ns=(OLD, OLD + 1))
    assert digest(path, compute) == "2"
    path.write_bytes(b"abcd")
    os.utime(path, ns=(OLD, OLD + 1))
    assert digest(path, compute) == "3"
    other = tmp_path / "other"
    other.write_bytes(b"abcd")
    os.utime(other, ns=(OLD, OLD + 1))
    os.replace(other, path)
    assert digest(path, compute) == "4"
    assert digest(path, compute) == "4"


def test_a_file_written_just_now_is_not_kept(folder: Path, tmp_path: Path) -> None:
    path, compute = tmp_path / "file", Compute()
    path.write_bytes(b"abc")
    assert [digest(path, compute) for _ in range(2)] == ["1", "2"]


def test_damaged_entries_are_made_again(folder: Path, tmp_path: Path) -> None:
    path, compute = tmp_path / "file", Compute()
    path.write_bytes(b"abc")
    os.utime(path, ns=(OLD, OLD))
    digest(path, compute)
    (entry,) = (folder / "digests").iterdir()
    for text in ("", "{", "[]", '{"weights": 3}', '{"other": "x"}'):
        entry.write_text(text)
        before = compute.calls
        assert digest(path, compute) == str(before + 1)


def test_digests_need_no_writable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").write_text("a file where the folder should be")
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "plain"))
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    os.utime(path, ns=(OLD, OLD))
    assert digest(path, Compute()) == "1"
    with pytest.raises(NotADirectoryError):
        published_folder("models", "key", fill_slowly)
