"""Files against the format's page: an independent reader, stock protobuf, the onnx package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import snapshot_reader
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_light._core import SnapshotWriter

import oracle
from onnx_light import ModelIdentity, PagedCache, snapshot

DTYPES = (
    np.float32,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
)


@st.composite
def cache_lists(draw: st.DrawFn) -> tuple[dict[str, PagedCache], dict[str, tuple[Any, Any]]]:
    """Caches that end at one position, grown in steps, and the arrays that they must hold."""
    end = draw(st.integers(0, 70))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    caches, arrays = {}, {}
    for layer in range(draw(st.integers(1, 3))):
        batch, heads = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        widths = draw(st.integers(1, 70)), draw(st.integers(1, 5))
        dtypes = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
        cache = PagedCache(page_size=draw(st.sampled_from([1, 5, 16, 64])))
        sides: tuple[list[Any], list[Any]] = ([], [])
        while cache.end < end:
            count = draw(st.integers(1, end - cache.end))
            rows = [
                random.standard_normal((batch, heads, count, width)).astype(dtype)
                for width, dtype in zip(widths, dtypes, strict=True)
            ]
            cache = cache.append(*rows)
            for side, part in zip(sides, rows, strict=True):
                side.append(part)
        if end:
            cache = cache.drop_before(draw(st.integers(0, end)))
        name = draw(st.sampled_from(["layers.", "é" * 30, "x" * 61])) + str(layer)
        caches[name] = cache
        arrays[name] = tuple(
            np.concatenate(side, axis=2)[:, :, cache.start :] if side else None for side in sides
        )
    return caches, arrays


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@settings(max_examples=60, deadline=None)
@given(cache_lists(), st.sampled_from([None, 1, 2]), st.booleans())
def test_the_page_alone_reads_a_file(
    made: tuple[dict[str, PagedCache], dict[str, tuple[Any, Any]]],
    batch: int | None,
    small_records: bool,
) -> None:
    caches, arrays = made
    end = next(iter(caches.values())).end
    tokens = None
    if batch is None or all(cache.batch in (0, batch) for cache in caches.values()):
        shape = (end,) if batch is None else (batch, end)
        tokens = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape) * 7
    metadata = [("a", "1"), ("é", "ü" * 200)]
    largest = 40000 if small_records else 1 << 30
    data = SnapshotWriter(
        list(caches.items()), tokens, [("salt", "s")], metadata, largest
    ).to_bytes(None)
    file = snapshot_reader.read(data)
    assert all(len(record.data) <= largest for record in file.records)
    assert file.end == end
    assert file.metadata == {"onnx_light.identity.salt": "s", **dict(metadata)}
    assert list(file.caches) == list(caches)
    for name, cache in caches.items():
        read = file.caches[name]
        assert read.page_size == cache.page_size
        if len(cache) == 0:
            assert not read.pages
            continue
        for ours, theirs in zip(read.arrays(), arrays[name], strict=True):
            assert same_bits(ours, theirs)
        if len(file.records) == 1:
            assert [(page.start, page.end) for page in read.pages] == [
                (page.start, page.end) for page in cache.pages
            ]
    if tokens is None:
        assert file.tokens is None
    else:
        assert file.tokens is not None
        assert np.array_equal(file.tokens, tokens)
    with snapshot.open(data, verify="full") as opened:
        for name, cache in caches.items():
            assert same_bits(opened[name].key_array(), cache.key_array())
            assert same_bits(opened[name].value_array(), cache.value_array())
        assert opened.verify().ok


def sample() -> bytes:
    rows = np.arange(1 * 2 * 45 * 8, dtype=np.float16).reshape(1, 2, 45, 8)
    cache = PagedCache.from_arrays(rows, rows + 1, page_size=16)
    return snapshot.dumps(
        {"layers.0": cache, "layers.1": cache},
        tokens=np.arange(45),
        identity=ModelIdentity(architecture="llama", context=8, adapters=("x",), extra={"k": [1]}),
        metadata={"note": "n"},
    )


def test_the_reader_of_these_tests_sees_damage() -> None:
    data = sample()
    snapshot_reader.read(data)
    for at in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(Exception):  # noqa: B017, PT011
            snapshot_reader.read(bytes(damaged))


def test_stock_protobuf_and_onnx_read_a_record() -> None:
    data = sample()
    model = oracle.load().ModelProto.FromString(data)
    assert [cache.name for cache in model.graph.paged_cache_initializer] == ["layers.0", "layers.1"]
    plain = onnx.load_model_from_string(data)
    onnx.checker.check_model(plain)
    tokens = onnx.numpy_helper.to_array(plain.graph.initializer[0])
    assert np.array_equal(tokens, np.arange(45))
    assert {entry.key: entry.value for entry in plain.metadata_props} == {
        "onnx_light.identity.architecture": "llama",
        "onnx_light.identity.context": "8",
        "onnx_light.identity.adapters": '["x"]',
        "onnx_light.identity.extra": '{"k": [1]}',
        "note": "n",
    }


@pytest.mark.parametrize("package", ["onnx", "protobuf"])
def test_what_stock_tools_write_again_is_rewritten(package: str) -> None:
    cls = onnx.ModelProto if package == "onnx" else oracle.load().ModelProto
    with pytest.raises(ValueError, match="parsed and wrote again") as error:
        snapshot.open(cls.FromString(sample()).SerializeToString())
    assert error.value.code == "snapshot.rewritten"  # type: ignore[attr-defined]


def golden_content() -> dict[str, Any]:
    """What golden/v1.kvcache holds: two records, three forms, a window, a position without rows."""

    def rows(width: int, dtype: Any, tokens: int = 21) -> np.ndarray[Any, Any]:
        return (np.arange(2 * tokens * width).reshape(1, 2, tokens, width) % 13 - 6).astype(dtype)

    later = PagedCache.from_arrays(rows(2, np.float32, 1), rows(2, np.float32, 1), start=21)
    return {
        "caches": [
            (
                "layers.0",
                PagedCache.from_arrays(rows(6, np.float32), rows(3, np.float16), page_size=8),
            ),
            (
                "layers.1",
                PagedCache.from_arrays(
                    rows(8, ml_dtypes.bfloat16), rows(8, ml_dtypes.float8_e4m3fn), page_size=8
                ).drop_before(10),
            ),
            ("layers.2", later.truncate(21)),
        ],
        "tokens": np.arange(21) * 1001,
        "identity": [("architecture", "llama"), ("context", "64")],
        "metadata": [("note", "é")],
        "max_record_size": 2752,
    }


def test_golden_file() -> None:
    """A file of version 1 stays readable for ever, and equal content keeps giving these bytes."""
    data = (Path(__file__).parent / "golden" / "v1.kvcache").read_bytes()
    content = golden_content()
    with snapshot.open(data, verify="full") as opened:
        assert opened.records == 2
        assert list(opened.caches) == [name for name, _ in content["caches"]]
        for name, cache in content["caches"]:
            assert opened[name] == cache
            assert (opened[name].start, opened[name].page_size) == (cache.start, cache.page_size)
        assert np.array_equal(opened.tokens, content["tokens"])
        assert opened.identity == ModelIdentity(architecture="llama", context=64)
        assert opened.metadata == {"note": "é"}
    assert snapshot_reader.read(data).end == 21
    assert SnapshotWriter(*content.values()).to_bytes(None) == data
