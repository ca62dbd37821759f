"""Keys of shared queues in an engine, and the small rows behind them. docs/SHARED.md has the table.

in: names, ids, orders. out: keys whose order is the order of what they stand for.

K1  No key of one thing is a prefix of a key of another kind: each kind has its own letter, names are escaped and ended.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

ROOT = b"flintmq\x01"
# bytes of the id of a queue's life, and of a node's
ID_BYTES = 8

FLAG_REDELIVERED = 1
FLAG_CHUNKED = 2

_META = struct.Struct(">BBHqI")  # format, flags, deliveries, expires_at_ms, content bytes
_COUNTS = struct.Struct(">6Q")
META_FORMAT = 1


def text(name: str) -> bytes:
    """A name as a part of a key: ended, and no name is the beginning of another."""
    return name.encode("utf-8", "surrogateescape").replace(b"\0", b"\0\xff") + b"\0\0"


def after(prefix: bytes) -> bytes:
    """The first key behind all that begin with the prefix."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


DEFINITIONS = ROOT + b"n"


def definition(vhost: str, name: str) -> bytes:
    """-> id of the queue's present life."""
    return DEFINITIONS + text(vhost) + text(name)


def defined(key: bytes) -> tuple[str, str]:
    """(virtual host, name) of a `definition` key. Raises: ValueError: it is none."""
    if not key.startswith(DEFINITIONS) or not key.endswith(b"\0\0"):
        raise ValueError(f"no definition of a shared queue: {key!r}")
    parts: list[bytes] = []
    begin = offset = len(DEFINITIONS)
    while offset < len(key):
        offset = key.index(b"\0", offset)
        if key[offset + 1 : offset + 2] == b"\0":
            parts.append(key[begin:offset].replace(b"\0\xff", b"\0"))
            begin = offset + 2
        offset += 2
    vhost, name = parts
    return vhost.decode("utf-8", "surrogateescape"), name.decode("utf-8", "surrogateescape")


SIGNALS = ROOT + b"s"
# another value with each change of definitions; it stands with the signals, as an engine follows those
CHANGED = SIGNALS + b"definitions"
# + id of a life + hash: a binding that leads to the queue; without a hash: bindings of this queue are here
BINDINGS = ROOT + b"f"
# + id of a life: the queue was deleted, and rows of it are there still
DOOMED = ROOT + b"g"
OWNERS = ROOT + b"o"
# + name of a node -> what it says of itself (members.py); + name of a node -> the life that is to be drained
MEMBERS = ROOT + b"m"
ORDERS = ROOT + b"k"
# bytes of the id of a subscription; + id + "s": what it is, "b": its reader's last sign of life, "p" + number of a set + number: a part
SUBSCRIPTION_BYTES = 16
SUBSCRIPTIONS = ROOT + b"t"
# + virtual host, name -> id and user of a subscription; a token that changes with each new one; + id: deleted, and its set goes back
SUBSCRIPTION_NAMES = ROOT + b"i"
SUBSCRIPTION_MADE = ROOT + b"u"
SUBSCRIPTIONS_DELETED = ROOT + b"j"
# -> which engine this is: nodes with the same id serve the same queues
IDENTITY = ROOT + b"e"


def subscription_row(identity: bytes, kind: bytes) -> bytes:
    return SUBSCRIPTIONS + identity + kind


def subscription_parts(identity: bytes, seq: int) -> bytes:
    """+ number -> which messages a part of a set has."""
    return SUBSCRIPTIONS + identity + b"p" + seq.to_bytes(8, "big")


def subscription_name(vhost: str, name: str) -> bytes:
    return SUBSCRIPTION_NAMES + text(vhost) + text(name)


