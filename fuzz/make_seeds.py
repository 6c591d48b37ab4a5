"""make_seeds.py FOLDER: writes inputs to begin with into FOLDER/NAME for every fuzz target NAME.

They come from the test files that the installed `onnx` package carries, and from what this package
writes; nothing of it is kept in the repository.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import message_schema
from onnx_light import PagedCache, snapshot
from onnx_light.identity import ModelIdentity
from onnx_light.onnx import AffineLayoutProto, ModelProto, TensorProto, TypeProto

_MAX_SIZE = 1500  # the fuzzer's own limit is 4096, for two of them


def class_bytes() -> dict[str, bytes]:
    """The byte that chooses a class: its place among all, as ClassOf in fuzz.h."""
    messages = message_schema.load().all_messages()
    return {message.full_name: bytes([i]) for i, message in enumerate(messages)}


def onnx_messages() -> Iterator[tuple[str, bytes]]:
    """Class and bytes of the small test files of onnx, one of each size."""
    spec = find_spec("onnx")
    if spec is None or spec.origin is None:
        raise SystemExit("make_seeds: the package onnx is not installed")
    folder = Path(spec.origin).parent / "backend" / "test" / "data"
    seen = set()
    for path in sorted([*folder.rglob("*.onnx"), *folder.rglob("*.pb")]):
        size = path.stat().st_size
        if size <= _MAX_SIZE and size not in seen:
            seen.add(size)
            yield "ModelProto" if path.suffix == ".onnx" else "TensorProto", path.read_bytes()


def caches() -> Iterator[PagedCache]:
    """Small caches: of two dtypes, with full and with open pages, with a window."""
    random = np.random.default_rng(0)
    for dtype, tokens in itertools.product((np.float32, np.float16), (1, 4, 6)):
        key = random.standard_normal((1, 2, tokens, 3)).astype(dtype)
        value = random.standard_normal((1, 2, tokens, 5)).astype(dtype)
        cache = PagedCache.from_arrays(key, value, page_size=4)
        yield cache
        yield cache.drop_before(tokens)
    yield PagedCache(page_size=4)


def encoded_caches() -> Iterator[PagedCache]:
    """Small caches with pages of every kind of codes."""
    key = np.random.default_rng(0).standard_normal((1, 1, 5, 32)).astype(np.float32)
    for policy in (
        "int8",
        "int8/token",
        "uint4/channel:2",
        "int4",
        "k8v4",
        "uint2/token:8",
        "q4_0",
        "q8_0",
    ):
        yield PagedCache.from_arrays(key, -key, page_size=4, policy=policy)
    for dims, axis, block_size in (([], None, None), ([3], -1, None), ([1, 2, 2, 3], 2, 2)):
        yield cache_with_parameters(dims, axis, block_size)


def cache_with_parameters(dims: list[int], axis: int | None, block_size: int | None) -> PagedCache:
    """Keys of uint8 codes [1, 2, 4, 3] whose scales and zero points have `dims`."""
    rows = np.ones((1, 2, 4, 3), np.float32)
    proto = PagedCache.from_arrays(rows, rows, page_size=4).to_proto("c")
    key = proto.blocks[0].add_encoded_key()
    key.raw_data = bytes(range(rows.size))
    shape = {"dim": [{"dim_value": dim} for dim in rows.shape]}
    key.logical_type = TypeProto(tensor_type={"elem_type": TensorProto.FLOAT, "shape": shape})
    key.affine = AffineLayoutProto(storage_type=TensorProto.UINT8, axis=axis, block_size=block_size)
    count = int(np.prod(dims))
    scale = np.linspace(0.5, 2, count, dtype=np.float16).tobytes()
    key.affine.scale = TensorProto(dims=dims, data_type=TensorProto.FLOAT16, raw_data=scale)
    key.affine.zero_point = TensorProto(
        dims=dims, data_type=TensorProto.UINT8, raw_data=bytes(range(count))
    )
    return PagedCache.from_proto(proto)


def cache_of_unknown_layout() -> PagedCache:
    """Three of four rows of records that nobody knows; a constant of their type is NaN."""
    rows = np.ones((1, 2, 4, 32), np.float32)
    proto = PagedCache.from_arrays(rows, rows, page_size=4, policy="q8_0").to_proto("c")
    block = proto.blocks[0]
    block.length = 3
    block.encoded_key.struct_type.name = "unknown"
    constant = block.encoded_key.struct_type.structure.field.add(name="constant").constant
    constant.CopyFrom(TensorProto(data_type=TensorProto.FLOAT, dims=[1], float_data=[np.nan]))
    return PagedCache.from_proto(proto)


def snapshots() -> Iterator[bytes]:
    """Files of one cache with all that a file can have, and of two with nothing else."""
    for cache in itertools.chain(caches(), encoded_caches()):
        tokens = np.arange(cache.end, dtype=np.int64)
        identity = ModelIdentity(architecture="llama")
        yield snapshot.dumps([cache], tokens=tokens, identity=identity, metadata={"k": "v"})
        yield snapshot.dumps({"a": cache, "b": cache})


def model_with(cache: PagedCache) -> bytes:
    """A model with a cache that is an input's default, and a state of its type."""
    model = ModelProto(ir_version=10, opset_import=[{"version": 21}])
    graph = model.graph
    graph.name = "g"
    graph.paged_cache_initializer.append(cache.to_proto("c"))
    graph.persistent_bindings.add(input_name="c", output_name="p")
    number = {"tensor_type": {"elem_type": 7}}
    numbers = {"tensor_type": {"elem_type": 1, "shape": {"dim": [{}, {"dim_value": 2}, {}, {}]}}}
    names = {"start": number, "length": number, "key": numbers, "value": numbers}
    page = {"structure": {"field": [{"name": name, "type": names[name]} for name in names]}}
    blocks = {"name": "blocks", "type": {"sequence_type": {"elem_type": {"struct_type": page}}}}
    model.struct_types.add(
        name="onnx_light.PagedKVCache",
        type_id=1,
        metadata_props=[{"key": "onnx_light.type_version", "value": "1"}],
        structure={"field": [blocks]},
    )
    for value in (graph.input.add(name="c"), graph.output.add(name="p")):
        value.type.struct_type.type_ref = 1
    return model.SerializeToString()


