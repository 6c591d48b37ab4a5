"""Encoded pages in files: by the format's page alone, by policies, in pieces, from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import snapshot_reader
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_light._core import SnapshotWriter

from onnx_light import CachePolicy, ModelIdentity, PagedCache, PageFormat, onnx, snapshot
from onnx_light.errors import CodedError

_CODES = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
_FORMATS = (
    *(f"{code}/{cells}" for code in _CODES for cells in ("tensor", "channel", "token")),
    *("uint4/channel:32", "uint4/token:64", "int8/token:7", "uint2/channel:3/float32"),
    *("int4/token:5/bfloat16", "q8_0", "q4_0", "float16", "bfloat16", "float8_e4m3fn"),
)


def rows(heads: int, tokens: int, width: int, seed: int) -> npt.NDArray[np.float32]:
    random = np.random.default_rng(seed)
    return random.standard_normal((1, heads, tokens, width), np.float32)


def float32(cache: PagedCache) -> list[npt.NDArray[Any]]:
    return [cache.key_array("float32"), cache.value_array("float32")]


def check_against_the_page(caches: dict[str, PagedCache], largest: int = 1 << 30) -> bytes:
    """Writes, reads by the page alone, and reads by the library; all must agree."""
    data: bytes = SnapshotWriter(list(caches.items()), None, [], [], largest).to_bytes(None)
    file = snapshot_reader.read(data)
    with snapshot.open(data, verify="full") as opened:
        for name, cache in caches.items():
            for ours, theirs in zip(float32(cache), file.caches[name].arrays(), strict=True):
                assert np.array_equal(theirs.astype(np.float32), ours)
            if len(file.records) == 1:
                assert opened[name] == cache
            assert all(map(np.array_equal, float32(opened[name]), float32(cache)))
            assert opened[name].policy == cache.policy
    return data


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_page_alone_reads_encoded_pages(data: st.DataObject) -> None:
    end = data.draw(st.integers(1, 90))
    caches = {}
    for layer in range(data.draw(st.integers(1, 2))):
        key, value = data.draw(st.sampled_from(_FORMATS)), data.draw(st.sampled_from(_FORMATS))
        heads, page_size = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 5, 16, 32]))
        widths = [
            32 * data.draw(st.integers(1, 2))
            if text in ("q8_0", "q4_0")
            else data.draw(st.sampled_from([1, 3, 33, 64]))
            for text in (key, value)
        ]
        policy = CachePolicy(
            key=PageFormat(key),
            value=PageFormat(value),
            sink_tokens=data.draw(st.sampled_from([0, 4])),
            recent_tokens=data.draw(st.sampled_from([0, 20])),
        )
        longer = end + data.draw(st.sampled_from([0, 1, 30]))
        cache = PagedCache.from_arrays(
            rows(heads, longer, widths[0], layer),
            rows(heads, longer, widths[1], layer + 9),
            page_size=page_size,
            policy=policy,
        ).truncate(end)
        start = data.draw(st.integers(0, end - 1))
        drop = data.draw(st.sampled_from(["no", "drop_before", "slice"]))
        if drop == "drop_before":
            cache = cache.drop_before(start)
        elif drop == "slice":
            cache = cache.slice(start, end)
        caches[f"layers.{layer}"] = cache
    check_against_the_page(caches, data.draw(st.sampled_from([1 << 30, 60000])))


def foreign(cells: str, code: int, zero: bool) -> onnx.EncodedValueProto:
    """An encoding that no policy makes: any axis, with or without zero points."""
    dims = [1, 2, 6, 5]
    shape = {"scalar": [], "axis:1": [2], "axis:2": [6], "block:0": [1, 2, 6, 5]}
    shape |= {"block:1": [1, 1, 6, 5], "block:2": [1, 2, 2, 5]}
    bits = {2: 8, 3: 8, 21: 4, 26: 2}[code]
    count = int(np.prod(dims))
    random = np.random.default_rng(count + code)
    value = onnx.EncodedValueProto()
    data = random.integers(0, 256, -(-count * bits // 8)).astype(np.uint8)
    value.raw_data = data.tobytes()  # 60 codes fill their last byte
    value.affine.storage_type = code
    scale = random.standard_normal(shape[cells]).astype(np.float32)
    value.affine.scale = onnx.from_array(scale)
    if zero:
        zeros = np.zeros(-(-scale.size * bits // 8), np.uint8)
        value.affine.zero_point.data_type = code
        value.affine.zero_point.dims.extend(shape[cells])
        value.affine.zero_point.raw_data = zeros.tobytes()
    if cells != "scalar":
        value.affine.axis = int(cells[-1])
    if cells.startswith("block"):
        value.affine.block_size = {"0": 7, "1": 2, "2": 4}[cells[-1]]
    value.logical_type.tensor_type.elem_type = 1
    for dim in dims:
        value.logical_type.tensor_type.shape.dim.add(dim_value=dim)
    return value


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("code", [2, 3, 21, 26])
@pytest.mark.parametrize("cells", ["scalar", "axis:1", "axis:2", "block:0", "block:1", "block:2"])
def test_encodings_that_no_policy_makes(cells: str, code: int, zero: bool) -> None:
    proto = onnx.PagedCacheProto()
    block = proto.blocks.add(start=0, length=6)
    block.encoded_key = foreign(cells, code, zero)
    block.encoded_value = foreign("scalar", 3, not zero)
    cache = PagedCache.from_proto(proto)
    data = check_against_the_page({"x": cache})
    with snapshot.open(data) as opened:
        assert opened["x"].to_proto() == cache.to_proto()
    for end in range(1, 6):
        check_against_the_page({"x": cache.truncate(end)})


def test_an_unknown_layout_is_refused_by_name() -> None:
    cache = PagedCache.from_arrays(rows(1, 64, 32, 1), rows(1, 64, 32, 2), policy="k=q8_0 v=f16")
    proto = cache.to_proto()
    proto.blocks[0].encoded_key.struct_type.name = "other.layout"
    with pytest.raises(CodedError) as error:
        snapshot.dumps({"layers.7": PagedCache.from_proto(proto)})
    assert (error.value.code, error.value.path) == ("snapshot.format", "layers.7.blocks[0].key")


def caches() -> dict[str, PagedCache]:
    return {
        f"layers.{i}": PagedCache.from_arrays(rows(2, 150, 64, i), rows(2, 150, 64, i + 9))
        for i in range(3)
    }


@pytest.mark.parametrize(
    "policy", ["int8", CachePolicy.parse("int4"), PageFormat("q8_0"), "k=f16 v=uint4/token:64"]
)
def test_one_policy_for_all(policy: Any) -> None:
    parsed = policy
    if isinstance(policy, PageFormat):
        parsed = CachePolicy(key=policy, value=policy)
    elif isinstance(policy, str):
        parsed = CachePolicy.parse(policy)
    with snapshot.open(snapshot.dumps(caches(), policy=policy), verify="full") as opened:
        for name, cache in caches().items():
            assert opened[name] == cache.quantize(parsed)
            assert opened[name] != cache


def test_a_policy_by_name() -> None:
    data = snapshot.dumps(caches(), policy={"layers.1": "int4"})
    with snapshot.open(data) as opened:
        assert opened["layers.0"] == caches()["layers.0"]
        assert opened["layers.1"] == caches()["layers.1"].quantize(CachePolicy.parse("int4"))


def test_a_file_is_quantized_without_its_model(tmp_path: Path) -> None:
    path = tmp_path / "a.kvcache"
    identity = ModelIdentity(architecture="llama", context=4096)
    snapshot.save(caches(), path, tokens=range(150), identity=identity, metadata={"a": "b"})
    before = path.read_bytes()
    report = snapshot.quantize(path, tmp_path / "b.kvcache", "int4")
    assert path.read_bytes() == before
    assert report.nbytes < len(before) / 3  # 22 tokens stay plain
    with snapshot.open(tmp_path / "b.kvcache", expect=identity, verify="full") as opened:
        assert opened.tokens is not None
        assert np.array_equal(opened.tokens, np.arange(150))
        assert opened.metadata == {"a": "b"}
        for name, cache in caches().items():
            assert opened[name] == cache.quantize(CachePolicy.parse("int4"))
    snapshot.quantize(path, path, "int4")  # the file itself: as `save`, by a new file
    assert path.read_bytes() == (tmp_path / "b.kvcache").read_bytes()


def test_a_cache_of_a_file_goes_on_as_its_policy_says() -> None:
    cache = PagedCache.from_arrays(rows(1, 64, 64, 1), rows(1, 64, 64, 2), policy="int8")
    more = rows(1, 70, 64, 3), rows(1, 70, 64, 4)
    with snapshot.open(snapshot.dumps({"x": cache})) as opened:
        assert opened["x"].append(*more) == cache.append(*more)
        assert str(opened["x"].append(*more).pages[1].key.format).startswith("int8/channel")
    empty = PagedCache(page_size=16, policy="int8")
    with snapshot.open(snapshot.dumps({"x": empty})) as opened:
        assert opened["x"].policy == empty.policy


def test_every_cut_and_flip_of_an_encoded_file_is_refused() -> None:
    cache = PagedCache.from_arrays(
        rows(1, 40, 32, 1), rows(1, 40, 32, 2), page_size=16, policy="k=uint4/channel v=q8_0"
    )
    data = snapshot.dumps({"x": cache}, tokens=range(40))
    for end in range(0, len(data), 5):
        assert not snapshot.verify(data[:end]).ok
    for at in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        report = snapshot.verify(bytes(damaged))
        assert not report.ok
        assert report.problems[0].code.startswith("snapshot.")
