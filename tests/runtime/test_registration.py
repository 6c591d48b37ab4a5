"""RegisterCustomOps with an ONNX Runtime that is too old, or not what it seems."""

import ctypes
from typing import Any

from onnx_light.runtime import get_library_path

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