def external_data() -> Iterator[bytes]:
    """An option byte, then lines "LOCATION OFFSET LENGTH"."""
    locations = ["data", "sub/data", "./sub//data", "big", "empty", "link", "hard", "fifo", "sub"]
    locations += ["../secret", "up/secret", "/etc/passwd", "sub/../data", "none", "#0", ""]
    ranges = ["\t\t", "\t0\t100", "\t64\t36", "\t99\t2", "\t18446744073709551615\t1", "\t-1\t+1"]
    for location, part in itertools.product(locations, ranges):
        yield bytes([0]) + (location + part).encode()
    for options in range(16):
        lines = ["data\t0\t10", "data\t5\t50", "data\t20\t", "sub/data\t1\t4999", "big\t0\t70000"]
        yield bytes([options]) + "\n".join(lines).encode()


def seeds() -> Iterator[tuple[str, bytes]]:
    """Pairs of a target's name and an input."""
    classes = class_bytes()
    previous: dict[str, bytes] = {}
    for name, data in onnx_messages():
        yield "parse", classes[name] + data
        yield "text", classes[name] + data
        other = previous.get(name, data)
        yield "compare", classes[name] + len(data).to_bytes(2, "little") + data + other
        previous[name] = data
        if name == "ModelProto":
            yield "check_model", data
    for cache in itertools.chain(caches(), encoded_caches(), [cache_of_unknown_layout()]):
        data = cache.to_proto("layers.0").SerializeToString()
        yield "cache_proto", data
        yield "parse", classes["PagedCacheProto"] + data
        yield "check_model", model_with(cache)
    for data in snapshots():
        yield "snapshot", data
    for data in external_data():
        yield "external_data", data


def main() -> None:
    folder = Path(sys.argv[1])
    for i, (name, data) in enumerate(seeds()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{i:04}").write_bytes(data)


if __name__ == "__main__":
    main()
