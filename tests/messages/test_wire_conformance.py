"""The binary groups of protobuf's conformance suite, as tables on ONNX messages.

Every row states its outcome; the fixture `api` proves it of protobuf, too.
"""

from __future__ import annotations

import struct

import pytest
from message_apis import (
    Api,
    check_same_bytes,
    descriptor,
    group,
    lengthed,
    nested,
    parsed,
    tag,
    varint,
)

F9 = b"\xff" * 9
INT64, UINT64, INT32, UINT32, ENUM, BOOL, FLOAT, DOUBLE = (
    ("PagedCacheBlockProto", 1),  # start
    ("AffineLayoutProto", 5),  # block_size
    ("TensorProto", 2),  # data_type
    ("StructTypeProto.BitPacking.Component", 2),  # bit_width
    ("AttributeProto", 20),  # type
    ("AffineLayoutProto", 6),  # signed_storage
    ("AttributeProto", 2),  # f
    ("TensorProto", 10),  # double_data, packed
)
VARINT_FIELDS = [INT64, UINT64, INT32, UINT32, ENUM, BOOL]

# Wire type, bytes of one value.
VALUES = {0: varint(300), 1: b"\x01" * 8, 2: lengthed(1, b"abc")[1:], 5: b"\x01" * 4}


def refuse(api: Api, name: str, data: bytes) -> None:
    assert parsed(api, name, data) is None, data.hex()


def accept(api: Api, name: str, data: bytes, written: bytes | None = None) -> None:
    assert parsed(api, name, data) == (data if written is None else written), data.hex()


# ---------------------------------------------------------------------------------------------
# Premature end


@pytest.mark.parametrize("number", [1, 2, 4, 5, 8, 9, 10, 77, 5000])
@pytest.mark.parametrize("wire_type", sorted(VALUES))
def test_end_before_and_inside_a_value(api: Api, number: int, wire_type: int) -> None:
    head, value = tag(number, wire_type), VALUES[wire_type]
    for end in range(len(value)):
        cut = head + value[:end]
        refuse(api, "TensorProto", cut)
        refuse(api, "TensorProto", lengthed(8, b"before") + cut)
        refuse(api, "SparseTensorProto", lengthed(1, cut))  # within a submessage
        refuse(api, "SparseTensorProto", lengthed(1, cut) + b"\x1a\x01\x01")
        refuse(api, "TensorProto", tag(99, 3) + cut)  # within an unknown group
    for end in range(1, len(head)):
        refuse(api, "TensorProto", head[:end])


@pytest.mark.parametrize("number", [8, 9, 3, 6, 4, 1, 99])
@pytest.mark.parametrize("length", [1, 2, 127, 128, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1])
def test_end_inside_a_length(api: Api, number: int, length: int) -> None:
    for missing in {1, length} if length < 1000 else {length}:
        refuse(api, "TensorProto", tag(number, 2) + varint(length) + b"\0" * (length - missing))


@pytest.mark.parametrize(
    ("field", "element"),
    [(1, varint(300)), (5, varint(2**31 - 1)), (4, b"1234"), (10, b"12345678")],
)
def test_end_inside_a_packed_run(api: Api, field: int, element: bytes) -> None:
    for end in range(1, len(element)):
        for before in (b"", element, 3 * element):
            refuse(api, "TensorProto", lengthed(field, before + element[:end]))
            # More bytes behind the run must not complete the element.
            refuse(api, "TensorProto", lengthed(field, before + element[:end]) + element[end:])
    whole = lengthed(field, 3 * element)
    for end in range(1, len(whole)):
        refuse(api, "TensorProto", whole[:end])


def test_a_submessage_does_not_read_past_its_end(api: Api) -> None:
    for body in (b"\x08", b"\x42\x05abc", b"\x42", b"\x0a\x02\x80", b"\x83"):
        refuse(api, "PagedCacheBlockProto", lengthed(3, body) + b"\x01\x01\x01\x01\x01\x01")


