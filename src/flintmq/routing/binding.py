"""One binding: a source exchange, a destination, a routing key and arguments.

in: exchange and queue verbs of the virtual host. out: what exchanges index and the routing walk visits.

I1  Two bindings are the same one when source, destination, key and arguments are: binding twice changes nothing.
I2  The identity is hashable whatever a client put in the arguments, and tells the types apart (1, True, 1.0 and "1" differ).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from flintmq.routing.exchange import Exchange

QUEUE = "queue"
EXCHANGE = "exchange"

NO_ARGUMENTS: Mapping[str, Any] = {}


class Destination(Protocol):
    """What a binding leads to. Hashable by identity."""

    @property
    def destination_kind(self) -> str:
        """QUEUE or EXCHANGE."""
        ...

    @property
    def name(self) -> str: ...
    @property
    def durable(self) -> bool: ...


def type_class(value: object) -> str:
    """The class of a field value in which RabbitMQ compares values: integers of all widths are one, and so are both floats."""
    if isinstance(value, bool):
        return "bool"
    if type(value) is int:
        return "int"
    if isinstance(value, float):
        return "float"
    if value is None:
        return "void"
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, bytes | bytearray | memoryview):
        return "binary"
    if isinstance(value, Mapping):
        return "table"
    if isinstance(value, list | tuple):
        return "array"
    return type(value).__name__.lower()  # Timestamp (an int of its own kind), Decimal


def freeze(value: object) -> Hashable:
    """A hashable stand-in for a field value: equal for equal values of one type class only. Depth is bounded by the codec."""
    kind = type_class(value)
    if isinstance(value, Mapping):
        return (kind, tuple(sorted((key, freeze(item)) for key, item in value.items())))
    if isinstance(value, list | tuple):
        return (kind, tuple(freeze(item) for item in value))
    if isinstance(value, bytearray | memoryview):
        return (kind, bytes(value))
    return (kind, str(value)) if kind == "float" else (kind, value)  # NaN must equal itself here


def same_value(left: object, right: object) -> bool:
    """Equality of two field values as RabbitMQ compares them: same type class and same value."""
    return type_class(left) == type_class(right) and left == right


class Binding:
    """A binding. Immutable; equal by identity, looked up by `identity`."""

    __slots__ = ("arguments", "destination", "identity", "routing_key", "source")

    def __init__(self, source: Exchange, destination: Destination, routing_key: bytes, arguments: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments or NO_ARGUMENTS
        self.identity = binding_identity(source, destination, routing_key, arguments)

    @property
    def durable(self) -> bool:
        """Survives a restart: both ends do."""
        return self.source.durable and self.destination.durable

    def __repr__(self) -> str:
        kind, name = self.destination.destination_kind, self.destination.name
        return f"Binding({self.source.name!r} -> {kind} {name!r}, {self.routing_key!r}, {dict(self.arguments)!r})"


def binding_identity(
    source: Exchange, destination: Destination, routing_key: bytes, arguments: Mapping[str, Any] | None
) -> tuple[Hashable, ...]:
    """The key under which a binding is found again."""
    return (source.name, destination.destination_kind, destination.name, routing_key, freeze(arguments) if arguments else None)