def owner_row(owner: bytes, kind: bytes) -> bytes:
    """kind: b"e" whether it lives, b"b" its last beat, b"q" + id: a queue that it has something in."""
    return OWNERS + owner + kind


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue's life."""

    life: bytes

    @property
    def prefix(self) -> bytes:
        return ROOT + b"q" + self.life

    @property
    def alive(self) -> bytes:
        """There while the queue is: every transaction of the queue declares it."""
        return self.prefix + b"!"

    @property
    def signal(self) -> bytes:
        """Changed when something becomes ready. These rows stand together: an engine follows them by their beginning."""
        return SIGNALS + self.life

    @property
    def ready(self) -> bytes:
        """+ order -> meta and content: what nobody has taken. Of a queue with priorities the order begins with 255 - level."""
        return self.prefix + b"r"

    @property
    def chunks(self) -> bytes:
        """+ blob id + number -> a part of a large content."""
        return self.prefix + b"x"

    def blob(self, blob: bytes) -> bytes:
        return self.chunks + blob

    def leases(self, owner: bytes) -> bytes:
        """+ order -> meta and content: what a node has taken."""
        return self.prefix + b"l" + owner

    def set_leases(self, subscription: bytes, seq: int) -> bytes:
        """+ order -> meta and content: what a set of a subscription holds. No node has these, and none of them ends with a node."""
        return self.prefix + b"z" + subscription + seq.to_bytes(8, "big")

    def counts(self, owner: bytes) -> bytes:
        return self.prefix + b"c" + owner

    def request(self, owner: bytes) -> bytes:
        """-> number of the node's last request that was committed."""
        return self.prefix + b"d" + owner

    def uploads(self, owner: bytes) -> bytes:
        """+ blob id: chunks of a message that is not there yet."""
        return self.prefix + b"u" + owner

    def highest(self, owner: bytes) -> bytes:
        """-> the highest index that a node gave to a message of a queue in order "relaxed"."""
        return self.prefix + b"h" + owner

    @property
    def bindings(self) -> bytes:
        """+ hash -> a binding that leads here. These rows stand together: a node reads those of all queues at once."""
        return BINDINGS + self.life

    @property
    def active(self) -> bytes:
        """-> life of the node whose consumers get messages, and an epoch (x-single-active-consumer)."""
        return self.prefix + b"a"

    @property
    def waiters(self) -> bytes:
        """+ index + request id -> who waits (staged dequeue)."""
        return self.prefix + b"w"

    def result(self, request: bytes) -> bytes:
        """-> orders that a waiter was given (staged dequeue)."""
        return self.prefix + b"y" + request


@dataclass(frozen=True, slots=True)
class Meta:
    """The fields in front of a message's content. expires_at_ms: wall clock, 0: never; size: bytes of the content."""

    flags: int = 0
    deliveries: int = 0
    expires_at_ms: int = 0
    size: int = 0

    def pack(self) -> bytes:
        return _META.pack(META_FORMAT, self.flags, min(self.deliveries, 0xFFFF), self.expires_at_ms, self.size)

    @property
    def redelivered(self) -> bool:
        return bool(self.flags & FLAG_REDELIVERED)

    def returned(self, delivered: bool) -> Meta:
        """As it goes back. `delivered`: a consumer may have seen it."""
        return self.counted(self.deliveries) if delivered else self

    def counted(self, deliveries: int) -> Meta:
        """With another count of the deliveries that came back."""
        return Meta(self.flags | FLAG_REDELIVERED, deliveries, self.expires_at_ms, self.size)


def unpack(value: bytes) -> tuple[Meta, bytes]:
    """(meta, content or blob id) of a row. Raises: ValueError: it was written by a later version."""
    form, flags, deliveries, expires_at_ms, size = _META.unpack_from(value)
    if form != META_FORMAT:
        raise ValueError(f"a message of format {form} in a shared queue, and this version reads format {META_FORMAT}")
    return Meta(flags, deliveries, expires_at_ms, size), value[_META.size :]


META_BYTES = _META.size


@dataclass(slots=True)
class Counts:
    """What one node did to a queue, ever; `leased`: what it has taken now."""

    enqueued: int = 0
    settled: int = 0
    leased: int = 0
    enqueued_bytes: int = 0
    settled_bytes: int = 0
    leased_bytes: int = 0

    def pack(self) -> bytes:
        return _COUNTS.pack(
            *(
                max(0, value)
                for value in (self.enqueued, self.settled, self.leased, self.enqueued_bytes, self.settled_bytes, self.leased_bytes)
            )
        )

    @staticmethod
    def unpack(value: bytes | None) -> Counts:
        return Counts() if value is None else Counts(*_COUNTS.unpack(value))

    def plus(self, other: Counts) -> Counts:
        return Counts(
            self.enqueued + other.enqueued,
            self.settled + other.settled,
            self.leased + other.leased,
            self.enqueued_bytes + other.enqueued_bytes,
            self.settled_bytes + other.settled_bytes,
            self.leased_bytes + other.leased_bytes,
        )

    @property
    def ready(self) -> int:
        return max(0, self.enqueued - self.settled - self.leased)

    @property
    def ready_bytes(self) -> int:
        return max(0, self.enqueued_bytes - self.settled_bytes - self.leased_bytes)
