"""The generated type stub: complete, and as strict as it should be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import oracle

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import generate_stub  # noqa: E402
import message_schema  # noqa: E402

MODULE = "_onnxpyprotoop"
COMMON_METHODS = set(
    re.findall(
        r"\w+",
        """
        ByteSize Clear ClearField CopyFrom MergeFrom HasField WhichOneof ParseFromString
        ParseFromFile SerializeToString SerializeSize SerializeToFile SerializeToFileDescriptor
        SerializeToOstream SerializeToOStream MergeFromString ListFields SetInParent FromString
        DiscardUnknownFields IsInitialized SerializePartialToString payload to_onnx from_onnx
        __eq__ __copy__ __deepcopy__ __reduce__
        """,
    )
)

# Lines that end in `# bad` must be errors, all others must not.
USE = """
import copy
import io
from pathlib import Path
from typing import assert_type

import numpy as np
from _onnxpyprotoop import (
    IR_VERSION, AttributeProto, DecodeError, EncodedValueProto, FileLoadMode, GraphProto,
    ModelProto, NodeProto, PagedCacheBlockProto, PagedCacheProto, ParseError, ParseOptions,
    RepeatedMessage, SerializeOptions, SerializeSizeResult, StructTypeProto, TensorProto,
    TensorShapeProto, TypeProto, Version,
)

model = ModelProto(ir_version=IR_VERSION, producer_name="p", graph={"name": "g"}, domain=None)
model = ModelProto(model)
ModelProto(GraphProto())  # bad
ModelProto(ir_version="1")  # bad
ModelProto(no_such_field=1)  # bad
model.no_such_field = 1  # bad
model.ir_version = np.int64(3)
model.ir_version = None  # bad
assert_type(model.ir_version, int)
assert_type(model.graph, GraphProto)
model.graph = GraphProto()
model.graph = NodeProto()  # bad
model.graph.node = []  # bad
assert_type(model.graph.node[0], NodeProto)
assert_type(model.graph.node[1:], list[NodeProto])
node = model.graph.node.add(op_type="Add", input=["a", "b"], attribute=[{"name": "x", "i": 1}])
assert_type(node, NodeProto)
model.graph.node.add(op_type=1)  # bad
model.graph.node.add(no_such_field=1)  # bad
model.graph.node.append(GraphProto())  # bad
model.graph.node[0] = node  # bad
del model.graph.node[0]
node.input.append("c")
node.input.append(1)  # bad
node.input[0] = "d"
node.name = b"n"
assert_type(node.name, str)
assert_type(node.overload, str)
nodes: RepeatedMessage[NodeProto] = model.graph.node
for each in nodes:
    assert_type(each, NodeProto)
assert_type(nodes.add(name="n"), NodeProto)
nodes.add(op_type=1)  # bad
nodes.add("n")  # bad
assert_type(nodes.append(node), NodeProto)
class MyNode(NodeProto): ...  # bad
class MyNodes(RepeatedMessage[NodeProto]): ...  # bad
class MyOptions(ParseOptions): ...
assert_type(node.has_attribute(), bool)
assert_type(node.add_attribute(), AttributeProto)
node.add_name()  # bad

tensor = TensorProto(dims=(1, 2), data_type=TensorProto.FLOAT, raw_data=np.zeros(2))
tensor.raw_data = memoryview(b"12")
tensor.raw_data = "text"  # bad
assert_type(tensor.raw_data, bytes)
tensor.float_data.extend(np.zeros(3))
tensor.dims.extend([3, 4])
tensor.dims[:] = np.arange(3)
assert_type(np.asarray(tensor.dims).ndim, int)
tensor.DIMS_FIELD_NUMBER = 5  # bad
tensor.data_location = TensorProto.EXTERNAL
assert_type(tensor.data_location, int)
assert_type(TensorProto.DataType.Name(1), str)
assert_type(TensorProto.DataType.items(), list[tuple[str, int]])
assert_type(Version.Value("IR_VERSION"), int)
assert_type(tensor.segment, TensorProto.Segment)

shape = TypeProto.Tensor(shape=TensorShapeProto(dim=[TensorShapeProto.Dimension(dim_value=1)]))
value = TypeProto(sequence_type=TypeProto.Sequence(elem_type=TypeProto(tensor_type=shape)))
assert_type(value.map_type.value_type, TypeProto)
assert_type(value.optional_type, TypeProto.Optional)
field = StructTypeProto().structure.field.add(name="scale", constant=tensor)
assert_type(field, StructTypeProto.Structure.Field)

block = PagedCacheBlockProto(start=0, length=1, key=tensor)
assert_type(block.add_encoded_value(), EncodedValueProto)
if block.WhichOneof("key_payload") == "key":
    assert_type(block.key, TensorProto)
block.WhichOneof("key_payload") == "value"  # bad
cache = PagedCacheProto(blocks=[block], name="layers.0")
assert_type(PagedCacheProto.FromString(b""), PagedCacheProto)
assert_type(copy.deepcopy(cache), PagedCacheProto)
cache.CopyFrom(cache)
cache.CopyFrom(block)  # bad

options = ParseOptions(no_copy=True, file_load_mode=FileLoadMode.MMAP)
options.num_threads = -1
cache.ParseFromString("text", options)
cache.ParseFromString(bytearray(), SerializeOptions())  # bad
cache.ParseFromFile(Path("x"), external_data_file="y")
cache.SerializeToOstream(io.BytesIO())
with open("x", "wb") as output:
    cache.SerializeToOStream(output)
    cache.SerializeToFileDescriptor(output.fileno(), SerializeOptions(alignment=64))
