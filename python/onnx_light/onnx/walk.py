"""All messages in a message, with their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onnx_light.onnx_py._onnxpyprotoop import (
    AttributeProto,
    EncodedValueProto,
    Message,
    NodeProto,
    RepeatedMessage,
    TensorProto,
)


class Visited(NamedTuple):
    """One message and where it lies.

    Attributes:
        message: the message.
        parent: what it is a field of; None for the root.
        field: the name of that field.
        position: in a repeated field, else -1.
        in_attribute: whether it is the value of a node's attribute, or part of one. Subgraphs are
            not: they have nodes and initializers of their own.
    """

    message: Message
    parent: Visited | None = None
    field: str = ""
    position: int = -1
    in_attribute: bool = False

    @property
    def path(self) -> str:
        """As ``graph.node[3].attribute[0]``; empty for the root."""
        parts = []
        place = self
        while place.parent is not None:
            parts.append(place.field if place.position < 0 else f"{place.field}[{place.position}]")
            place = place.parent
        return ".".join(reversed(parts))


def visit_messages(root: Message) -> Iterator[Visited]:
    """`root` and the messages below it, each before those in it, in the order of the fields.

    Of a node only the attributes are visited.
    """
    todo = [Visited(root)]
    while todo:
        place = todo.pop()
        yield place
        todo += reversed(_children(place))


def _children(place: Visited) -> list[Visited]:
    message = place.message
    if isinstance(message, NodeProto):  # there are many, and all the rest is text
        return [
            Visited(item, place, "attribute", i, False) for i, item in enumerate(message.attribute)
        ]
    children: list[Visited] = []
    for name, value in message.ListFields():
        inside = place.in_attribute
        if isinstance(message, AttributeProto):
            inside = name not in ("g", "graphs")
        if isinstance(value, Message):
            children.append(Visited(value, place, name, -1, inside))
        elif isinstance(value, RepeatedMessage):
            children += [
                Visited(element, place, name, i, inside) for i, element in enumerate(value)
            ]
    return children


class Payload(NamedTuple):
    """A message with a payload, and where it lies."""

    message: TensorProto | EncodedValueProto
    place: Visited


def find_payloads(root: Message) -> Iterator[Payload]:
    """Every tensor and encoded value in `root`, itself included."""
    for place in visit_messages(root):
        if isinstance(place.message, TensorProto | EncodedValueProto):
            yield Payload(place.message, place)