# ---------------------------------------------------------------------------------------------
# Tags

ZERO_NUMBERS = ["01", "0100", "0201", "0301", "0401", "0501", "00", "0000", "02", "03", "04", "05"]


@pytest.mark.parametrize("text", ZERO_NUMBERS)
def test_field_number_zero(api: Api, text: str) -> None:
    data = bytes.fromhex(text) + b"\0" * 8
    refuse(api, "TensorProto", bytes.fromhex(text))
    refuse(api, "TensorProto", data)
    refuse(api, "SparseTensorProto", lengthed(1, data))


def test_field_number_zero_inside_an_unknown_group(api: Api) -> None:
    for body in (b"\0\x01", b"\x02\x01a", b"\x05abcd", b"\x01abcdefgh"):
        accept(api, "TensorProto", group(99, body))


@pytest.mark.parametrize("wire_type", [6, 7])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 8, 99])
@pytest.mark.parametrize("payload", [b"", b"\0", b"\x01", b"\0" * 8])
def test_wire_types_that_do_not_exist(
    api: Api, number: int, wire_type: int, payload: bytes
) -> None:
    data = varint(number << 3 | wire_type) + payload
    refuse(api, "TensorProto", data)
    refuse(api, "TensorProto", group(99, data))


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("8880808000", True),  # field 1 padded to 5 bytes
        ("88808000", True),
        ("8800", True),
        ("888080808000", False),  # 6 bytes
        ("88808080808080808000", False),
        ("8880808010", False),  # over 32 bits
        ("f8ffffff0f", True),  # the largest number
        ("f8ffffff1f", False),
        ("f8ffffffff7f", False),
        ("f8ffffffffff7f", False),  # 7 bytes
        ("f8ffffffffffffff7f", False),  # 9 bytes
        ("888080808080808000", False),
        ("88808080808080808080808000", False),
    ],
)
def test_padded_and_large_tags(api: Api, text: str, good: bool) -> None:
    data = bytes.fromhex(text) + b"\x05"
    for name, body in (("PagedCacheBlockProto", data), ("TensorProto", group(99, data))):
        assert (parsed(api, name, body) is not None) == good
    if not text.startswith("f8") and good:
        accept(api, "PagedCacheBlockProto", data, b"\x08\x05")


@pytest.mark.parametrize(
    ("length", "good"),
    [
        ("80", False),
        ("8100", True),
        ("8180808000", True),  # 5 bytes
        ("818080808000", False),  # 6 bytes, fits 32 bits
        ("81808080808080808000", False),
        ("8180808010", False),
        ("8180808080808080808000", False),
    ],
)
def test_padded_lengths(api: Api, length: str, good: bool) -> None:
    for number in (8, 9, 14, 99):
        data = tag(number, 2) + bytes.fromhex(length) + b"a"
        assert (parsed(api, "TensorProto", data) is not None) == good
    data = tag(1, 2) + bytes.fromhex(length) + b"\x05"
    assert (parsed(api, "TensorProto", data) is not None) == good  # a packed run


# ---------------------------------------------------------------------------------------------
# Groups

GROUPS = {
    "4b": False,  # field 9 begins
    "4c": False,  # a stray end
    "4b4c": True,
    "4b54": False,  # another number ends
    "4b534c54": False,  # crossed
    "4b53544c": True,
    "4b08054c": True,
    "4b084c": False,
    "4b0805": False,
    "08054c": False,
    "4c0805": False,
    "0c": False,
    "0b0c": True,  # a known number with the wrong wire type
    "4b4b4c": False,
    "4b4c4c": False,
    "4a014c": True,  # bytes that look like an end
    "9b069c06": True,
    "9b069c07": False,
    "4b4a034b4b4b4c": True,  # bytes inside a group
}


