"""RegisterCustomOps with an ONNX Runtime that is too old, or not what it seems."""

import ctypes
import sys
import types
from collections.abc import Iterator
from typing import Any

import onnxruntime
import pytest
from structured_models import decoder

from onnx_light.errors import CodedError
from onnx_light.runtime import InferenceSession, get_library_path, ort

CREATE_STATUS = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
GET_CODE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
GET_MESSAGE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
GET_API = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
GET_VERSION = ctypes.CFUNCTYPE(ctypes.c_void_p)


class ApiBase(ctypes.Structure):
    _fields_ = [("get_api", GET_API), ("get_version", GET_VERSION)]


def register(newest: int, status_code: int) -> list[str]:
    """The messages of the statuses that registering makes, with tables up to a version."""
    messages: list[str] = []
    texts: list[Any] = []

    def create_status(_code: int, message: bytes) -> int:
        messages.append(message.decode())
        texts.append(ctypes.create_string_buffer(message))
        return len(messages)

    functions: list[Any] = [
        CREATE_STATUS(create_status),
        GET_CODE(lambda _status: status_code),
        GET_MESSAGE(lambda status: ctypes.addressof(texts[status - 1])),
    ]
    table = (ctypes.c_void_p * 300)()
    for slot, function in enumerate(functions):
        table[slot] = ctypes.cast(function, ctypes.c_void_p).value

    def get_api(version: int) -> int | None:
        return ctypes.addressof(table) if version <= newest else None

    version = ctypes.create_string_buffer(b"1.2.3")
    base = ApiBase(GET_API(get_api), GET_VERSION(lambda: ctypes.addressof(version)))
    library = ctypes.CDLL(get_library_path())
    library.RegisterCustomOps.restype = ctypes.c_void_p
    assert library.RegisterCustomOps(None, ctypes.byref(base)) == len(messages)
    return messages


def test_an_old_version_is_named() -> None:
    (message,) = register(newest=16, status_code=0)
    assert message.startswith("[runtime.version]")
    assert "1.2.3" in message
    assert "1.17" in message


def test_another_interface_is_found_out() -> None:
    messages = register(newest=17, status_code=99)
    assert messages[-1].startswith("[runtime.version]")
    assert "1.2.3" in messages[-1]
    assert "statuses do not work" in messages[-1]


@pytest.fixture
def fresh_module() -> Iterator[None]:
    """The module is looked for again, before and after."""
    ort.onnxruntime.cache_clear()
    yield
    ort.onnxruntime.cache_clear()


@pytest.mark.parametrize("version", ["1.22.1", "1.9.0", "0.5"])
@pytest.mark.usefixtures("fresh_module")
def test_a_package_that_is_too_old(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = types.SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "onnxruntime", old)
    with pytest.raises(CodedError, match=r"1\.23 or later is needed") as caught:
        InferenceSession(decoder())
    assert (caught.value.code, caught.value.path) == ("runtime.version", "onnxruntime")
    assert version in str(caught.value)


@pytest.mark.parametrize("version", ["1.23.0", "1.100.0.dev20300101", "2.0"])
@pytest.mark.usefixtures("fresh_module")
def test_packages_that_are_new_enough(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", version)
    assert ort.onnxruntime() is onnxruntime
