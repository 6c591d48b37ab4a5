"""Random sequences of everything that changes messages, on protobuf's and ours side by side.

The machine holds pairs of handles: protobuf's and ours for the same place, attached or detached. A
rule does the same to both sides of a pair; afterwards all pairs must have equal bytes, and what is
one object on one side must be one object on the other.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from message_apis import onnx_light_api, protobuf_api, tag, varint

CLASSES = ["PagedCacheProto", "PagedCacheBlockProto", "TypeProto", "StructTypeProto", "NodeProto"]
MAX_BYTES = 25_000
MAX_PAIRS = 14
NUMBERS = st.integers(0, 10_000)
VALUES: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_INT32: [0, -1, 2**31 - 1],
    FieldDescriptor.TYPE_INT64: [0, 5, -(2**63)],
    FieldDescriptor.TYPE_UINT32: [0, 7, 2**32 - 1],
    FieldDescriptor.TYPE_UINT64: [0, 300, 2**64 - 1],
    FieldDescriptor.TYPE_FLOAT: [0.0, -0.0, 1.5],
    FieldDescriptor.TYPE_DOUBLE: [0.0, 0.1],
    FieldDescriptor.TYPE_BOOL: [False, True],
    # The last of each are held in buffers that messages share.
    FieldDescriptor.TYPE_STRING: ["", "é", "text that is too long to be short", "t" * 4096],
    FieldDescriptor.TYPE_BYTES: [b"", b"\0\xff", b"x" * 70, b"y" * 4095, b"z" * 4096],
}


def value_of(field: FieldDescriptor, choice: int) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        values = field.enum_type.values
        return values[choice % len(values)].number
    values = VALUES[field.type]
    return values[choice % len(values)]


class Pair:
    """Handles of one message; lists are reached through the message that they were read from."""

    def __init__(self, descriptor: Any, theirs: Any, mine: Any) -> None:
        self.descriptor, self.theirs, self.mine = descriptor, theirs, mine

    def fields(self, repeated: bool, message: bool) -> list[Any]:
        return [
            f
            for f in self.descriptor.fields
            if f.is_repeated == repeated and (f.message_type is not None) == message
        ]

    def both(self, action: Callable[[Any], Any]) -> tuple[Any, Any]:
        return action(self.theirs), action(self.mine)


def fields_of(message: Any) -> list[tuple[str, Any]]:
    """Names and values of what is set, the same for both sides."""
    return [
        (name if isinstance(name, str) else name.name, value)
        for name, value in message.ListFields()
    ]


def borrowing() -> Any:
    return onnx_light_api().ParseOptions(no_copy=True)


def forget_all(message: Any) -> None:
    """What protobuf's Clear should do: of several stubs it leaves some attached."""
    for field in message.DESCRIPTOR.fields:
        message.ClearField(field.name)
    message.Clear()


class ListPair:
    def __init__(self, field: FieldDescriptor, theirs: Any, mine: Any) -> None:
        self.field, self.theirs, self.mine = field, theirs, mine

    def both(self, action: Callable[[Any], Any]) -> tuple[Any, Any]:
        return action(self.theirs), action(self.mine)