@pytest.mark.parametrize("text", GROUPS)
def test_groups(api: Api, text: str) -> None:
    data = bytes.fromhex(text)
    for case in (data, b"\x10\x01" + data, data + b"\x10\x01"):
        good = GROUPS[text]
        assert (parsed(api, "TensorProto", case) is not None) == good
        # An end must not lie in another message than its begin.
        assert (parsed(api, "SparseTensorProto", lengthed(1, case)) is not None) == good
    if not GROUPS[text]:
        refuse(api, "SparseTensorProto", lengthed(1, data) + b"\x4c")


def test_unknown_groups_come_back(api: Api) -> None:
    inner = (
        group(3, b"\x08\x05") + lengthed(1, b"x") + tag(7, 1) + b"8 bytes." + tag(7, 5) + b"four"
    )
    accept(api, "TensorProto", b"\x10\x01" + group(500, inner) + group(7, b""))


# ---------------------------------------------------------------------------------------------
# Scalars


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        (INT64, varint(2**64 - 1), -1),
        (INT64, varint(2**63), -(2**63)),
        (INT64, F9 + b"\x7f", -1),  # the 10th byte's high bits are dropped
        (INT64, F9 + b"\x01", -1),
        (INT64, b"\x80" * 9 + b"\x02", 0),
        (INT64, b"\x80" * 9 + b"\x00", 0),
        (INT64, varint(5, padding=9), 5),
        (UINT64, varint(2**64 - 1), 2**64 - 1),
        (UINT64, varint(0, padding=9), 0),
        (INT32, varint(2**33), 0),
        (INT32, varint(2**63 - 1), -1),
        (INT32, varint(2**64 - 1), -1),
        (INT32, varint(2**31), -(2**31)),
        (INT32, varint(2**32 + 5), 5),
        (INT32, varint(2**64 - 2**31), -(2**31)),
        (UINT32, varint(2**32 - 1), 2**32 - 1),
        (UINT32, varint(2**33 + 7), 7),
        (UINT32, varint(2**64 - 1), 2**32 - 1),
        (BOOL, varint(1), True),
        (BOOL, varint(0), False),
        (BOOL, varint(2**31), True),
        (BOOL, varint(2**32), True),
        (BOOL, varint(2**63), True),
        (BOOL, varint(256), True),
        (BOOL, varint(0, padding=5), False),
        (BOOL, b"\x80" * 9 + b"\x01", True),
        (ENUM, varint(7), 7),
        (ENUM, varint(2**32 + 7), 7),
        (ENUM, varint(7, padding=9), 7),
        (ENUM, varint(0), 0),
        (FLOAT, b"\x00\x00\x80\x7f", float("inf")),
        (FLOAT, b"\x00\x00\x00\x80", -0.0),
        (FLOAT, b"\x01\x00\x00\x00", 2.0**-149),
        (DOUBLE, lengthed(1, struct.pack("<d", 5e-324))[1:], [5e-324]),
    ],
)
def test_scalars(api: Api, field: tuple[str, int], value: bytes, read: object) -> None:
    name, number = field
    wire_type = {FLOAT: 5, DOUBLE: 2}.get(field, 0)
    message = api.cls(name).FromString(tag(number, wire_type) + value)
    got = getattr(message, descriptor(name).fields_by_number[number].name)
    assert (list(got) if isinstance(read, list) else got) == read
    assert repr(got) == repr(read)  # signs of zero, and bool


@pytest.mark.parametrize("field", VARINT_FIELDS)
def test_varints_of_eleven_bytes(api: Api, field: tuple[str, int]) -> None:
    name, number = field
    for value in (F9 + b"\xff\x01", F9 + b"\x80\x00", b"\x80" * 10 + b"\x01", b"\x80" * 10 + b"\0"):
        refuse(api, name, tag(number, 0) + value)
        refuse(api, name, tag(99, 0) + value)  # unknown
    refuse(api, "TensorProto", lengthed(1, F9 + b"\xff\x01"))  # packed


