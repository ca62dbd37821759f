"""One binding: a source exchange, a destination, a routing key and arguments.

in: exchange and queue verbs of the virtual host. out: what exchanges index and the routing walk visits.

I1  Two bindings are the same one when source, destination, key and arguments are: binding twice changes nothing.
I2  The identity is hashable whatever a client put in the arguments, and tells the types apart (1, True, 1.0 and "1" differ).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from flintmq.ports import freeze

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
