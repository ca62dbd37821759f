"""The ports of the store: what the broker asks of the message and transaction logs (Store) and of the definitions (Definitions).

in: nothing but the standard library. out: Protocols and the plain records that cross them. Every implementation of a port runs the same
contract tests. Definitions: SQL, and memory for `--memory` (store/definitions.py). Store: the logs; without a store (`--memory`) there is
none, and its twin in memory (tests/twins/memory_store.py) is for tests. Other ports stand where they are asked: clock.py (time),
transactions/ports.py (the store, as transactions see it), queue/kinds.py (lists of other kinds).

Common rules
P1  A name is always (vhost, name); a queue is spoken of by its id, which is global and never reused.
P2  A position orders the entries of one queue: level in the top 8 bits (0 is served first), index in the lower 56, 0 = none.
    It is assigned when the entry becomes visible and never reused.
P3  An LSN is a log sequence number: it only grows. LSN 0 means "nothing to wait for".
P4  A method that fails raises: StoreError (the disk failed: latched), PeerError (the client's mistake) or InvariantError (ours).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum, IntEnum
from typing import Any, Protocol, runtime_checkable

from flintmq.slotted import slotted

# Bits of a position under the level (queue/types.pxd).
POSITION_INDEX_BITS = 56

# AMQP field table as the codec gives it: str keys; bool, int, float, str, bytes, None, list, dict and a few tagged types.
Table = Mapping[str, Any]


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


# --- store --------------------------------------------------------------------------------------------------------------

# kinds of the store's notes about entries (docs/FORMAT.md, record 42): how often one came back; it is dead, and waits for its targets
NOTE_DELIVERIES = 16
NOTE_LETTERS = 17


class DequeueReason(IntEnum):
    """Why an entry left its queue. Values are those of queue/types.pxd and of the log."""

    ACK = 1
    REJECT = 2
    EXPIRE = 3
    DROP = 4
    PURGE = 5
    MOVE = 6


class TxState(Enum):
    """Life of a store transaction: OPEN -> PREPARED (only for distributed ones) -> COMMITTED or ROLLED_BACK."""

    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


# --- definitions --------------------------------------------------------------------------------------------------------


@slotted(frozen=True)
class VhostRecord:
    """A virtual host."""

    name: str
    description: str = ""


@slotted(frozen=True)
class UserRecord:
    """A user. `password_hash`: an argon2 PHC string; empty = cannot log in by password."""

    name: str
    password_hash: str = field(default="", repr=False)
    tags: tuple[str, ...] = ()


@slotted(frozen=True)
class PermissionRecord:
    """Regular expressions (operator input, searched in the name as RabbitMQ does) of one user in one vhost; "" = nothing."""

    user: str
    vhost: str
    configure: str = ""
    write: str = ""
    read: str = ""


@slotted(frozen=True)
class LimitsRecord:
    """What an operator lets a user or a virtual host have: RabbitMQ's name of the limit -> number, below 0: any. Empty: the defaults."""

    kind: str  # "user" or "vhost"
    name: str
    limits: Mapping[str, int] = field(default_factory=dict)


@slotted(frozen=True)
class ParameterRecord:
    """A runtime parameter, in RabbitMQ's terms: a value of a component, in a virtual host or ("") of the node. Policies are parameters,
    too.

    `value`: what JSON can say.
    """

    component: str
    vhost: str
    name: str
    value: Any = None


@slotted(frozen=True)
class ExchangeRecord:
    """A durable exchange."""

    vhost: str
    name: str
    kind: str
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = field(default_factory=dict)


@slotted(frozen=True)
class QueueRecord:
    """A durable queue. `queue_id` names its entries in the message log."""

    vhost: str
    name: str
    queue_id: int
    auto_delete: bool = False
    arguments: Table = field(default_factory=dict)


@slotted(frozen=True)
class BindingRecord:
    """A binding between two durable ends. `destination_kind`: "queue" or "exchange"."""

    vhost: str
    source: str
    destination_kind: str
    destination: str
    routing_key: bytes
    arguments: Table = field(default_factory=dict)


@runtime_checkable
class Definitions(Protocol):
    """What survives a restart besides messages: SQL in the real store.

    Threading: any thread. A `save_` replaces the record of the same identity; a `delete_` of something unknown is no error.
    Durability: a method returns when its change is durable (or raises StoreError and changed nothing).
    """

    def new_queue_id(self) -> int:
        """An id (> 0) that was never given out before, in this or an earlier run. For transient queues too: it must be cheap."""
        ...

    @property
    def queue_id_high_water(self) -> int:
        """No id above this was ever given out. Recovery refuses a log that names one above it."""
        ...

    def save_vhost(self, record: VhostRecord) -> None: ...
    def delete_vhost(self, name: str) -> None:
        """Deletes the vhost with all that is in it: permissions, limits, parameters, exchanges, queues, bindings."""
        ...

    def load_vhosts(self) -> Sequence[VhostRecord]:
        """By name. A new store holds the vhost "/"."""
        ...

    def save_user(self, record: UserRecord) -> None: ...
    def delete_user(self, name: str) -> None:
        """Deletes the user, its permissions and its limits."""
        ...

    def load_users(self) -> Sequence[UserRecord]: ...
    def save_permission(self, record: PermissionRecord) -> None: ...
    def delete_permission(self, user: str, vhost: str) -> None: ...
    def load_permissions(self) -> Sequence[PermissionRecord]: ...
    def save_limits(self, record: LimitsRecord) -> None:
        """Replaces all limits of the user or vhost; an empty record takes them away. They may be there before whom they are for."""
        ...

    def load_limits(self) -> Sequence[LimitsRecord]:
        """By kind and name."""
        ...

    def save_parameter(self, record: ParameterRecord) -> None: ...
    def delete_parameter(self, record: ParameterRecord) -> None: ...
    def load_parameters(self, component: str) -> Sequence[ParameterRecord]:
        """By vhost and name."""
        ...

    def save_exchange(self, record: ExchangeRecord) -> None: ...
    def delete_exchange(self, vhost: str, name: str) -> None:
        """Deletes the exchange and every binding from or to it, in one transaction."""
        ...

    def load_exchanges(self, vhost: str) -> Sequence[ExchangeRecord]: ...
    def save_queue(self, record: QueueRecord) -> None:
        """Raises: ValueError when another queue has the same id, or the id was not given out by `new_queue_id`."""
        ...

    def delete_queue(self, vhost: str, name: str) -> None:
        """Deletes the queue and every binding to it, in one transaction."""
        ...

    def load_queues(self, vhost: str) -> Sequence[QueueRecord]: ...
    def queue_rows(self, vhost: str) -> Iterator[tuple[str, int, bool, Table]]:
        """`load_queues` as (name, queue id, auto-delete, arguments), read in pieces and without records: a start has very many."""
        ...

    def save_binding(self, record: BindingRecord) -> None: ...
    def delete_binding(self, record: BindingRecord) -> None: ...
    def load_bindings(self, vhost: str) -> Sequence[BindingRecord]:
        """In the order they were made."""
        ...

    def binding_rows(self, vhost: str) -> Iterator[tuple[str, str, str, bytes, Table]]:
        """`load_bindings` as (source, kind of the destination, destination, routing key, arguments), as `queue_rows`."""
        ...


# --- access -------------------------------------------------------------------------------------------------------------


class Verb(Enum):
    """The three permissions of RabbitMQ; the value is the word of the 403 text."""

    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


@slotted(frozen=True)
class Resource:
    """What a verb is done to. `kind`: "queue" or "exchange"; the default exchange is named "amq.default" in texts."""

    kind: str
    name: str