@pytest.mark.parametrize("value", [16, 99, -1, 2**31 - 1, 2**40 + 99])
def test_unlisted_enum_values_are_kept_as_they_came(api: Api, value: int) -> None:
    for padding in (0, 1) if value > 0 else (0,):
        number = varint(value & (2**64 - 1), padding)
        data = tag(20, 0) + number
        accept(api, "AttributeProto", data)
        message = api.AttributeProto.FromString(data)
        assert not message.HasField("type")
        assert message.type == 0
    # A listed one before it stays.
    accept(api, "AttributeProto", b"\xa0\x01\x01\xa0\x01\x63")
    assert api.AttributeProto.FromString(b"\xa0\x01\x01\xa0\x01\x63").type == 1


NAN_BITS = (0x7FC00000, 0x7F800001, 0xFFC00001, 0x7FDEADBE, 0xFFFFFFFF)


@pytest.mark.parametrize("bits", NAN_BITS)
def test_nan_payloads_survive(api: Api, bits: int) -> None:
    four = struct.pack("<I", bits)
    eight = struct.pack("<Q", bits << 32 | 12345)
    accept(api, "AttributeProto", tag(2, 5) + four)
    accept(api, "AttributeProto", tag(7, 5) + four)
    accept(api, "TensorProto", lengthed(4, four * 3))
    accept(api, "TensorProto", lengthed(10, eight * 3))
    for cls in (api.AttributeProto, api.TensorProto):
        message = cls.FromString(tag(2, 5) + four if cls is api.AttributeProto else b"")
        copy = cls()
        copy.CopyFrom(message)
        assert copy.SerializeToString() == message.SerializeToString()


# ---------------------------------------------------------------------------------------------
# Occurring twice

TWICE = [
    ("PagedCacheBlockProto", "0801 0802", "0802"),
    ("TensorProto", "4201 61 4200", "4200"),
    ("TensorProto", "4a0161 4a0262 63", "4a026263"),
    ("AttributeProto", "a00101 a00102", "a00102"),
    ("SparseTensorProto", "0a021001 0a024200", "0a0410014200"),  # merged, recursively
    ("SparseTensorProto", "0a02 1001 0a02 1002", "0a021002"),
    ("SparseTensorProto", "0a02 0801 0a02 0802", "0a04 0801 0802"),
    ("SparseTensorProto", "0a04 1a020801 0a04 1a021002", "0a06 1a0408011002"),
    ("PagedCacheBlockProto", "1a021001 1a024200", "1a0410014200"),  # same member of a oneof
    ("PagedCacheBlockProto", "1a021001 2a00", "2a00"),  # the other one
    ("PagedCacheBlockProto", "2a00 1a021001", "1a021001"),
    ("PagedCacheBlockProto", "1a021001 2a00 1a024200", "1a024200"),
    ("PagedCacheBlockProto", "1a00 2200", "1a00 2200"),  # two oneofs
    ("StructTypeProto", "2005 0a00", "0a00"),
    ("StructTypeProto", "0a021005 2000", "2000"),  # a default value selects, too
    ("StructTypeProto", "2000 2007", "2007"),
    ("TypeProto", "0a020801 2200", "2200"),
    ("TypeProto", "2200 0a00 c23e00", "c23e00"),
]


@pytest.mark.parametrize(("name", "data", "written"), TWICE)
def test_fields_that_occur_twice(api: Api, name: str, data: str, written: str) -> None:
    accept(api, name, bytes.fromhex(data), bytes.fromhex(written))


@pytest.mark.parametrize(
    ("data", "written"),
    [
        ("0a03010203", "080108020803"),  # dims: declared unpacked
        ("0801 0a0102 0803", "080108020803"),
        ("0a00", ""),
        ("2500000000 25 0000803f", "2208 00000000 0000803f"),  # float_data: declared packed
        ("2204 00000000 25 0000803f", "2208 00000000 0000803f"),
        ("2200", ""),
        ("3801 3a0102", "3a020102"),
        ("2a0a ffffffffffffffffff01 2805", "2a0b ffffffffffffffffff01 05"),
    ],
)
def test_packed_and_unpacked(api: Api, data: str, written: str) -> None:
    accept(api, "TensorProto", bytes.fromhex(data), bytes.fromhex(written))


