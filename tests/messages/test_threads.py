"""Messages and threads: apart, shared for reading, and under a switch interval that hurts."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from message_apis import Api, random_message

THREADS = 8


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def on_all(work: Callable[[int], Any]) -> list[Any]:
    """Runs `work(i)` on 8 threads that start together."""
    barrier = threading.Barrier(THREADS)

    def start(i: int) -> Any:
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


def big_graph(protobuf: Api, seed: int) -> Any:
    """Over the size from which parsing and copying let other threads run."""
    rng = random.Random(seed)
    graph = protobuf.GraphProto(name=str(seed))
    for i in range(20):
        graph.node.append(random_message("NodeProto", rng, 1))
        graph.initializer.add(name=str(i), raw_data=rng.randbytes(20_000))
    return graph


def test_separate_messages(protobuf: Api, ours: Api) -> None:
    inputs = [big_graph(protobuf, i).SerializeToString() for i in range(THREADS)]

    def work(i: int) -> None:
        message = ours.GraphProto()
        for _ in range(30):
            message.ParseFromString(inputs[i])
            assert message.SerializeToString() == inputs[i]
            copied = ours.GraphProto(message)
            copied.node.add(name="more")
            assert copied != message

    on_all(work)


def test_one_message_read_by_all(protobuf: Api, ours: Api) -> None:
    theirs = big_graph(protobuf, 1)
    data = theirs.SerializeToString()
    names = [t.name for t in theirs.initializer]
    for no_copy in (False, True):
        message = ours.GraphProto()
        message.ParseFromString(data, ours.ParseOptions(no_copy=no_copy))

        def work(i: int, message: Any = message) -> None:
            for _ in range(15):
                assert message.SerializeToString() == data
                assert [t.name for t in message.initializer] == names
                assert message.ByteSize() == len(data)
                assert bytes(message.initializer[i].payload("raw_data"))
                assert message == ours.GraphProto(message)
                assert ours.GraphProto.FromString(data) == message

        on_all(work)


def test_one_input_parsed_by_all(protobuf: Api, ours: Api) -> None:
    data = big_graph(protobuf, 2).SerializeToString()
    shared = memoryview(bytearray(data))

    def work(i: int) -> Any:
        message = ours.GraphProto()
        options = ours.ParseOptions(no_copy=i % 2 == 0, num_threads=1 + i % 3)
        for _ in range(20):
            message.ParseFromString(data if i % 4 < 2 else shared, options)
        return message

    messages = on_all(work)
    assert all(m == messages[0] for m in messages)
    assert messages[0].SerializeToString() == data


def test_files(protobuf: Api, ours: Api, tmp_path: Path) -> None:
    data = big_graph(protobuf, 3).SerializeToString()
    message = ours.GraphProto.FromString(data)

    def work(i: int) -> None:
        read = ours.GraphProto()
        for k in range(5):
            path = tmp_path / f"{i}.{k}"
            message.SerializeToFile(path)
            read.ParseFromFile(path, ours.ParseOptions(no_copy=True))
            assert read == message
            message.SerializeToFile(tmp_path / "shared")  # whoever is last wins
            read.ParseFromFile(tmp_path / "shared")
            assert read == message

    on_all(work)


def test_stubs_of_one_message(ours: Api) -> None:
    """Reading unset fields makes and drops handles, which all threads see."""
    message = ours.ModelProto()

    def work(i: int) -> None:
        for _ in range(2000):
            assert message.graph.name == ""
            assert len(message.graph.node) == 0
            assert message.graph.quantization_annotation is not None
            held = message.graph
            assert held is message.graph

    on_all(work)
    assert message.SerializeToString() == b""


def test_writers_and_readers_of_one_message(ours: Api) -> None:
    """No order is promised, but nothing breaks: each call happens at once."""
    message = ours.GraphProto()
    payload = b"p" * 100_000

    def work(i: int) -> None:
        for k in range(200):
            if i == 0:
                message.initializer.add(name=str(k), raw_data=payload)
            elif i == 1 and len(message.initializer) > 3:
                del message.initializer[:2]
            elif i == 2:
                message.name = str(k) * (k % 50)
            elif i == 3 and k % 20 == 0:
                message.ParseFromString(message.SerializeToString())
            elif i == 4:
                for tensor in message.initializer:
                    assert tensor.raw_data in (b"", payload)
            else:
                again = ours.GraphProto.FromString(message.SerializeToString())
                assert all(t.raw_data == payload for t in again.initializer)

    on_all(work)
    for tensor in message.initializer:
        assert tensor.raw_data == payload
