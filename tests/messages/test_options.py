"""Options of parsing and serializing, sizes, borrowed input, views of payloads."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from message_apis import Api, class_names, nested, random_message


def tensor(ours: Api, size: int, name: str = "t") -> Any:
    return ours.TensorProto(name=name, dims=[size], data_type=2, raw_data=bytes(size))


def cache(ours: Api) -> Any:
    """Payloads of 10, 64, 100 and 5,000 bytes."""
    return ours.PagedCacheProto(
        name="c",
        blocks=[
            {"key": tensor(ours, 10), "value": tensor(ours, 64)},
            {"encoded_key": {"raw_data": b"e" * 100}, "value": tensor(ours, 5000)},
        ],
    )


# ---------------------------------------------------------------------------------------------
# The options themselves

DEFAULTS: dict[str, dict[str, Any]] = {
    "TensorBufferOptions": {"raw_data_threshold": 64, "alignment": 0},
    "ParseOptions": {
        "raw_data_threshold": 64,
        "alignment": 0,
        "skip_raw_data": False,
        "num_threads": 1,
        "no_copy": False,
        "max_recursion_depth": 100,
        "max_tensor_size_bytes": 0,
        "tiny_external_data_threshold": -1,
        "trusted_links": False,
    },
    "SerializeOptions": {
        "raw_data_threshold": 64,
        "alignment": 0,
        "skip_raw_data": False,
        "num_threads": 1,
        "use_external_data_location": True,
        "max_serialized_size_bytes": 0,
        "max_external_file_size": 0,
    },
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_and_attributes(ours: Api, name: str) -> None:
    cls = ours.cls(name)
    options = cls()
    assert isinstance(options, ours.TensorBufferOptions)
    for option, default in DEFAULTS[name].items():
        assert getattr(options, option) == default
        assert type(getattr(options, option)) is type(default)
        other = (not default) if isinstance(default, bool) else 128
        setattr(options, option, other)
        assert getattr(options, option) == other
        assert getattr(cls(**{option: other}), option) == other
        for wrong in ("1", None, 1.5, []):
            with pytest.raises(TypeError):
                setattr(options, option, wrong)
            with pytest.raises(TypeError):
                cls(**{option: wrong})
    with pytest.raises(TypeError, match="nope"):
        cls(nope=1)
    with pytest.raises(AttributeError):
        options.nope = 1
    with pytest.raises(TypeError):
        cls(64)


def test_file_load_mode(ours: Api) -> None:
    assert ours.ParseOptions().file_load_mode == ours.FileLoadMode.AUTO
    assert [m.name for m in ours.FileLoadMode] == ["AUTO", "MMAP", "STREAM"]
    for mode in ours.FileLoadMode:
        assert ours.ParseOptions(file_load_mode=mode).file_load_mode is mode
    with pytest.raises(TypeError):
        ours.ParseOptions(file_load_mode="MMAP")


@pytest.mark.parametrize("negative", ["raw_data_threshold", "alignment", "max_tensor_size_bytes"])
def test_sizes_are_not_negative(ours: Api, negative: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        ours.ParseOptions(**{negative: -1})
    with pytest.raises((TypeError, ValueError)):
        ours.ParseOptions(**{negative: 2**64})


@pytest.mark.parametrize("wrong", [1, "x", {}, object()])
def test_other_objects_are_no_options(ours: Api, wrong: Any) -> None:
    message = tensor(ours, 3)
    data = message.SerializeToString()
    for call in (
        lambda o: message.SerializeToString(o),
        lambda o: message.SerializeToString(options=o),
        lambda o: message.SerializeSize(o),
        lambda o: message.ParseFromString(b"", o),
        lambda o: message.SerializeToFile("/nowhere/x", o),
        lambda o: message.SerializeToFileDescriptor(99, o),
    ):
        with pytest.raises(TypeError):
            call(wrong)
    with pytest.raises(TypeError):
        message.ParseFromString(b"", ours.SerializeOptions())
    with pytest.raises(TypeError):
        message.SerializeToString(ours.ParseOptions())
    with pytest.raises(TypeError):
        message.SerializeToString(ours.TensorBufferOptions())
    assert message.SerializeToString(None) == message.SerializeToString(options=None) == data


@pytest.mark.parametrize("alignment", [0, 1, 2, 64, 4096, 3, 48, 65])
def test_alignment_is_a_power_of_two(ours: Api, alignment: int) -> None:
    options = ours.SerializeOptions(alignment=alignment)
    if alignment in (3, 48, 65):
        with pytest.raises(ValueError, match=str(alignment)):
            tensor(ours, 3).SerializeToString(options)
    else:
        assert tensor(ours, 3).SerializeToString(options)


# ---------------------------------------------------------------------------------------------
# What they do


@pytest.mark.parametrize("threshold", [0, 1, 10, 11, 64, 65, 101, 5000, 5001])
def test_skip_raw_data(ours: Api, threshold: int) -> None:
    full = cache(ours)
    expected = cache(ours)
    for payload in (
        expected.blocks[0].key,
        expected.blocks[0].value,
        expected.blocks[1].encoded_key,
        expected.blocks[1].value,
    ):
        if len(payload.raw_data) >= threshold:
            payload.ClearField("raw_data")
    read = ours.PagedCacheProto()
    options = ours.ParseOptions(skip_raw_data=True, raw_data_threshold=threshold)
    read.ParseFromString(full.SerializeToString(), options)
    assert read == expected
    write = ours.SerializeOptions(skip_raw_data=True, raw_data_threshold=threshold)
    assert full.SerializeToString(write) == expected.SerializeToString()
    assert full.SerializeSize(write).size() == expected.ByteSize()
    assert full == cache(ours)


@pytest.mark.parametrize("threshold", [0, 10, 64, 100, 10**6])
def test_sizes(ours: Api, threshold: int) -> None:
    sizes = [10, 64, 100, 5000]
    result = cache(ours).SerializeSize(ours.SerializeOptions(raw_data_threshold=threshold))
    assert isinstance(result, ours.SerializeSizeResult)
    assert result.small_data_size == sum(s for s in sizes if s < threshold)
    assert result.big_data_size == sum(s for s in sizes if s >= threshold)
    assert result.size() == cache(ours).ByteSize()
    assert result.proto_size == result.size() - sum(sizes)


def test_size_result(ours: Api) -> None:
    a = ours.SerializeSizeResult(1, 2, 3)
    b = ours.SerializeSizeResult(small_data_size=10, proto_size=2**62)
    total = a + b
    assert (total.small_data_size, total.big_data_size, total.proto_size) == (11, 2, 2**62 + 3)
    assert total.size() == 2**62 + 16
    assert a == ours.SerializeSizeResult(1, 2, 3) != b
    assert a != 6
    with pytest.raises(TypeError):
        a + 1
    empty = ours.TensorProto().SerializeSize()
    assert empty.size() == 0
    assert ours.PagedCacheBlockProto().key.SerializeSize().size() == 0


@pytest.mark.parametrize("name", class_names())
def test_sizes_of_every_class(ours: Api, name: str) -> None:
    rng = random.Random(name)
    for _ in range(5):
        data = random_message(name, rng, 2).SerializeToString()
        message = ours.cls(name).FromString(data)
        assert message.SerializeSize().size() == message.ByteSize() == len(data)
        assert message.SerializePartialToString() == message.SerializeToString() == data


def test_max_serialized_size(ours: Api, tmp_path: Path) -> None:
    message = cache(ours)
    size = message.ByteSize()
    assert len(message.SerializeToString(ours.SerializeOptions(max_serialized_size_bytes=size)))
    options = ours.SerializeOptions(max_serialized_size_bytes=size - 1)
    target = tmp_path / "out"
    target.write_bytes(b"old")
    descriptor = os.open(tmp_path / "fd", os.O_CREAT | os.O_RDWR)
    for write in (
        lambda: message.SerializeToString(options),
        lambda: message.SerializeToFile(target, options),
        lambda: message.SerializeToFileDescriptor(descriptor, options),
        lambda: message.SerializeSize(options),
    ):
        with pytest.raises(ValueError, match=rf"(?s){size}.*{size - 1}|{size - 1}.*{size}"):
            write()
    os.close(descriptor)
    assert target.read_bytes() == b"old"
    assert (tmp_path / "fd").read_bytes() == b""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fd", "out"]


def test_max_tensor_size(ours: Api) -> None:
    data = cache(ours).SerializeToString()
    message = ours.PagedCacheProto(name="kept")
    for limit, good in ((4999, False), (5000, True), (0, True), (1, False)):
        options = ours.ParseOptions(max_tensor_size_bytes=limit)
        if good:
            ours.PagedCacheProto().ParseFromString(data, options)
            continue
        with pytest.raises(ours.ParseError, match=str(limit)) as caught:
            message.ParseFromString(data, options)
        assert caught.value.path.startswith("blocks[")
        assert message == ours.PagedCacheProto(name="kept")


@pytest.mark.parametrize("depth", [0, 1, 10, 100, 500])
def test_max_recursion_depth(ours: Api, depth: int) -> None:
    options = ours.ParseOptions(max_recursion_depth=depth)
    ours.OptionalProto().ParseFromString(nested(7, depth), options)
    with pytest.raises(ours.ParseError, match=str(depth)):
        ours.OptionalProto().ParseFromString(nested(7, depth + 1), options)


def test_impossible_recursion_depths(ours: Api) -> None:
    for depth in (-1, 10**6):
        with pytest.raises(ValueError, match=str(depth)):
            ours.OptionalProto().ParseFromString(b"", ours.ParseOptions(max_recursion_depth=depth))


@pytest.mark.parametrize("threads", [-1, 0, 1, 2, 7])
def test_num_threads(ours: Api, threads: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    message = ours.GraphProto(
        initializer=[{"raw_data": rng.bytes(300_000), "name": str(i)} for i in range(9)]
    )
    data = message.SerializeToString()
    options = ours.SerializeOptions(num_threads=threads)
    assert message.SerializeToString(options) == data
    read = ours.GraphProto()
    read.ParseFromString(data, ours.ParseOptions(num_threads=threads))
    assert read == message
    message.SerializeToFile(tmp_path / "m", options, tmp_path / "d")
    read = ours.GraphProto()
    read.ParseFromFile(tmp_path / "m", ours.ParseOptions(num_threads=threads), tmp_path / "d")
    assert read == message


# ---------------------------------------------------------------------------------------------
# Borrowing


def test_no_copy_borrows_from_what_cannot_change(ours: Api) -> None:
    data = tensor(ours, 100_000).SerializeToString()
    message = ours.TensorProto()
    message.ParseFromString(data, ours.ParseOptions(no_copy=True))
    view = np.frombuffer(message.payload("raw_data"), np.uint8)
    whole = np.frombuffer(data, np.uint8)
    assert np.shares_memory(view, whole)
    del data, whole
    gc.collect()
    assert message == tensor(ours, 100_000)
    copied = ours.TensorProto()
    copied.CopyFrom(message)
    del message
    assert copied == tensor(ours, 100_000)
    assert (view == 0).all()


def test_no_copy_copies_what_can_change(ours: Api) -> None:
    data = bytearray(tensor(ours, 100_000).SerializeToString())
    message = ours.TensorProto()
    message.ParseFromString(data, ours.ParseOptions(no_copy=True))
    data[-1] = 7
    data.clear()  # it is not held
    assert message == tensor(ours, 100_000)
    array = np.frombuffer(tensor(ours, 100_000).SerializeToString(), np.uint8).copy()
    message.ParseFromString(memoryview(array), ours.ParseOptions(no_copy=True))
    array[:] = 0
    assert message == tensor(ours, 100_000)


def test_parsing_a_message_from_its_own_payload(ours: Api) -> None:
    inner = tensor(ours, 1000, "inner")
    for no_copy in (False, True):
        outer = ours.TensorProto(raw_data=inner.SerializeToString())
        outer.ParseFromString(outer.payload("raw_data"), ours.ParseOptions(no_copy=no_copy))
        assert outer == inner
    outer = ours.TensorProto(raw_data=inner.SerializeToString())
    outer.MergeFromString(outer.payload("raw_data"))
    assert outer == inner


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, 100_000])
def test_payload(ours: Api, size: int) -> None:
    content = os.urandom(size)
    message = ours.TensorProto(raw_data=content, name="n")
    view = message.payload("raw_data")
    assert isinstance(view, memoryview)
    assert view.readonly
    assert (view.format, view.ndim, view.nbytes) == ("B", 1, size)
    assert bytes(view) == content
    message.raw_data = b"other" * 1000
    message.Clear()
    del message
    gc.collect()
    assert bytes(view) == content
    with pytest.raises(TypeError):
        view[0:0] = b""


def test_payload_of_other_fields(ours: Api) -> None:
    message = ours.TensorProto()
    assert bytes(message.payload("raw_data")) == b""
    assert not message.HasField("raw_data")
    for name in ("name", "dims", "string_data", "segment", "nope"):
        with pytest.raises(ValueError, match=name):
            message.payload(name)
    attribute = ours.AttributeProto(s=b"short")
    assert bytes(attribute.payload("s")) == b"short"
    big = ours.TensorProto(raw_data=b"r" * 100_000)
    first, second = (np.frombuffer(big.payload("raw_data"), np.uint8) for _ in range(2))
    assert np.shares_memory(first, second)
    clone = ours.TensorProto(big)
    assert np.shares_memory(first, np.frombuffer(clone.payload("raw_data"), np.uint8))