# ---------------------------------------------------------------------------------------------
# Unknown fields and wrong wire types


@pytest.mark.parametrize("wire_type", sorted(VALUES))
@pytest.mark.parametrize("number", [2, 3, 6, 8, 9, 14])
def test_a_known_field_with_another_wire_type_is_unknown(
    protobuf: Api, ours: Api, number: int, wire_type: int
) -> None:
    data = tag(number, wire_type) + VALUES[wire_type] + b"\x10\x05" + group(number, b"\x08\x01")
    written = check_same_bytes(protobuf, ours, "TensorProto", data)
    assert written is None or written.endswith(group(number, b"\x08\x01"))


def test_unknown_fields_keep_their_order_behind_the_known(api: Api) -> None:
    unknown = [tag(n, 0) + varint(v) for n, v in ((500, 1), (30, 2), (500, 3), (31, 4), (500, 5))]
    known = [b"\x42\x01b", b"\x10\x01", b"\x08\x07"]
    data = b"".join(u + k for u, k in zip(unknown, [*known, b"", b""], strict=True))
    accept(api, "TensorProto", data, b"\x08\x07\x10\x01\x42\x01b" + b"".join(unknown))


def test_many_unknown_fields_and_many_merges(api: Api) -> None:
    """Quadratic time would make these last for minutes."""
    data = (tag(500, 0) + b"\x01" + lengthed(501, b"x")) * 50000
    accept(api, "TensorProto", data)
    part = lengthed(1, lengthed(8, b"n") + b"\x08\x01" + tag(99, 0) + b"\x01")
    message = api.SparseTensorProto.FromString(part * 50000)
    assert len(message.values.dims) == 50000
    assert message.values.name == "n"


# ---------------------------------------------------------------------------------------------
# Depth


@pytest.mark.parametrize(
    ("levels", "good"), [(99, True), (100, True), (101, False), (20000, False)]
)
def test_depth(api: Api, levels: int, good: bool) -> None:
    groups = tag(99, 3) * levels + tag(99, 4) * levels
    mixed = nested(7, levels - 50, tag(99, 3) * 50 + tag(99, 4) * 50)
    for data in (nested(7, levels), groups, mixed):  # OptionalProto.optional_value
        assert (parsed(api, "OptionalProto", data) is not None) == good
    other_class_innermost = nested(7, levels - 1, lengthed(3, b""))
    assert (parsed(api, "OptionalProto", other_class_innermost) is not None) == good


@pytest.mark.parametrize(("loops", "good"), [(33, True), (34, False)])
def test_nested_graphs(api: Api, loops: int, good: bool) -> None:
    graph = b""
    for _ in range(loops):  # GraphProto.node.attribute.g
        graph = lengthed(1, lengthed(5, lengthed(6, graph)))
    assert (parsed(api, "ModelProto", lengthed(7, graph)) is not None) == good


# ---------------------------------------------------------------------------------------------
# What the tables above leave out of the suite's groups

