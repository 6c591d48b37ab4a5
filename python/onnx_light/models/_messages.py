"""The one place where this package takes the message classes from."""

from __future__ import annotations

from pathlib import Path

from onnx_light.onnx import (
    AttributeProto,
    FileLoadMode,
    GraphProto,
    ModelProto,
    NodeProto,
    ParseOptions,
    TensorProto,
    ValueInfoProto,
)

__all__ = [
    "AttributeProto",
    "GraphProto",
    "ModelProto",
    "NodeProto",
    "TensorProto",
    "ValueInfoProto",
    "read_mapped",
]


def read_mapped(path: Path, external_data_file: Path | None) -> ModelProto:
    """A model whose external payloads are inline, borrowed from the mapping of their file."""
    model = ModelProto()
    options = ParseOptions(no_copy=True, file_load_mode=FileLoadMode.MMAP)
    model.ParseFromFile(str(path), options, str(external_data_file or ""))
    return model
