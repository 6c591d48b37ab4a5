"""Random bytes of every class: verdicts and bytes of protobuf; errors that say where."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from message_apis import (
    Api,
    check_same_bytes,
    class_names,
    descriptor,
    flips,
    group,
    lengthed,
    parsed,
    random_message,
    tag,
    varint,
)

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data"
SEED = 20240713


def small_files(limit: int, count: int) -> list[tuple[str, bytes]]:
    """`count` files of the wheel below `limit` bytes, from all over it, with their class."""
    files = sorted(p for s in ("onnx", "pb") for p in FOLDER.rglob(f"*.{s}"))
    small = [p for p in files if p.stat().st_size < limit]
    step = max(1, len(small) // count)
    return [
        ("ModelProto" if p.suffix == ".onnx" else "TensorProto", p.read_bytes())
        for p in small[::step][:count]
    ]


def random_field(numbers: list[int], rng: random.Random, depth: int = 0) -> bytes:
    """A field of a known or unknown number with any wire type, groups included."""
    number = rng.choice([*numbers, *numbers, rng.randrange(30, 1000), 2000, 2**29 - 1])
    wire_type = rng.choice([0, 0, 1, 2, 2, 3, 5])
    if wire_type == 3:
        inner = [random_field(numbers, rng, depth + 1) for _ in range(rng.randrange(3))]
        return group(number, b"".join(inner) if depth < 4 else b"")
    if wire_type == 0:
        bits = rng.choice([1, 4, 7, 8, 31, 33, 64])
        body = varint(rng.getrandbits(bits), padding=rng.choice([0, 0, 0, 1]) if bits < 40 else 0)
    elif wire_type == 2:
        content = rng.choice([rng.randbytes(rng.choice([0, 1, 4, 8, 200])), bytes(range(1, 60))])
        body = varint(len(content)) + content
    else:
        body = rng.randbytes(8 if wire_type == 1 else 4)
    return tag(number, wire_type) + body


@pytest.mark.parametrize("name", class_names())
def test_random_messages_both_ways(protobuf: Api, ours: Api, name: str) -> None:
    rng = random.Random(f"{SEED} {name}")
    for i in range(40):
        message = random_message(name, rng, maxdepth=1 + i % 3)
        data = message.SerializeToString()
        mine = ours.cls(name).FromString(data)
        assert mine.SerializeToString() == data
        assert mine.ByteSize() == len(data)
        assert protobuf.cls(name).FromString(mine.SerializeToString()) == message
        if len(data) < 5000:
            assert str(mine) == str(message)


@pytest.mark.parametrize("name", class_names())
def test_concatenation_merges(protobuf: Api, ours: Api, name: str) -> None:
    rng = random.Random(f"{SEED + 1} {name}")
    for i in range(25):
        parts = [random_message(name, rng, 1 + i % 3).SerializeToString() for _ in range(2 + i % 2)]
        whole = check_same_bytes(protobuf, ours, name, b"".join(parts))
        merged = ours.cls(name)()
        for part in parts:
            merged.MergeFrom(ours.cls(name).FromString(part))
        assert merged.SerializeToString() == whole
        merged.Clear()
        for part in parts:
            assert merged.MergeFromString(part) == len(part)
        assert merged.SerializeToString() == whole


def fields_of(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and body of the fields of a well-formed message without groups."""
    at = 0

    def take_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        number, wire_type = divmod(take_varint(), 8)
        if wire_type == 0:
            yield number, 0, varint(take_varint())
            continue
        size = take_varint() if wire_type == 2 else {1: 8, 5: 4}[wire_type]
        yield number, wire_type, data[at : at + size]
        at += size


def rewritten(data: bytes, of: Any, rng: random.Random) -> bytes:
    """The same fields in any order, with tags and lengths that are longer than needed."""
    written = []
    for number, wire_type, content in fields_of(data):
        field, body = of.fields_by_number[number], content
        if wire_type == 2:
            if field.message_type is not None:
                body = rewritten(body, field.message_type, rng)
            body = varint(len(body), rng.choice([0, 0, 0, 1])) + body
        written.append(varint(number << 3 | wire_type, rng.choice([0, 0, 0, 1, 2, 3])) + body)
    rng.shuffle(written)
    return b"".join(written)


@pytest.mark.parametrize("name", class_names())
def test_fields_in_any_order_with_long_tags(protobuf: Api, ours: Api, name: str) -> None:
    rng = random.Random(f"{SEED + 3} {name}")
    for i in range(60):
        data = random_message(name, rng, 1 + i % 3).SerializeToString()
        changed = rewritten(data, descriptor(name), rng)
        assert check_same_bytes(protobuf, ours, name, changed) is not None


@pytest.mark.parametrize("name", class_names())
def test_unknown_fields_groups_and_wrong_wire_types(protobuf: Api, ours: Api, name: str) -> None:
    rng = random.Random(f"{SEED + 2} {name}")
    numbers = [f.number for f in descriptor(name).fields]
    accepted = 0
    for _ in range(150):
        data = b"".join(random_field(numbers, rng) for _ in range(rng.randrange(1, 5)))
        known = random_message(name, rng, 1).SerializeToString()
        cases = (data, known + data, data + known)
        accepted += sum(check_same_bytes(protobuf, ours, name, d) is not None for d in cases)
    assert accepted > 50  # the test is about what comes back, not about refusals