class SideBySide(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[Pair] = []
        self.lists: list[ListPair] = []
        self.views: list[tuple[Any, bytes]] = []

    # -- choosing

    def pair(self, choice: int) -> Pair:
        return self.pairs[choice % len(self.pairs)]

    def hold(self, descriptor: Any, theirs: Any, mine: Any) -> None:
        """Adds a pair, unless it is held: then on both sides."""
        for held in self.pairs:
            assert (held.theirs is theirs) == (held.mine is mine)
            if held.mine is mine:
                return
        if len(self.pairs) >= MAX_PAIRS:
            self.pairs.pop(0)
        self.pairs.append(Pair(descriptor, theirs, mine))

    def small(self) -> bool:
        return all(p.mine.ByteSize() < MAX_BYTES for p in self.pairs)

    @rule(choice=NUMBERS)
    def new(self, choice: int) -> None:
        name = CLASSES[choice % len(CLASSES)]
        cls = protobuf_api().cls(name)
        self.hold(cls.DESCRIPTOR, cls(), onnx_light_api().cls(name)())

    @precondition(lambda self: self.pairs)
    @rule(which=NUMBERS, choice=NUMBERS)
    def hold_a_field(self, which: int, choice: int) -> None:
        pair = self.pair(which)
        fields = pair.fields(repeated=False, message=True)
        if fields:
            field = fields[choice % len(fields)]
            theirs, mine = pair.both(lambda m: getattr(m, field.name))
            self.hold(field.message_type, theirs, mine)

    @precondition(lambda self: self.pairs)
    @rule(which=NUMBERS, choice=NUMBERS)
    def hold_a_list(self, which: int, choice: int) -> None:
        pair = self.pair(which)
        fields = pair.fields(True, True) + pair.fields(True, False)
        if fields:
            field = fields[choice % len(fields)]
            theirs, mine = pair.both(lambda m: getattr(m, field.name))
            for held in self.lists:
                assert (held.theirs is theirs) == (held.mine is mine)
            self.lists = [*self.lists[-5:], ListPair(field, theirs, mine)]

    @precondition(lambda self: self.lists)
    @rule(which=NUMBERS, choice=NUMBERS)
    def hold_an_element(self, which: int, choice: int) -> None:
        each = self.lists[which % len(self.lists)]
        if each.field.message_type is not None and len(each.mine) > 0:
            index = choice % len(each.mine)
            self.hold(each.field.message_type, *each.both(lambda c: c[index]))

    @precondition(lambda self: len(self.pairs) > 3)
    @rule(which=NUMBERS)
    def let_go(self, which: int) -> None:
        self.pairs.pop(which % len(self.pairs))

    # -- changing messages

    @precondition(lambda self: self.pairs)
    @rule(which=NUMBERS, choice=NUMBERS, value=NUMBERS)
    def set_a_scalar(self, which: int, choice: int, value: int) -> None:
        pair = self.pair(which)
        fields = pair.fields(repeated=False, message=False)
        if fields:
            field = fields[choice % len(fields)]
            pair.both(lambda m: setattr(m, field.name, value_of(field, value)))

    @precondition(lambda self: self.pairs)
    @rule(which=NUMBERS, choice=NUMBERS)
    def set_a_wrong_value(self, which: int, choice: int) -> None:
        """It is refused, and sets neither the field nor a parent; protobuf's sets parents."""
        pair = self.pair(which)
        field = pair.descriptor.fields[choice % len(pair.descriptor.fields)]
        with pytest.raises((TypeError, ValueError, AttributeError)):
            setattr(pair.mine, field.name, object())

    @precondition(lambda self: self.pairs and self.small())
    @rule(which=NUMBERS, choice=NUMBERS, other=NUMBERS)
    def assign_a_message(self, which: int, choice: int, other: int) -> None:
        """protobuf has no such assignment: there it is a copy into what the field holds."""
        pair = self.pair(which)
        fields = pair.fields(repeated=False, message=True)
        if not fields:
            return
        field = fields[choice % len(fields)]
        sources = [p for p in self.pairs if p.descriptor is field.message_type]
        if sources:
            source = sources[other % len(sources)]
            copied = type(source.theirs).FromString(source.theirs.SerializeToString())
            target = getattr(pair.theirs, field.name)
            target.SetInParent()
            target.CopyFrom(target if target is source.theirs else copied)
            setattr(pair.mine, field.name, source.mine)

    @precondition(lambda self: self.pairs)
    @rule(which=NUMBERS, choice=NUMBERS)
    def view_a_payload(self, which: int, choice: int) -> None:
        pair = self.pair(which)
        fields = pair.fields(repeated=False, message=False)
        fields = [f for f in fields if f.type == FieldDescriptor.TYPE_BYTES]
        if fields:
            name = fields[choice % len(fields)].name
            self.views = [*self.views[-5:], (pair.mine.payload(name), getattr(pair.theirs, name))]

    @precondition(lambda self: self.pairs)
    @rule(which=NUMBERS)
    def set_in_parent(self, which: int) -> None:
        self.pair(which).both(lambda m: m.SetInParent())

    @precondition(lambda self: self.pairs)
    @rule(which=NUMBERS)
    def clear(self, which: int) -> None:
        pair = self.pair(which)
        forget_all(pair.theirs)
        pair.mine.Clear()

    @precondition(lambda self: self.pairs)
    @rule(which=NUMBERS, choice=NUMBERS)
    def clear_a_field(self, which: int, choice: int) -> None:
        pair = self.pair(which)
        set_oneofs = [o for o in pair.descriptor.oneofs if pair.mine.WhichOneof(o.name)]
        # Not the other members of a set oneof: with a stub of one, protobuf clears the set one.
        names = [o.name for o in set_oneofs]
        names += [
            f.name
            for f in pair.descriptor.fields
            if f.containing_oneof not in set_oneofs or pair.mine.HasField(f.name)
        ]
        pair.both(lambda m: m.ClearField(names[choice % len(names)]))

    @precondition(lambda self: self.pairs and self.small())
    @rule(which=NUMBERS, other=NUMBERS, how=NUMBERS)
    def take_over(self, which: int, other: int, how: int) -> None:
        """Copies, merges or parses another message of the class, related or not."""
        target = self.pair(which)
        sources = [p for p in self.pairs if p.descriptor is target.descriptor]
        source = sources[other % len(sources)]
        data = source.mine.SerializeToString()
        assert source.theirs.SerializeToString() == data
        method = ("CopyFrom", "MergeFrom", "ParseFromString", "MergeFromString")[how % 4]
        if method == "ParseFromString":
            forget_all(target.theirs)
        if method in ("ParseFromString", "MergeFromString"):
            arguments = [borrowing()] if method == "ParseFromString" and how % 8 > 3 else []
            getattr(target.theirs, method)(data)
            getattr(target.mine, method)(data, *arguments)
            return
        if source is target and method == "CopyFrom":
            target.both(lambda m: m.CopyFrom(m))
            return
        # protobuf crashes when the two are related: it gets a copy.
        getattr(target.theirs, method)(type(source.theirs).FromString(data))
        getattr(target.mine, method)(source.mine)

    @precondition(lambda self: self.pairs and self.small())
    @rule(which=NUMBERS, number=st.sampled_from([450, 451, 1099]), value=NUMBERS)
    def unknown_fields(self, which: int, number: int, value: int) -> None:
        """They come by parsing, and stay behind the known ones."""
        pair = self.pair(which)
        if value % 4 == 0:
            pair.both(lambda m: m.DiscardUnknownFields())
        else:
            data = tag(number, 0) + varint(value)
            pair.both(lambda m: m.MergeFromString(data))

    @precondition(lambda self: self.pairs and self.small())
    @rule(which=NUMBERS, how=NUMBERS)
    def make_another(self, which: int, how: int) -> None:
        """A message made from this one, with nothing in common any more."""
        pair = self.pair(which)
        if how % 4 == 0:
            made = pair.both(lambda m: type(m)(**dict(fields_of(m))))  # unknown fields are lost
        else:
            copies = [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
            made = copy.deepcopy(pair.theirs), copies[how % 4 - 1](pair.mine)
        self.hold(pair.descriptor, *made)

    # -- changing lists

    @precondition(lambda self: self.lists and self.small())
    @rule(which=NUMBERS, choice=NUMBERS, value=NUMBERS, how=NUMBERS)
    def add_elements(self, which: int, choice: int, value: int, how: int) -> None:
        each = self.lists[which % len(self.lists)]
        index = choice % (len(each.mine) + 2) - 1
        if each.field.message_type is None:
            values = [value_of(each.field, value + i) for i in range(choice % 4)]
            actions: list[Callable[[Any], Any]] = [
                lambda c: c.extend(values),
                lambda c: c.append(value_of(each.field, value)),
                lambda c: c.insert(index, value_of(each.field, value)),
                lambda c: c.__setitem__(slice(index, None), values),
            ]
            each.both(actions[how % 4])
            return
        sources = [p for p in self.pairs if p.descriptor is each.field.message_type]
        if how % 3 == 0 or not sources:
            self.hold(each.field.message_type, *each.both(lambda c: c.add()))
            return
        source = sources[value % len(sources)]
        copy = type(source.theirs).FromString(source.theirs.SerializeToString())
        if how % 3 == 1:
            each.theirs.append(copy)
            each.mine.append(source.mine)
        else:
            each.theirs.insert(index, copy)
            each.mine.insert(index, source.mine)

    @precondition(lambda self: self.lists and self.small())
    @rule(which=NUMBERS, choice=NUMBERS, value=NUMBERS, other=NUMBERS)
    def change_elements(self, which: int, choice: int, value: int, other: int) -> None:
        """Sets or removes one element, or takes over the elements of another list."""
        each = self.lists[which % len(self.lists)]
        sources = [s for s in self.lists if s.field is each.field]
        source = sources[other % len(sources)]
        size = len(each.mine)
        if choice % 3 != 1:
            # protobuf crashes where one list lies within the other: it gets copies.
            each.theirs.extend([copy.deepcopy(element) for element in source.theirs])
            getattr(each.mine, "extend" if choice % 3 == 0 else "MergeFrom")(source.mine)
        elif size:
            index = choice % size - (size if value % 2 else 0)
            if each.field.message_type is None:
                each.both(lambda c: c.__setitem__(index, value_of(each.field, value)))
            else:
                each.both(lambda c: c.remove(c[index]))

    @precondition(lambda self: self.lists)
    @rule(which=NUMBERS, start=NUMBERS, stop=NUMBERS, step=st.sampled_from([-3, -1, 1, 2]))
    def read_a_slice(self, which: int, start: int, stop: int, step: int) -> None:
        each = self.lists[which % len(self.lists)]
        span = len(each.mine) + 3
        where = slice(start % (2 * span) - span, stop % (2 * span) - span, step)
        theirs, mine = each.both(lambda c: c[where])
        assert len(theirs) == len(mine)
        if each.field.message_type is None:
            assert list(theirs) == list(mine)
        else:
            for pair in zip(theirs, mine, strict=True):
                self.hold(each.field.message_type, *pair)

    @precondition(lambda self: self.lists)
    @rule(which=NUMBERS, start=NUMBERS, stop=NUMBERS, step=st.sampled_from([1, 1, 2, -1]))
    def delete_elements(self, which: int, start: int, stop: int, step: int) -> None:
        each = self.lists[which % len(self.lists)]
        size = len(each.mine)
        if size == 0:
            each.both(lambda c: c.__delitem__(slice(None)))
        elif start % 3 == 0:
            each.both(lambda c: c.__delitem__(start % size))
        elif start % 3 == 1:
            popped = each.both(lambda c: c.pop(start % size))
            if each.field.message_type is not None:
                self.hold(each.field.message_type, *popped)
        else:
            where = slice(start % size, stop % (size + 1), step)
            if range(size)[where] or step == 1:  # protobuf deletes something, or crashes
                each.both(lambda c: c.__delitem__(where))

    @precondition(lambda self: self.lists)
    @rule(which=NUMBERS, how=NUMBERS)
    def rearrange(self, which: int, how: int) -> None:
        each = self.lists[which % len(self.lists)]
        actions: list[Callable[[Any], Any]] = [
            lambda c: c.reverse(),
            lambda c: c.sort(key=str),
            lambda c: c.sort(key=repr, reverse=True),
            lambda c: c.clear(),
        ]
        each.both(actions[how % 4])

    # -- comparing

    @invariant()
    def equal_bytes(self) -> None:
        for pair in self.pairs:
            theirs, mine = pair.both(lambda m: m.SerializeToString())
            assert theirs == mine
            assert pair.mine.ByteSize() == len(mine)
        for each in self.lists:
            assert len(each.theirs) == len(each.mine)
            if each.field.message_type is None:
                assert list(each.theirs) == list(each.mine)

    @invariant()
    def views_stay(self) -> None:
        for view, content in self.views:
            assert bytes(view) == content

    @invariant()
    def equal_texts_and_comparisons(self) -> None:
        if not self.pairs:
            return
        last = self.pairs[-1]
        assert str(last.mine) == str(last.theirs)
        for pair in self.pairs[:-1]:
            if pair.descriptor is last.descriptor:
                assert (pair.theirs == last.theirs) == (pair.mine == last.mine)
        for field in last.descriptor.fields:
            if not field.is_repeated:
                theirs, mine = last.both(lambda m, f=field: m.HasField(f.name))
                assert theirs == mine
        for oneof in last.descriptor.oneofs:
            theirs, mine = last.both(lambda m, o=oneof: m.WhichOneof(o.name))
            assert theirs == mine


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        stateful_step_count=50,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


class LongSideBySide(SideBySide):
    """The same, with more examples."""


SideBySide.TestCase.settings = examples(150)
LongSideBySide.TestCase.settings = examples(1500)
test_side_by_side = SideBySide.TestCase
test_side_by_side_for_long = pytest.mark.long(LongSideBySide.TestCase)
