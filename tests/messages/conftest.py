"""Both implementations of the message classes, protobuf's and ours, behind one interface."""

from __future__ import annotations

import pytest
from message_apis import Api, onnx_light_api, protobuf_api


@pytest.fixture(scope="session")
def protobuf() -> Api:
    return protobuf_api()


@pytest.fixture(scope="session")
def ours() -> Api:
    return onnx_light_api()


@pytest.fixture(scope="session", params=["protobuf", "onnx_light"])
def api(request: pytest.FixtureRequest) -> Api:
    """Each in turn: what a test says must be true of protobuf and of us."""
    return protobuf_api() if request.param == "protobuf" else onnx_light_api()