PACKED: dict[str, Any] = {
    "AttributeProto": {"floats": [1.5, -0.0, float("inf")], "ints": [0, -1, 2**62]},
    "TensorProto": {
        "dims": [3, 2**40],
        "float_data": [0.1, -2.0],
        "int32_data": [-1, 2**31 - 1, 0],
        "int64_data": [-(2**63), 5],
        "double_data": [5e-324, 1.0],
        "uint64_data": [2**64 - 1, 300],
    },
}


@pytest.mark.parametrize("name", PACKED)
def test_both_packings_are_read_and_the_declared_one_is_written(
    api: Api, protobuf: Api, name: str
) -> None:
    for field, values in PACKED[name].items():
        number = descriptor(name).fields_by_name[field].number
        wire_type = {"float_data": 5, "floats": 5, "double_data": 1}.get(field, 0)
        elements = [element_bytes(wire_type, v) for v in values]
        packed = lengthed(number, b"".join(elements))
        unpacked = b"".join(tag(number, wire_type) + e for e in elements)
        mixed = packed + unpacked + lengthed(number, b"") + packed
        for data, expected in ((packed, values), (unpacked, values), (mixed, 3 * values)):
            written = protobuf.cls(name)(**{field: expected}).SerializeToString()
            assert api.cls(name).FromString(data).SerializeToString() == written


def element_bytes(wire_type: int, value: float) -> bytes:
    if wire_type == 0:
        assert isinstance(value, int)
        return varint(value & (2**64 - 1))
    return struct.pack("<f" if wire_type == 5 else "<d", value)


# ---------------------------------------------------------------------------------------------
# Malformed input


def check_error(ours: Api, name: str, data: bytes) -> None:
    """A ParseError names a byte offset, and leaves the message as it was."""
    message = ours.cls(name).FromString(KEPT[name])
    text = str(message)
    with pytest.raises(ours.ParseError) as caught:
        message.ParseFromString(data)
    error = caught.value
    assert 0 <= error.offset <= len(data)
    assert str(error.offset) in str(error)
    assert error.code.startswith("wire.")
    assert isinstance(error.path, str)
    with pytest.raises(ours.ParseError):
        message.MergeFromString(data)
    assert message.SerializeToString() == KEPT[name]
    assert str(message) == text


KEPT = {
    "ModelProto": lengthed(2, b"kept") + lengthed(7, lengthed(2, b"graph")),
    "TensorProto": lengthed(8, b"kept") + lengthed(9, b"\0" * 100),
    "PagedCacheProto": lengthed(1, b"\x08\x00") + lengthed(2, b"kept") + b"\xf8\x01\x05",
    "TypeProto": lengthed(1, b"\x08\x01"),
    "StructTypeProto": b"\x20\x05",
    "AttributeProto": lengthed(1, b"kept"),
}


def test_every_cut_of_sample_files(protobuf: Api, ours: Api) -> None:
    samples = small_files(1200, 60)
    assert {name for name, _ in samples} == {"ModelProto", "TensorProto"}
    refused = 0
    for name, data in samples:
        for end in range(len(data)):
            cut = data[:end]
            if check_same_bytes(protobuf, ours, name, cut) is None:
                refused += 1
                if refused % 7 == 0:
                    check_error(ours, name, cut)
    assert refused > 2000


def test_every_bit_flip_of_small_files(protobuf: Api, ours: Api) -> None:
    refused = 0
    for name, data in small_files(400, 40):
        for flipped in flips(data):
            if check_same_bytes(protobuf, ours, name, flipped) is None:
                refused += 1
                if refused % 11 == 0:
                    check_error(ours, name, flipped)
    assert refused > 500


@pytest.mark.parametrize("name", [n for n in KEPT if n != "ModelProto"])
def test_cuts_and_flips_of_random_messages(protobuf: Api, ours: Api, name: str) -> None:
    rng = random.Random(f"{SEED + 3} {name}")
    refused = 0
    for i in range(500):
        data = random_message(name, rng, 1 + i % 3).SerializeToString()
        if not 4 <= len(data) < 20000:
            continue
        cases = [data[: rng.randrange(len(data))] for _ in range(3)]
        for _ in range(6):
            copy = bytearray(data)
            copy[rng.randrange(len(copy))] ^= 1 << rng.randrange(8)
            cases.append(bytes(copy))
        if len(data) < 40:
            cases += flips(data)
        for case in cases:
            if check_same_bytes(protobuf, ours, name, case) is None:
                refused += 1
                check_error(ours, name, case)
    assert refused > 20


def test_random_bytes(protobuf: Api, ours: Api) -> None:
    rng = random.Random(SEED + 4)
    for _ in range(30000):
        # Small bytes are tags and lengths that often fit.
        size = rng.randrange(1, 24)
        data = bytes(rng.choice([rng.randrange(0, 64), rng.randrange(256)]) for _ in range(size))
        name = rng.choice(["TensorProto", "TypeProto", "EncodedValueProto", "SparseTensorProto"])
        check_same_bytes(protobuf, ours, name, data)


def test_path_of_an_error(ours: Api) -> None:
    good = ours.NodeProto(name="n").SerializeToString()
    bad = lengthed(5, lengthed(8, b"\xff"))  # attribute[0].ints, a packed run cut in its varint
    graph = b"".join(lengthed(1, node) for node in (good, good, good + bad))
    data = lengthed(2, b"producer") + lengthed(7, graph)
    with pytest.raises(ours.ParseError, match=r"graph\.node\[2\]\.attribute\[0\]\.ints") as caught:
        ours.ModelProto.FromString(data)
    assert caught.value.path == "graph.node[2].attribute[0].ints"
    assert caught.value.offset == len(data) - 1
    assert parsed(ours, "ModelProto", data) is None
