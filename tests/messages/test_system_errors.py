"""Errors of the operating system in Python: classes, numbers and file names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_light import onnx


@pytest.mark.parametrize("name", ["missing", "missing/x", "file/x", "folder", "a" * 300])
def test_errors_of_the_system_are_pythons(tmp_path: Path, name: str) -> None:
    """Class, number and file name of what open() says to the same path."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    path = os.fspath(tmp_path / name)
    model = onnx.ModelProto(ir_version=10)
    reading: list[Callable[[], object]] = [
        lambda: onnx.load(path),
        lambda: onnx.load_model(path),
        lambda: onnx.ModelProto().ParseFromFile(path),
        lambda: onnx.ModelProto().ParseFromFile(os.fsencode(path)),
    ]
    writing: list[Callable[[], object]] = [
        lambda: onnx.save(model, path),
        lambda: onnx.save_model(model, path),
        lambda: model.SerializeToFile(path),
        lambda: model.SerializeToFile(Path(path), onnx.SerializeOptions()),
    ]
    for mode, calls in (("rb", reading), ("wb", writing)):
        if (mode, name) == ("wb", "missing"):
            continue
        with pytest.raises(OSError) as expected:  # noqa: PT011
            open(path, mode)  # noqa: SIM115
        for call in calls:
            with pytest.raises(OSError) as caught:  # noqa: PT011
                call()
            assert caught.type is expected.type
            assert caught.value.errno == expected.value.errno
            assert caught.value.filename == path
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe/x"
    for name in (path, os.fsdecode(path)):
        with pytest.raises(FileNotFoundError) as caught:
            onnx.ModelProto().ParseFromFile(name)
        assert os.fsencode(caught.value.filename) == path
    folder = os.path.dirname(path)
    os.mkdir(folder)
    model = onnx.ModelProto(ir_version=10)
    model.SerializeToFile(path)
    assert onnx.load(os.fsdecode(path)) == model
    with pytest.raises(ValueError, match="in or below the folder"):
        model.SerializeToFile(path, external_data_file=tmp_path / "outside")
