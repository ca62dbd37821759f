"""What a binding leads to, and what makes two bindings the same one.

in: destinations, routing keys and arguments of bindings. out: identities, and the memory that arguments take.

I1  Two bindings are the same one when source, destination, key and arguments are: binding twice changes nothing.
I2  The identity is hashable whatever a client put in the arguments, and tells the types apart (1, True, 1.0 and "1" differ).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Protocol

from flintmq.ports import freeze

QUEUE = "queue"
EXCHANGE = "exchange"

# names of source, kind of destination, destination; routing key; frozen arguments
BindingIdentity = tuple[str, str, str, bytes, Hashable]

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


# bytes of memory that a value costs besides its octets: the object, its place in a table, its twin in the identity and in an index
_FIELD_BYTES = 128


def field_bytes(value: object) -> int:
    """Bytes of memory that binding arguments (or a value in them) take, about. O(size); the depth is bounded by the codec."""
    if isinstance(value, Mapping):
        return _FIELD_BYTES + sum(2 * len(key) + field_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return _FIELD_BYTES + sum(map(field_bytes, value))
    return _FIELD_BYTES + (2 * len(value) if isinstance(value, str | bytes | bytearray) else 0)


def binding_identity(source: str, kind: str, destination: str, routing_key: bytes, arguments: Mapping[str, Any] | None) -> BindingIdentity:
    """The key under which a binding is found again. Args: source, destination: names; kind: of the destination."""
    return (source, kind, destination, routing_key, freeze(arguments) if arguments else None)


class Binding:
    """A binding of an exchange. Immutable; looked up by `identity`. What follows from its four facts is not kept: there may be many."""

    __slots__ = ("arguments", "destination", "routing_key", "source")

    def __init__(self, source: Any, destination: Destination, routing_key: bytes, arguments: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments or NO_ARGUMENTS

    @property
    def identity(self) -> BindingIdentity:
        """See binding_identity. O(arguments)."""
        destination = self.destination
        return binding_identity(self.source.name, destination.destination_kind, destination.name, self.routing_key, self.arguments)

    @property
    def arguments_bytes(self) -> int:
        """Bytes of memory that its arguments take. O(arguments)."""
        return field_bytes(self.arguments) if self.arguments else 0

    @property
    def durable(self) -> bool:
        """Survives a restart: both ends do."""
        return self.source.durable and self.destination.durable

    def __repr__(self) -> str:
        kind, name = self.destination.destination_kind, self.destination.name
        return f"Binding({self.source.name!r} -> {kind} {name!r}, {self.routing_key!r}, {dict(self.arguments)!r})"
