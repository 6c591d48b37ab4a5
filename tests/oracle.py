"""Real protobuf classes for every message of the contract, to compare ours with.

The schema is the .proto text that the installed `onnx` package carries, with the extension messages
and fields of this project patched in. The text is made and compiled when the tests run; none of it
is kept.

    import oracle
    O = oracle.load()                       # like a module made by protoc: O.ModelProto, O.Version
    for name, cls in oracle.classes(O): ...  # ("TypeProto.Tensor", class), nested ones included
    message = oracle.random_message(O.NodeProto, random.Random(1), maxdepth=3)
"""

from __future__ import annotations

import functools
import importlib.util
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

AnyMessage = TypeVar("AnyMessage", bound=Message)

# Not `onnx`: that name is taken in protobuf's pool as soon as onnx is imported.
PACKAGE = "onnx_light_oracle"
WHEEL_FILES = ("onnx-ml.proto", "onnx-data.proto", "onnx-operators-ml.proto")

NEW_MESSAGES = """
message StructTypeProto {
  message Array {
    optional TypeProto element_type = 1;
    optional uint64 dimension = 2;
  }
  message Structure {
    message Field {
      optional string name = 1;
      oneof content { TypeProto type = 2; TensorProto constant = 4; }
      optional string doc_string = 3;
    }
    repeated Field field = 1;
  }
  message BitPacking {
    message Component {
      optional string name = 1;
      optional uint32 bit_width = 2;
    }
    repeated Component component = 1;
    optional uint64 dimension = 2;
  }
  oneof kind {
    Array array = 1;
    Structure structure = 2;
    BitPacking bit_packing = 3;
    uint64 type_ref = 4;
  }
  optional FunctionProto decoder = 5;
  optional FunctionProto encoder = 6;
  optional string name = 7;
  optional string doc_string = 8;
  repeated StringStringEntryProto metadata_props = 9;
  optional uint64 type_id = 10;
}
message AffineLayoutProto {
  optional TensorProto.DataType storage_type = 1;
  optional TensorProto scale = 2;
  optional TensorProto zero_point = 3;
  optional int64 axis = 4;
  optional uint64 block_size = 5;
  optional bool signed_storage = 6;
}
message EncodedValueProto {
  oneof layout { AffineLayoutProto affine = 1; StructTypeProto struct_type = 2; }
  optional TypeProto logical_type = 3;
  optional bytes raw_data = 4;
  repeated StringStringEntryProto external_data = 5;
  optional TensorProto.DataLocation data_location = 6;
  optional string name = 7;
  optional string doc_string = 8;
  optional string parameter_ref = 10;
}
message PersistentBindingProto {
  optional string input_name = 1;
  optional string output_name = 2;
}
message PagedCacheBlockProto {
  optional int64 start = 1;
  optional int64 length = 2;
  oneof key_payload { TensorProto key = 3; EncodedValueProto encoded_key = 5; }
  oneof value_payload { TensorProto value = 4; EncodedValueProto encoded_value = 6; }
}
message PagedCacheProto {
  repeated PagedCacheBlockProto blocks = 1;
  optional string name = 2;
  optional string doc_string = 3;
}
"""
NEW_FIELDS = {
    "GraphProto": """
  repeated EncodedValueProto encoded_initializer = 1000;
  repeated PersistentBindingProto persistent_bindings = 1001;
  repeated PagedCacheProto paged_cache_initializer = 1002;
""",
    "ModelProto": """
  repeated StructTypeProto struct_types = 1000;
""",
}
NEW_TYPE = "  StructTypeProto struct_type = 1000;\n"


def _insert_before_end(text: str, opening: str, addition: str) -> str:
    """Adds text before the brace that closes the one after `opening`, in text without comments."""
    begin = text.index(opening) + len(opening)
    depth = 1
    for match in re.finditer(r"[{}]", text[begin:]):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            end = begin + match.start()
            return text[:end] + addition + text[end:]
    raise AssertionError(f"'{opening}' is never closed")


def schema_text() -> str:
    """One proto2 file with everything: the text of the wheel, patched."""
    folder = Path(onnx.__file__).parent
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in WHEEL_FILES)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"(?m)^(syntax|package|import|option)\b[^;]*;", "", text)
    for message, fields in NEW_FIELDS.items():
        text = _insert_before_end(text, f"message {message} {{", fields)
    type_proto = text.index("message TypeProto {")
    text = text[:type_proto] + _insert_before_end(text[type_proto:], "oneof value {", NEW_TYPE)
    return f'syntax = "proto2";\npackage {PACKAGE};\n{text}\n{NEW_MESSAGES}'