cache.SerializeToOstream("x")  # bad
assert_type(cache.SerializeSize() + cache.SerializeSize(), SerializeSizeResult)
assert_type(cache.SerializeSize().size(), int)
try:
    pass
except DecodeError as error:
    assert_type(error, ParseError)
    assert_type(error.offset, int)
"""


@pytest.fixture(scope="module")
def text() -> str:
    return generate_stub.stub(message_schema.load())


@pytest.fixture(scope="module")
def tree(text: str) -> dict[str, ast.ClassDef]:
    """The classes of the stub by dotted name."""
    found: dict[str, ast.ClassDef] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                assert prefix + statement.name not in found
                found[prefix + statement.name] = statement
                visit(statement.body, f"{prefix}{statement.name}.")

    visit(ast.parse(text).body, "")
    return found


def functions(cls: ast.ClassDef, decorator: str | None = None) -> set[str]:
    """The functions of a class with that decorator, or those without any."""
    return {
        f.name
        for f in cls.body
        if isinstance(f, ast.FunctionDef)
        and (decorator or "") == ",".join(ast.unparse(d) for d in f.decorator_list)
    }


def constants(body: list[ast.stmt]) -> dict[str, int]:
    return {
        s.target.id: ast.literal_eval(s.value)
        for s in body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and s.value is not None
    }


def test_every_field_of_every_message(tree: dict[str, ast.ClassDef]) -> None:
    for name, cls in oracle.classes(oracle.load()):
        ours = tree[name]
        fields = list(cls.DESCRIPTOR.fields)
        names = {f.name for f in fields}
        messages = {f.name for f in fields if f.message_type is not None}
        assert functions(ours, "property") == names
        setters = {n for n in names if n in functions(ours, f"{n}.setter")}
        assert setters == {f.name for f in fields if not f.is_repeated}
        methods = {f"has_{n}" for n in names} | {f"add_{n}" for n in messages} | {"__init__"}
        assert functions(ours) == methods
        expected = {f"{f.name.upper()}_FIELD_NUMBER": f.number for f in fields}
        expected |= {v.name: v.number for e in cls.DESCRIPTOR.enum_types for v in e.values}
        assert constants(ours.body) == expected
        for enum in cls.DESCRIPTOR.enum_types:
            wrapper = tree[f"{name}._{enum.name}"]
            assert constants(wrapper.body) == {v.name: v.number for v in enum.values}
        keywords = tree[f"_{name.replace('.', '_')}Fields"].body
        assert {s.target.id for s in keywords} == names  # type: ignore[union-attr]


def test_module_level_enums(text: str) -> None:
    values = constants(ast.parse(text).body)
    for enum in oracle.load().DESCRIPTOR.enum_types_by_name.values():
        for value in enum.values:
            assert values.pop(value.name) == value.number
    assert not values


def test_docs_come_from_the_schema(tree: dict[str, ast.ClassDef]) -> None:
    for message in message_schema.load().all_messages():
        docs = {
            f.name: ast.get_docstring(f)
            for f in tree[message.full_name].body
            if isinstance(f, ast.FunctionDef) and functions(tree[message.full_name], "property")
            if [ast.unparse(d) for d in f.decorator_list] == ["property"]
        }
        for field in message.fields:
            assert (docs[field.name] or "").split() == field.doc.split()
        assert (ast.get_docstring(tree[message.full_name]) or "").split() == message.doc.split()


def test_common_methods(tree: dict[str, ast.ClassDef]) -> None:
    defined = {f.name for f in tree["Message"].body if isinstance(f, ast.FunctionDef)}
    assert defined == COMMON_METHODS


def test_a_field_must_not_hide_a_type() -> None:
    head = 'syntax = "proto2";\npackage p;\n'
    for name in ("int", "property", "Mapping", "class", "lambda"):
        schema = message_schema.parse(f"{head}message M {{ optional int32 {name} = 1; }}")
        with pytest.raises(ValueError, match=rf"M\.{name} cannot be a Python attribute"):
            generate_stub.stub(schema)


def test_awkward_docs() -> None:
    schema = message_schema.parse(
        'syntax = "proto2";\npackage p;\n// A \\ and """ and\n//\n// an end in "quotes"\n'
        "message M { optional int32 x = 1; }"
    )
    body = ast.parse(generate_stub.stub(schema)).body
    message = next(s for s in body if isinstance(s, ast.ClassDef) and s.name == "M")
    assert ast.get_docstring(message) == 'A \\ and """ and\n\nan end in "quotes"'


def test_command_line_writes_the_same(text: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / f"{MODULE}.pyi"
    command = [sys.executable, str(ROOT / "tools" / "generate_stub.py"), "--output", str(target)]
    subprocess.run(command, check=True)
    assert target.read_text(encoding="utf-8") == text


def test_mypy_strict(text: str, tmp_path: Path) -> None:
    (tmp_path / f"{MODULE}.pyi").write_text(text, encoding="utf-8")
    (tmp_path / "use.py").write_text(USE, encoding="utf-8")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file="]
    command = [*mypy, f"{MODULE}.pyi", "use.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not result.stderr
    errors = re.findall(r"(?m)^(\S+?):(\d+): error: .*$", result.stdout)
    found = {int(line) for file, line in errors if file == "use.py"}
    expected = {i for i, line in enumerate(USE.splitlines(), 1) if line.endswith("# bad")}
    assert {file for file, _ in errors} <= {"use.py"}, result.stdout
    assert found == expected, result.stdout
