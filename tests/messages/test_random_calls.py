"""Random calls with random arguments: whatever they are, an error or a value, never a crash.

A pool of objects that calls gave and kept; every callable that a class shows, and every operator,
is tried on them. What is left at the end still writes, parses and compares.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import array, copy, io, operator, os, pickle, random, sys, threading, weakref
import numpy as np
from onnx_light.onnx_py import _onnxpyprotoop as X

seed, steps, threads = map(int, sys.argv[1:])
MESSAGES = [c for c in vars(X).values() if isinstance(c, type) and issubclass(c, X.Message)]
MESSAGES += [X.TypeProto.Tensor, X.TensorShapeProto.Dimension, X.StructTypeProto.Structure.Field]
MESSAGES.remove(X.Message)
OPTIONS = [X.ParseOptions, X.SerializeOptions, X.TensorBufferOptions, X.SerializeSizeResult]
FIELDS = sorted({p for c in MESSAGES for p in dir(c) if not p.startswith("_") and p.islower()})
SKIPPED = {  # what touches files and classes
    "__init_subclass__", "__class__", "__subclasshook__", "SerializeToFileDescriptor", "to_onnx",
    "ParseFromFile", "SerializeToFile", "from_onnx", "__dir__",
}


class Player:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.pool = [cls() for cls in MESSAGES]
        self.views = []

    def pick(self, values):
        return values[self.rng.randrange(len(values))]

    def keep(self, value):
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if type(each).__module__ == "onnx_light.onnx":
                if len(self.pool) < 150:
                    self.pool.append(each)
                else:
                    self.pool[self.rng.randrange(150)] = each
        if isinstance(value, (memoryview, np.ndarray)):
            self.views = self.views[-50:] + [value]

    def argument(self, depth=0):
        rng = self.rng
        kind = rng.randrange(16)
        if kind < 4:
            return self.pick(self.pool)
        if kind == 4:
            return self.pick(FIELDS)
        if kind == 5:
            return rng.choice([0, 1, -1, 2**31, 2**63, 2**64, -(2**63), True, None, 1.5, 3, 7])
        if kind == 6:
            return rng.randbytes(rng.choice([0, 1, 5, 40, 5000]))
        if kind == 7:
            return rng.choice(["", "name", "key", "x" * 60, "\\u20ac", "\\ud800", "a\\0b"])
        if kind == 8:
            message = self.pick(self.pool)
            return message.SerializeToString() if isinstance(message, X.Message) else message
        if kind == 9:
            return slice(*(rng.choice([None, 0, 1, -1, 3, -2, 99]) for _ in range(3)))
        if kind == 10:
            return rng.choice([
                np.arange(rng.randrange(20)), np.float32(2), np.ones((2, 2)), np.int64(3),
                array.array("i", [1, 2]), np.zeros(3, "f8"), memoryview(b"ab"), bytearray(9),
            ])
        if kind == 11:
            return rng.choice([io.BytesIO(), object(), MESSAGES, dict, iter([1, 2]), len])
        if kind == 12:
            try:
                return self.pick(OPTIONS)(**{
                    rng.choice(["num_threads", "no_copy", "skip_raw_data", "alignment"]):
                    rng.choice([0, 1, 2, -1, True, 5])
                })
            except (TypeError, ValueError):
                return None
        if kind == 13 and depth < 2:
            return {self.pick(FIELDS): self.argument(depth + 1) for _ in range(rng.randrange(3))}
        if kind == 14 and self.views:
            return self.pick(self.views)
        if depth < 2:
            return [self.argument(depth + 1) for _ in range(rng.randrange(4))]
        return self.pick(MESSAGES)

    def fitting(self, like):
        # Often something of the same class, so that calls go through.
        same = [value for value in self.pool if type(value) is type(like)]
        return self.pick(same) if same and self.rng.random() < 0.6 else self.argument()

    def step(self):
        rng = self.rng
        target = self.pick(self.pool)
        if rng.random() < 0.03:
            target = self.pick([type(target), self.pick(MESSAGES), X.TensorProto.DataType])
        if isinstance(target, X.Message) and rng.random() < 0.4:
            field = self.pick([f for f in FIELDS if hasattr(type(target), f)] or FIELDS)
            if rng.random() < 0.5:
                self.keep(getattr(target, field))
            else:
                setattr(target, field, self.fitting(getattr(target, field)))
            return
        choice = rng.random()
        if choice < 0.7:
            name = self.pick([n for n in dir(target) if n not in SKIPPED])
            value = getattr(target, name)
            if callable(value):
                names = {self.pick(FIELDS): self.argument() for _ in range(rng.random() < 0.1)}
                like = target
                if isinstance(target, X.RepeatedMessage) and len(target):
                    like = target[0]
                arguments = [self.fitting(like) for _ in range(rng.choice([0, 0, 1, 1, 1, 2, 3]))]
                value = value(*arguments, **names)
            self.keep(value)
        elif choice < 0.8:
            self.keep(self.pick([operator.getitem, operator.delitem, operator.contains])(
                target, self.argument()))
        elif choice < 0.85:
            operator.setitem(target, self.argument(), self.argument())
        elif choice < 0.95:
            self.keep(self.pick([
                copy.copy, copy.deepcopy, str, len, list, bool, weakref.ref, hash, pickle.dumps,
                np.asarray, memoryview, iter,
            ])(target))
        else:
            self.pool.pop(rng.randrange(len(self.pool)))
            self.pool.append(self.pick(MESSAGES)())

    def play(self):
        for number in range(steps):
            if all(m.ByteSize() < 200_000 for m in self.pool[-20:] if isinstance(m, X.Message)):
                pass
            else:
                self.pool = [cls() for cls in MESSAGES]
            try:
                self.step()
            except (TypeError, ValueError, AttributeError, LookupError, OverflowError, BufferError,
                    pickle.PicklingError, UnicodeError, ImportError) as error:
                str(error)
            except StopIteration:
                pass
        for value in self.pool:
            if isinstance(value, X.Message):
                self.check(value)
        for view in self.views:
            bytes(view)

    def check(self, message):
        data = message.SerializeToString()
        assert message.ByteSize() == len(data)
        again = type(message).FromString(data)
        assert again.SerializeToString() == data
        assert str(again) == str(message)


players = [Player(seed * 100 + i) for i in range(threads)]
failures = []
def run(player):
    try:
        player.play()
    except BaseException as error:
        import traceback
        failures.append(traceback.format_exc())
if threads == 1:
    run(players[0])
else:
    sys.setswitchinterval(1e-5)
    running = [threading.Thread(target=run, args=(p,)) for p in players]
    for thread in running: thread.start()
    for thread in running: thread.join()
players.clear()
assert not failures, failures[0]
"""


def play(seed: int, steps: int, threads: int) -> None:
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", CODE]
    command += [str(seed), str(steps), str(threads)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, (seed, result.stderr[-3000:])


@pytest.mark.parametrize("seed", range(4))
def test_random_calls(seed: int) -> None:
    play(seed, 4000, 1)


def test_random_calls_on_threads() -> None:
    play(9, 2000, 4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 112))
def test_many_random_calls(seed: int) -> None:
    play(seed, 30_000, 1)