# A field of every type, once and repeated, with the wire type and bytes of one value.
EVERY_TYPE = [
    ("PagedCacheBlockProto", 1, 0, varint(300)),  # int64
    ("AffineLayoutProto", 5, 0, varint(300)),  # uint64
    ("TensorProto", 2, 0, varint(300)),  # int32
    ("StructTypeProto.BitPacking.Component", 2, 0, varint(300)),  # uint32
    ("AttributeProto", 20, 0, b"\x87\x00"),  # enum
    ("AffineLayoutProto", 6, 0, b"\x81\x00"),  # bool
    ("AttributeProto", 2, 5, b"\0\0\x80\x3f"),  # float
    ("TensorProto", 8, 2, b"\x03abc"),  # string
    ("TensorProto", 9, 2, b"\x03abc"),  # bytes
    ("SparseTensorProto", 1, 2, b"\x02\x10\x05"),  # message
    ("AttributeProto", 8, 0, varint(300)),  # repeated int64
    ("AttributeProto", 7, 5, b"\0\0\x80\x3f"),  # repeated float
    ("TensorProto", 10, 1, b"\0\0\0\0\0\0\xf0\x3f"),  # repeated double
    ("TensorProto", 11, 0, varint(300)),  # repeated uint64
    ("TensorProto", 5, 0, varint(300)),  # repeated int32
    ("TensorProto", 6, 2, b"\x03abc"),  # repeated bytes
    ("NodeProto", 1, 2, b"\x03abc"),  # repeated string
    ("GraphProto", 1, 2, b"\x03\x1a\x01n"),  # repeated message
]


@pytest.mark.parametrize(("name", "number", "wire_type", "value"), EVERY_TYPE)
def test_every_type_cut_short(
    api: Api, name: str, number: int, wire_type: int, value: bytes
) -> None:
    head = tag(number, wire_type)
    assert parsed(api, name, head + value) is not None
    for end in range(len(value)):
        for before in (b"", head + value):  # alone, and as a further element
            refuse(api, name, before + head + value[:end])
    refuse(api, name, head)


@pytest.mark.parametrize(("name", "number", "wire_type", "value"), EVERY_TYPE)
def test_every_type_with_every_wire_type(
    protobuf: Api, ours: Api, name: str, number: int, wire_type: int, value: bytes
) -> None:
    """Packed is accepted for numbers, all else is an unknown field, and comes back behind."""
    for other, content in VALUES.items():
        data = tag(number, other) + content + tag(number, wire_type) + value
        check_same_bytes(protobuf, ours, name, data)
    for group_body in (b"", tag(number, wire_type) + value):
        written = check_same_bytes(protobuf, ours, name, group(number, group_body))
        assert written == group(number, group_body)


@pytest.mark.parametrize(
    "text", ["", "01", "0080", "7f", "ff", "c3a9", "ed a0 80", "f4 90 80 80", "00", "c0 ae"]
)
def test_texts_are_not_checked(api: Api, text: str) -> None:
    """Syntax proto2: bytes that are no UTF-8 come back, on the wire and as bytes in Python."""
    raw = bytes.fromhex(text)
    accept(api, "TensorProto", lengthed(8, raw))
    value = api.TensorProto.FromString(lengthed(8, raw)).name
    assert value == raw or value == raw.decode()


MERGES = [
    # Repeated fields of two submessages are joined, deep inside, too; scalars take the last.
    ("ModelProto", ["3a03120161", "3a03120162", "0801", "0802"]),
    ("ModelProto", ["3a050a03220178", "3a050a031a0179", "3a0a52080a06 6e6f64653122"]),
    ("TypeProto", ["0a020801", "0a0612040a020803", "0a020805"]),
    ("TypeProto", ["0a020801", "2200", "0a020805"]),
    ("NodeProto", ["0a0161 0a0162", "0a0163", "1a0131", "1a0132"]),
    ("TensorProto", ["0801", "0a020203", "2a020506", "2807"]),
]


@pytest.mark.parametrize(("name", "parts"), MERGES)
def test_joined_bytes_are_merged_messages(
    protobuf: Api, ours: Api, name: str, parts: list[str]
) -> None:
    data = [bytes.fromhex(part) for part in parts]
    for end in range(1, len(data) + 1):
        joined = check_same_bytes(protobuf, ours, name, b"".join(data[:end]))
        for api in (protobuf, ours):
            if any(parsed(api, name, part) is None for part in data[:end]):
                continue
            merged = api.cls(name)()
            for part in data[:end]:
                merged.MergeFrom(api.cls(name).FromString(part))
            assert merged.SerializeToString() == joined
