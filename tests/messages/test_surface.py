"""The names of the message classes, one by one; docs, signatures, and the stub."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from message_apis import Api, class_names, descriptor

import generate_stub
import message_schema
import onnx_light.onnx

ROOT = Path(__file__).resolve().parents[2]
METHODS = re.findall(
    r"\w+",
    """
    ByteSize Clear ClearField CopyFrom MergeFrom HasField WhichOneof ParseFromString ParseFromFile
    SerializeToString SerializeSize SerializeToFile SerializeToFileDescriptor SerializeToOstream
    SerializeToOStream MergeFromString ListFields SetInParent FromString DiscardUnknownFields
    IsInitialized SerializePartialToString payload to_onnx from_onnx
    """,
)


def test_the_package_has_what_the_module_has(ours: Api) -> None:
    for name in vars(ours.module):
        if not name.startswith("_"):
            assert getattr(onnx_light.onnx, name) is getattr(ours.module, name)
            assert name in onnx_light.onnx.__all__
    for name in onnx_light.onnx.__all__:
        assert hasattr(onnx_light.onnx, name)
    functions = "load save load_model save_model load_from_string check_model to_array from_array"
    for name in functions.split():
        assert callable(getattr(onnx_light.onnx, name))


@pytest.mark.parametrize("name", class_names())
def test_every_class_and_field(ours: Api, protobuf: Api, name: str) -> None:
    cls, theirs = ours.cls(name), protobuf.cls(name)
    assert (cls.__name__, cls.__qualname__) == (theirs.__name__, name)
    assert cls.__module__ == "onnx_light.onnx"
    assert issubclass(cls, ours.Message)
    for field in descriptor(name).fields:
        assert getattr(cls, f"{field.name.upper()}_FIELD_NUMBER") == field.number
        message = cls()
        has = getattr(message, f"has_{field.name}")
        assert has() is False
        add = getattr(message, f"add_{field.name}", None)
        assert (add is None) == (field.message_type is None)
        other = theirs()
        if add is not None:
            made = add()
            if field.is_repeated:
                assert made is getattr(message, field.name)[-1]
                assert add() is not made
                getattr(other, field.name).add()
                getattr(other, field.name).add()
            else:
                assert made is getattr(message, field.name)
                getattr(other, field.name).SetInParent()
        elif field.is_repeated:
            value = {"string": "x", "bytes": b"x"}.get(kind(field), 0)
            for each in (message, other):
                getattr(each, field.name).append(value)
        else:
            for each in (message, other):
                setattr(each, field.name, getattr(each, field.name))
        assert has() is True
        assert message.SerializeToString() == other.SerializeToString()
        message.Clear()
        assert has() is False
        with pytest.raises(TypeError):
            has(1)
        if add is not None:
            with pytest.raises(TypeError):
                add({})
    for oneof in descriptor(name).oneofs:
        for field in oneof.fields:
            message = cls()
            if field.message_type is not None:
                getattr(message, f"add_{field.name}")()
            else:
                setattr(message, field.name, getattr(message, field.name))
            assert message.WhichOneof(oneof.name) == field.name
            assert message.HasField(oneof.name)
            assert [f.name for f in oneof.fields if message.HasField(f.name)] == [field.name]


def kind(field: Any) -> str:
    return {9: "string", 12: "bytes"}.get(field.type, "")


@pytest.mark.parametrize("name", class_names())
def test_no_more_names_than_these(ours: Api, name: str) -> None:
    """What is public in a class is a method, a field or made of one, an enum or a nested class."""
    known = set(METHODS)
    about = descriptor(name)
    for field in about.fields:
        known |= {field.name, f"has_{field.name}", f"{field.name.upper()}_FIELD_NUMBER"}
        known |= {f"add_{field.name}"} if field.message_type is not None else set()
    for enum in about.enum_types:
        known |= {enum.name, *(v.name for v in enum.values)}
    known |= {nested.name for nested in about.nested_types}
    assert {n for n in dir(ours.cls(name)) if not n.startswith("_")} == known
    assert not hasattr(ours.cls(name), "DESCRIPTOR")
    assert not hasattr(ours.cls(name)(), "__dict__")


@pytest.mark.parametrize("name", class_names())
def test_enums(ours: Api, protobuf: Api, name: str) -> None:
    for about in descriptor(name).enum_types:
        compare_enums(getattr(ours.cls(name), about.name), getattr(protobuf.cls(name), about.name))
        for value in about.values:
            assert getattr(ours.cls(name), value.name) == value.number
            assert getattr(ours.cls(name)(), value.name) == value.number


def test_enums_of_the_module(ours: Api, protobuf: Api) -> None:
    for name, about in protobuf.DESCRIPTOR.enum_types_by_name.items():
        compare_enums(getattr(ours, name), getattr(protobuf, name))
        for value in about.values:
            assert getattr(ours, value.name) == value.number


def compare_enums(mine: Any, theirs: Any) -> None:
    assert mine.keys() == list(theirs.keys())
    assert mine.values() == list(theirs.values())
    assert mine.items() == list(theirs.items())
    for name, number in theirs.items():
        assert mine.Value(name) == number
        assert mine.Name(number) == theirs.Name(number)
        assert getattr(mine, name) == number
    for wrong in (99, -1, 2**40):
        with pytest.raises(ValueError, match=str(wrong)):
            mine.Name(wrong)
    for wrong in ("x", 1.0, None):
        with pytest.raises(TypeError):
            mine.Name(wrong)
    for wrong in ("nope", "", "float"):
        with pytest.raises(ValueError):  # noqa: PT011  # the text is ours
            mine.Value(wrong)
    with pytest.raises(AttributeError):
        mine.nope  # noqa: B018
    with pytest.raises(TypeError):
        mine(1)


# ---------------------------------------------------------------------------------------------
# Docs and signatures


def public(cls: type) -> list[tuple[str, Any]]:
    return [(n, inspect.getattr_static(cls, n)) for n in dir(cls) if not n.startswith("_")]


@pytest.mark.parametrize("name", class_names())
def test_docs(ours: Api, name: str) -> None:
    cls = ours.cls(name)
    assert inspect.getdoc(cls)
    for attribute, _ in public(cls):
        value = getattr(cls, attribute)
        if isinstance(value, int | type):
            continue
        assert inspect.getdoc(value), attribute


def test_docs_of_everything_else(ours: Api) -> None:
    assert inspect.getdoc(ours.module)
    for name, value in vars(ours.module).items():
        if name.startswith("_") or isinstance(value, int):
            continue
        assert inspect.getdoc(value), name
        if isinstance(value, type) and not issubclass(value, ours.Message | Exception):
            missing = [n for n, member in public(value) if not inspect.getdoc(member)]
            assert missing == [], name


@pytest.mark.parametrize("name", ["TensorProto", "PagedCacheBlockProto", "Message"])
def test_signatures(ours: Api, name: str) -> None:
    cls = ours.cls(name)
    for attribute in METHODS:
        signature = inspect.signature(getattr(cls, attribute))
        assert len(signature.parameters) <= 4, attribute
    parameters = list(inspect.signature(cls.ParseFromFile).parameters)
    assert parameters == ["self", "name", "options", "external_data_file"]
    parameters = list(inspect.signature(cls.ParseFromString).parameters)
    assert parameters == ["self", "data", "options"]
    if name != "Message":
        for attribute, value in public(cls):
            if attribute.startswith(("has_", "add_")):
                assert list(inspect.signature(value).parameters) == ["self"], attribute
                assert str(inspect.signature(getattr(cls(), attribute))) == "()"


def test_keywords_of_methods(ours: Api) -> None:
    message = ours.TensorProto()
    message.ParseFromString(data=b"\x10\x01", options=None)
    assert message.SerializeToString(options=None) == b"\x10\x01"
    for call in (
        lambda: message.ParseFromString(),
        lambda: message.ParseFromString(b"", None, None),
        lambda: message.ParseFromString(nope=b""),
        lambda: message.SerializeToString(None, None),
        lambda: message.ByteSize(1),
        lambda: message.Clear(1),
        lambda: message.HasField(),
        lambda: message.HasField("name", "name"),
        lambda: ours.TensorProto.FromString(),
        lambda: message.SerializeToFile(),
        lambda: message.SerializeToOstream(),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("name", ["RepeatedScalar", "RepeatedMessage"])
def test_list_types(ours: Api, name: str) -> None:
    cls = ours.cls(name)
    methods = "append extend insert pop remove clear reverse sort index count MergeFrom"
    for method in methods.split():
        assert inspect.getdoc(getattr(cls, method))
        assert inspect.signature(getattr(cls, method))
    assert hasattr(cls, "add") == (name == "RepeatedMessage")


def test_classes_cannot_be_extended_or_changed(ours: Api) -> None:
    with pytest.raises(TypeError):
        type("Sub", (ours.TensorProto,), {})
    with pytest.raises(TypeError):
        ours.Message()


# ---------------------------------------------------------------------------------------------
# The stub


# Patterns of names where the stub is right for type checkers and cannot be exact: a base that only
# the module extends, constructors that are __new__ at runtime, iteration by index, what nanobind
# adds.
STUB_DIFFERENCES = [
    r"Message",
    r".*\.__init__",
    r"Repeated\w+\.__iter__",
    r"FileLoadMode\.__nb_enum__",
    r"_MessageFile",
    r"_(load_external_data|commit_files)",
    r"(EnumTypeWrapper|\w+Options|SerializeSizeResult)",
]


def test_parameters_of_the_stub(ours: Api) -> None:
    """Methods written by hand: names, order, kinds and defaults of their parameters."""
    tree = ast.parse(generate_stub.stub(message_schema.load()))
    compared = 0
    for cls in tree.body:
        if not isinstance(cls, ast.ClassDef) or cls.name.startswith("_"):
            continue
        for function in cls.body:
            if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
                continue
            if [d for d in function.decorator_list if ast.unparse(d) != "classmethod"]:
                continue
            member = inspect.getattr_static(ours.cls(cls.name), function.name)
            if not callable(member) and not isinstance(member, classmethod):
                continue
            try:
                signature = inspect.signature(getattr(ours.cls(cls.name), function.name))
            except ValueError:  # nanobind's functions have a text of their own
                continue
            stub = function.args
            in_stub = [
                (a.arg, "positional") for a in stub.posonlyargs if a.arg not in ("self", "cls")
            ]
            in_stub += [(a.arg, "any") for a in stub.args if a.arg not in ("self", "cls")]
            in_stub += [(a.arg, "keyword") for a in stub.kwonlyargs]
            kinds = {0: "positional", 1: "any", 3: "keyword"}
            at_runtime = [
                (p.name, kinds[p.kind])
                for p in signature.parameters.values()
                if p.name != "self" and p.kind in kinds
            ]
            assert in_stub == at_runtime, f"{cls.name}.{function.name}"
            compared += 1
    assert compared > 100


@pytest.mark.long
def test_mypy_finds_that_stub_and_module_agree(ours: Api, tmp_path: Path) -> None:
    """mypy's stubtest, with the stub that the generator makes now."""
    module = ours.module.__name__
    folder = tmp_path.joinpath(*module.split(".")[:-1])
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.pyi").touch()
    generator = ROOT / "tools" / "generate_stub.py"
    stub = folder / "_onnxpyprotoop.pyi"
    subprocess.run([sys.executable, str(generator), "--output", str(stub)], check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text("\n".join(f"{module}.{name}" for name in STUB_DIFFERENCES))
    command = [sys.executable, "-m", "mypy.stubtest", module, "--concise"]
    command += ["--allowlist", str(allowed), "--ignore-disjoint-bases"]
    environment = {**os.environ, "MYPYPATH": str(tmp_path)}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-1000:]


def test_the_stub_of_the_package_is_the_generators(ours: Api, tmp_path: Path) -> None:
    installed = Path(ours.module.__file__).with_name("_onnxpyprotoop.pyi")
    stub = tmp_path / "new.pyi"
    generator = ROOT / "tools" / "generate_stub.py"
    subprocess.run([sys.executable, str(generator), "--output", str(stub)], check=True)
    text = stub.read_text(encoding="utf-8")
    assert installed.read_text(encoding="utf-8") == text
    names = {n.name for n in ast.parse(text).body if isinstance(n, ast.ClassDef)}
    assert names >= {n for n in class_names() if "." not in n}