@functools.cache
def load() -> ModuleType:
    """The module that protoc makes of schema_text(), once per process."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{PACKAGE}.proto").write_text(schema_text(), encoding="utf-8")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                "-I.",
                "--python_out=.",
                f"{PACKAGE}.proto",
            ],
            cwd=folder,
            check=True,
        )
        path = Path(folder) / f"{PACKAGE}_pb2.py"
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def classes(module: ModuleType) -> list[tuple[str, type[Message]]]:
    """Every message class with its dotted name, nested ones after the one they lie in."""
    found: list[tuple[str, type[Message]]] = []

    def visit(owner: Any, name: str, prefix: str) -> None:
        cls = getattr(owner, name)
        found.append((prefix + name, cls))
        for nested in cls.DESCRIPTOR.nested_types:
            visit(cls, nested.name, f"{prefix}{name}.")

    for name in module.DESCRIPTOR.message_types_by_name:
        visit(module, name, "")
    return found


def _random_integer(rng: random.Random, low: int, high: int) -> int:
    """Limits, the edges of varint lengths, and anything between."""
    edges = [0, 1, 2, 127, 128, 16383, 16384, 2**31 - 1, 2**31, low, high, high - 1]
    edges += [-1, -128, -(2**31)]
    value = rng.choice([*edges, rng.getrandbits(rng.randrange(1, 65)), rng.randint(low, high)])
    return min(max(value, low), high)


def _random_float(rng: random.Random, subnormal: float, largest: float) -> float:
    values = [0.0, -0.0, 1.0, -2.5, 1 / 3, subnormal, largest, float("inf"), float("-inf")]
    return rng.choice([*values, rng.gauss(0, 1e3)])


# Seldom, about where texts become shared buffers and where lengths take another byte.
_LARGE = [4095, 4096, 4097, 16383, 16384]


def _random_bytes(rng: random.Random) -> bytes:
    sizes = _LARGE if rng.random() < 0.02 else [0, 1, 7, 63, 64, 65, 127, 128, 300]
    return rng.randbytes(rng.choice(sizes))


def _random_string(rng: random.Random) -> str:
    length = rng.choice([4096, 5000] if rng.random() < 0.005 else [0, 1, 2, 20, 127, 128])
    return "".join(rng.choice("aZ_9 \n\t\"'\\\0é漢𝄞") for _ in range(length))


_SCALARS: dict[int, Callable[[random.Random], Any]] = {
    FieldDescriptor.TYPE_INT32: lambda rng: _random_integer(rng, -(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: lambda rng: _random_integer(rng, -(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: lambda rng: _random_integer(rng, 0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: lambda rng: _random_integer(rng, 0, 2**64 - 1),
    FieldDescriptor.TYPE_FLOAT: lambda rng: _random_float(rng, 1e-45, 3.4028234663852886e38),
    FieldDescriptor.TYPE_DOUBLE: lambda rng: _random_float(rng, 5e-324, 1.7976931348623157e308),
    FieldDescriptor.TYPE_BOOL: lambda rng: rng.random() < 0.5,
    FieldDescriptor.TYPE_BYTES: _random_bytes,
    FieldDescriptor.TYPE_STRING: _random_string,
}


def _random_scalar(field: FieldDescriptor, rng: random.Random) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    return _SCALARS[field.type](rng)


def _candidates(cls: type[Message], rng: random.Random) -> list[FieldDescriptor]:
    """The fields in a random order, of each oneof a single member."""
    fields = list(cls.DESCRIPTOR.fields)
    rng.shuffle(fields)
    taken: set[str] = set()
    chosen = []
    for field in fields:
        oneof = field.containing_oneof
        if oneof is None or oneof.name not in taken:
            chosen.append(field)
        if oneof is not None:
            taken.add(oneof.name)
    return chosen


def random_message(cls: type[AnyMessage], rng: random.Random, maxdepth: int = 3) -> AnyMessage:
    """A message with about half of its fields set, at most `maxdepth` levels of messages below it.

    Every kind of field occurs, with edge values, empty repeated fields and present but empty
    messages. NaN does not occur, so that equal messages compare equal.
    """
    message = cls()
    for field in _candidates(cls, rng):
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE
        if rng.random() < 0.5 or (is_message and maxdepth <= 0):
            continue
        if is_message:
            sub_cls = field.message_type._concrete_class
            for _ in range(rng.choice([1, 1, 2]) if field.is_repeated else 1):
                sub = random_message(sub_cls, rng, maxdepth - 1)
                target = getattr(message, field.name)
                if field.is_repeated:
                    target.append(sub)
                else:
                    target.CopyFrom(sub)
                    target.SetInParent()
        elif field.is_repeated:
            count = rng.choice([1, 2, 5, 40])
            getattr(message, field.name).extend(_random_scalar(field, rng) for _ in range(count))
        else:
            setattr(message, field.name, _random_scalar(field, rng))
    return message
