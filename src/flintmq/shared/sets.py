"""Subscriptions on shared queues as rows of the engine, and their sets: messages that a set has leased, and no node.

in: transactions, records, bounds. out: changed rows; which messages a set has. Permissions: dataplane/shared_subscriptions.

T1  A subscription is one row. Each transaction about it declares the row, so two never change it at once, whatever nodes they are on.
T2  A message is ready, leased by a node, in one set, or gone. A message in a set goes back by no node's end.
T3  `committed = n` in the row decides set n. The rest of the set is ended afterwards, a part in each transaction, which ends it once;
    whoever comes next goes on with it.
T4  Each change writes a mark of its caller into the row: who does not know what became of a change asks again, and finds its mark.
"""

from __future__ import annotations

import json
import logging
import secrets
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flintmq.arguments import is_whole
from flintmq.config import Limits
from flintmq.kv.engine import Engine, Transaction
from flintmq.shared.keys import (
    FLAG_CHUNKED,
    FLAG_REDELIVERED,
    ID_BYTES,
    IDENTITY,
    META_BYTES,
    SUBSCRIPTION_BYTES,
    SUBSCRIPTION_NAMES,
    SUBSCRIPTIONS_DELETED,
    Counts,
    Meta,
    QueueKeys,
    after,
    definition,
    subscription_name,
    subscription_parts,
    subscription_row,
    text,
)
from flintmq.shared.owners import BASE
from flintmq.shared.queue import attempt, opened

log = logging.getLogger("flintmq.shared")

# what becomes of a set: messages are being put into it, tasks may read it, it is committed, it goes back
TAKING, READY, COMMIT, BACK = STATES = ("taking", "ready", "commit", "back")
_FORMAT = 1
_NUMBER_MAX = 2**63 - 1
_NAME_BYTES_MAX = 255
# life of the queue, messages; of each: bytes of its order, flags, deliveries, bytes of its content
_PART = struct.Struct(">8sI")
_ENTRY = struct.Struct(">BBHI")
_BLOB_BYTES = 2 * ID_BYTES
# bytes of a row beside its value, about
_ROW_BYTES = 96
# reads of a queue's head that find nothing but what has expired, before its nodes are waited for, which end that
_SCANS = 8
# queues whose counts are put together in one transaction
_LIVES_AT_ONCE = 20
# rows that are read at once: names; deleted subscriptions, of which one that can't be read stops no other; chunks of a content
_ROWS_AT_ONCE, _DELETED_AT_ONCE, _CHUNKS_AT_ONCE = 500, 20, 32


# Held has a property of that name
Octets = bytes


class Stalled(Exception):
    """The head of a queue has so much that has expired that nothing behind it was looked at: its nodes end that soon."""


@dataclass(slots=True)
class Held:
    """The set of a subscription. parts: that were taken; lives: id of a queue's life -> [its name, messages, bytes of contents]; read:
    whether somebody asked for rows of it, None: an older version did not note that."""

    seq: int
    since_ms: int
    state: str = TAKING
    parts: int = 0
    lives: dict[Octets, list[Any]] = field(default_factory=dict)
    read: bool | None = False

    @property
    def count(self) -> int:
        return sum(one[1] for one in self.lives.values())

    @property
    def bytes(self) -> int:
        return sum(one[2] for one in self.lives.values())

    @property
    def is_ending(self) -> bool:
        return self.state in (COMMIT, BACK)


@dataclass(slots=True)
class Record:
    """The row of a subscription. planned: (seq, epoch, wall ms of the set) of the last plan; drain: queue -> messages that may still be
    taken; mark: of the last change (T4)."""

    identity: bytes
    vhost: str
    name: str
    user: str
    epoch: int
    committed: int
    queues: list[str]
    created_ms: int
    planned: tuple[int, int, int] | None = None
    drain: dict[str, int] | None = None
    held: Held | None = None
    mark: str = ""

    @property
    def owner(self) -> bytes:
        """Under which id the counts of its set stand in a queue."""
        return self.identity[:ID_BYTES]

    @property
    def sub_id(self) -> str:
        return str(uuid.UUID(bytes=self.identity))

    def names(self) -> set[str]:
        """Queues that it reads, and those of which its set has messages."""
        held = () if self.held is None else (one[0] for one in self.held.lives.values())
        return {*self.queues, *held}

    def is_planned(self, seq: int) -> bool:
        """Whether set `seq` was planned: Spark may know it."""
        return self.planned is not None and self.planned[0] == seq

    def may_be_read(self, seq: int, before: int = _NUMBER_MAX) -> bool:
        """Whether tasks may have read set `seq`. Args: before: only what was planned under an older epoch counts."""
        known_unread = self.held is not None and self.held.read is False
        return self.planned is not None and self.planned[0] == seq and self.planned[1] < before and not known_unread

    def encode(self) -> bytes:
        held = self.held
        members = None
        if held is not None:
            lives = {life.hex(): one for life, one in held.lives.items()}
            members = {"seq": held.seq, "ms": held.since_ms, "state": held.state, "parts": held.parts, "lives": lives, "read": held.read}
        value = {
            "format": _FORMAT,
            "vhost": self.vhost,
            "name": self.name,
            "user": self.user,
            "epoch": self.epoch,
            "committed": self.committed,
            "queues": self.queues,
            "created_ms": self.created_ms,
            "planned": self.planned,
            "drain": self.drain,
            "held": members,
            "mark": self.mark,
        }
        return json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a set. order: its place in the queue; blob: id of the chunks of its content, b"": it is in the row."""

    order: bytes
    size: int
    flags: int
    deliveries: int
    blob: bytes = b""


@dataclass(frozen=True, slots=True)
class Part:
    """What one transaction took of one queue."""

    life: bytes
    entries: list[Entry]

    def encode(self) -> bytes:
        pieces = [_PART.pack(self.life, len(self.entries))]
        for one in self.entries:
            pieces += (_ENTRY.pack(len(one.order), one.flags, one.deliveries, one.size), one.order, one.blob)
        return b"".join(pieces)


def decode_part(value: bytes) -> Part:
    """Raises: ValueError: it is cut, or a later version's."""
    try:
        life, count = _PART.unpack_from(value)
        offset, entries = _PART.size, []
        for _ in range(count):
            length, flags, deliveries, size = _ENTRY.unpack_from(value, offset)
            offset += _ENTRY.size
            order, offset = value[offset : offset + length], offset + length
            blob = value[offset : offset + _BLOB_BYTES] if flags & FLAG_CHUNKED else b""
            offset += len(blob)
            entries.append(Entry(order, size, flags, deliveries, blob))
    except struct.error:
        raise ValueError("a part of a set is cut") from None
    if offset != len(value) or any(not one.order or (one.flags & FLAG_CHUNKED and len(one.blob) != _BLOB_BYTES) for one in entries):
        raise ValueError("a part of a set contradicts itself")
    return Part(life, entries)


def decode(identity: bytes, value: bytes) -> Record:
    """Whatever stands in the engine becomes a record, or raises: ValueError."""
    try:
        members = json.loads(value)
        if members["format"] != _FORMAT:
            raise ValueError(f"format {members['format']!r}")
        if not members["queues"]:
            raise ValueError("no queue")
        planned, drain, held = members["planned"], members["drain"], members["held"]
        return Record(
            identity=identity,
            vhost=_name(members["vhost"]),
            name=_name(members["name"]),
            user=_name(members["user"]),
            epoch=_number(members["epoch"]),
            committed=_number(members["committed"]),
            queues=[_name(name) for name in _list(members["queues"])],
            created_ms=_number(members["created_ms"]),
            planned=None if planned is None else (_number(planned[0]), _number(planned[1]), _number(planned[2])),
            drain=None if drain is None else {_name(name): _number(count) for name, count in drain.items()},
            held=None if held is None else _held(held),
            mark=_name(members["mark"]),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"the row of subscription {identity.hex()} can't be read: {error}") from None


def _held(members: Any) -> Held:
    if members["state"] not in STATES:
        raise ValueError(f"a set in state {members['state']!r}")
    lives: dict[bytes, list[Any]] = {}
    for life, one in members["lives"].items():
        name, count, size = one
        lives[bytes.fromhex(life)] = [_name(name), _number(count), _number(size)]
    if any(len(life) != ID_BYTES for life in lives):
        raise ValueError("an id of a queue of another length")
    read = members.get("read")
    if read is not None and not isinstance(read, bool):
        raise ValueError("whether a set was read")
    return Held(_number(members["seq"]), _number(members["ms"]), members["state"], _number(members["parts"]), lives, read)


def _name(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or not 0 < len(value.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX:
        raise ValueError("a name that is none")
    return value


def _number(value: Any) -> int:
    if not is_whole(value, 0, _NUMBER_MAX):
        raise ValueError("a number that is none")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


# --- rows -----------------------------------------------------------------------------------------------------------------


def load(transaction: Transaction, identity: bytes, snapshot: bool = False) -> Record | None:
    """Raises: ValueError: it can't be read."""
    value = transaction.get(subscription_row(identity, b"s"), snapshot)
    return None if value is None else decode(identity, value)


def save(transaction: Transaction, record: Record, mark: str) -> None:
    record.mark = mark
    transaction.set(subscription_row(record.identity, b"s"), record.encode())


def identity_of(transaction: Transaction, vhost: str, name: str) -> bytes | None:
    value = transaction.get(subscription_name(vhost, name))
    return None if value is None or len(value) < SUBSCRIPTION_BYTES else value[:SUBSCRIPTION_BYTES]


def enter_name(transaction: Transaction, record: Record) -> None:
    transaction.set(subscription_name(record.vhost, record.name), record.identity + record.user.encode("utf-8", "surrogatepass"))


def names(engine: Engine, vhost: str | None = None) -> Iterator[tuple[bytes, str, bytes]]:
    """(key of the name, user, id) of the subscriptions of a virtual host, or of all. A row that is none is passed over."""
    prefix = SUBSCRIPTION_NAMES if vhost is None else SUBSCRIPTION_NAMES + text(vhost)
    begin = prefix
    while True:
        transaction = engine.begin()
        try:
            rows = transaction.range(begin, after(prefix), _ROWS_AT_ONCE, snapshot=True)
        finally:
            transaction.close()
        for key, value in rows:
            if len(value) >= SUBSCRIPTION_BYTES:
                yield key, value[SUBSCRIPTION_BYTES:].decode("utf-8", "replace"), value[:SUBSCRIPTION_BYTES]
        if len(rows) < _ROWS_AT_ONCE:
            return
        begin = rows[-1][0] + b"\0"


def is_of(key: bytes, vhost: str) -> bool:
    """Whether a key of `names` is of that virtual host."""
    return key.startswith(SUBSCRIPTION_NAMES + text(vhost))


def counts_of(transaction: Transaction, keys: QueueKeys, nodes_max: int) -> Counts:
    """What all nodes and sets did to a queue."""
    total, prefix = Counts(), keys.counts(b"")
    for _, value in transaction.range(prefix, after(prefix), nodes_max, snapshot=True):
        total = total.plus(Counts.unpack(value))
    return total


def engine_identity(engine: Engine) -> str:
    """Which engine it is, the same on all nodes. Raises: EngineError."""

    def body(transaction: Transaction) -> str:
        value = transaction.get(IDENTITY)
        if value is None:
            value = secrets.token_bytes(SUBSCRIPTION_BYTES)
            transaction.set(IDENTITY, value)
        return value.hex()

    return attempt(engine, body)


# --- taking ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of what one transaction takes: messages and bytes of contents that the set may still have; now_ms: wall clock."""

    messages: int
    bytes: int
    now_ms: int


def at_once(engine: Engine, limits: Limits) -> int:
    """Messages of one part: each is two writes, beside a few of the subscription's own."""
    return max(1, min(limits.shared_batch, (engine.limits.transaction_writes - 8) // 2))


def take_part(transaction: Transaction, record: Record, name: str, bounds: Bounds, batch: int, batch_bytes: int) -> tuple[int, bool]:
    """Moves messages from the head of a queue into the set, as many as fit; the record changes, and is not saved.

    Returns: how many; whether the queue may have more that the set has room for. Raises: Stalled.
    """
    held = record.held
    assert held is not None
    life = transaction.get(definition(record.vhost, name))
    if life is None or len(life) != ID_BYTES or transaction.get(QueueKeys(life).alive) is None:
        return 0, False
    keys = QueueKeys(life)
    rows, goes_on = _head(transaction, keys, held, bounds, min(bounds.messages, batch), batch_bytes)
    if not rows:
        return 0, False
    leases, entries, size = keys.set_leases(record.identity, held.seq), [], 0
    for key, value in rows:
        meta, rest = opened(value)
        order = key[len(keys.ready) :]
        transaction.require(key)
        transaction.clear(key)
        transaction.set(leases + order, value)
        blob = rest if meta.flags & FLAG_CHUNKED else b""
        entries.append(Entry(order, meta.size, meta.flags, meta.deliveries, blob))
        size += meta.size
    transaction.set(subscription_parts(record.identity, held.seq) + held.parts.to_bytes(4, "big"), Part(life, entries).encode())
    _count(transaction, keys, record.owner, Counts(leased=len(entries), leased_bytes=size))
    known = held.lives.setdefault(life, [name, 0, 0])
    known[1] += len(entries)
    known[2] += size
    held.parts += 1
    return len(entries), goes_on


def _head(
    transaction: Transaction, keys: QueueKeys, held: Held, bounds: Bounds, count: int, batch_bytes: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Rows to take, and whether there may be more for which there is room. An expired message is passed over: the queue's nodes end it, and
    have its letters. Raises: Stalled."""
    begin, taken, size, written = keys.ready, list[tuple[bytes, bytes]](), 0, 0
    for _ in range(_SCANS):
        rows = transaction.range(begin, after(keys.ready), count, snapshot=True)
        for key, value in rows:
            meta, _ = opened(value)
            if 0 < meta.expires_at_ms <= bounds.now_ms:
                continue
            if (taken or held.count) and size + meta.size > bounds.bytes:
                return taken, False
            if taken and written + len(value) + _ROW_BYTES > batch_bytes:
                return taken, True
            taken.append((key, value))
            size += meta.size
            written += len(value) + _ROW_BYTES
            if len(taken) == count:
                return taken, True
        if taken or len(rows) < count:
            return taken, len(rows) == count
        begin = rows[-1][0] + b"\0"
    raise Stalled


def _count(transaction: Transaction, keys: QueueKeys, owner: bytes, change: Counts) -> None:
    """Only changes of the subscription write this row, and its record is declared: nobody conflicts."""
    transaction.set(keys.counts(owner), Counts.unpack(transaction.get(keys.counts(owner))).plus(change).pack())


# --- ending ---------------------------------------------------------------------------------------------------------------


def end_part(transaction: Transaction, record: Record) -> bool:
    """Ends a part of a set that is committed, or gives it back; the record changes, and is not saved. False: the set is over."""
    held = record.held
    if held is None:
        return False
    prefix = subscription_parts(record.identity, held.seq)
    rows = transaction.range(prefix, after(prefix), 1)
    if not rows:
        _fold(transaction, record, held)
        return record.held is not None
    key, value = rows[0]
    transaction.clear(key)
    try:
        part = decode_part(value)
    except ValueError as error:
        log.error("%s of subscription %s: its messages stay where they are", error, record.sub_id)
        return True
    keys = QueueKeys(part.life)
    if transaction.get(keys.alive) is None:
        return True  # the queue was deleted, with all that is in it
    leases, count, size = keys.set_leases(record.identity, held.seq), len(part.entries), sum(one.size for one in part.entries)
    if held.state == COMMIT:
        for one in part.entries:
            transaction.clear(leases + one.order)
            if one.blob:
                transaction.clear_range(keys.blob(one.blob), after(keys.blob(one.blob)))
        done = Counts(settled=count, leased=-count, settled_bytes=size, leased_bytes=-size)
    else:
        for order, row in fetch(transaction, leases, part.entries).items():
            transaction.clear(leases + order)
            transaction.set(keys.ready + order, _flagged(row))
        transaction.set(keys.signal, record.owner + secrets.token_bytes(ID_BYTES))
        done = Counts(leased=-count, leased_bytes=-size)
    _count(transaction, keys, record.owner, done)
    return True


def _flagged(row: bytes) -> bytes:
    """As it goes back: a task may have seen it. A later version's row goes back as it is."""
    meta, _ = opened(row)
    return row if meta == Meta() else meta.returned(True).pack() + row[META_BYTES:]


def _fold(transaction: Transaction, record: Record, held: Held) -> None:
    """No message of the set is left: what its counts say goes to those of nodes that are gone."""
    for life in list(held.lives)[:_LIVES_AT_ONCE]:
        del held.lives[life]
        keys = QueueKeys(life)
        value = transaction.get(keys.counts(record.owner))
        if value is None or transaction.get(keys.alive) is None:
            continue
        last = Counts.unpack(value)
        last.leased = last.leased_bytes = 0
        transaction.set(keys.counts(BASE), Counts.unpack(transaction.get(keys.counts(BASE))).plus(last).pack())
        transaction.clear(keys.counts(record.owner))
    if not held.lives:
        record.held = None


def delete(transaction: Transaction, record: Record) -> None:
    """The subscription is gone. What its set has goes back, by whoever looks next (`end_deleted`)."""
    if record.held is not None and record.held.state != COMMIT:
        record.held.state = BACK
    transaction.clear(subscription_name(record.vhost, record.name))
    transaction.clear(subscription_row(record.identity, b"s"))
    transaction.clear(subscription_row(record.identity, b"b"))
    transaction.set(SUBSCRIPTIONS_DELETED + record.identity, record.encode())


def end_deleted(engine: Engine) -> bool:
    """Gives back a part of what the set of a deleted subscription has. True: there is more. Any node does it."""

    def body(transaction: Transaction) -> bool:
        for key, value in transaction.range(SUBSCRIPTIONS_DELETED, after(SUBSCRIPTIONS_DELETED), _DELETED_AT_ONCE, snapshot=True):
            try:
                record = decode(key[len(SUBSCRIPTIONS_DELETED) :], value)
            except ValueError as error:
                log.debug("a deleted subscription is passed over: %s", error)
                continue
            transaction.require(key)
            if end_part(transaction, record):
                transaction.set(key, record.encode())
            else:
                rows = subscription_row(record.identity, b"")
                transaction.clear_range(rows, after(rows))
                transaction.clear(key)
            return True
        return False

    return attempt(engine, body)


# --- reading --------------------------------------------------------------------------------------------------------------


def parts(transaction: Transaction, identity: bytes, seq: int, first: int, count: int) -> list[Part]:
    """Parts of a set from number `first` on, in order. Raises: ValueError."""
    prefix = subscription_parts(identity, seq)
    rows = transaction.range(prefix + first.to_bytes(4, "big"), after(prefix), count, snapshot=True)
    return [decode_part(value) for _, value in rows]


def fetch(transaction: Transaction, leases: bytes, entries: Sequence[Entry]) -> dict[bytes, bytes]:
    """Order -> row of messages of a set, those that are there, in order. Only changes of the subscription touch these rows."""
    begin, end = leases + entries[0].order, leases + entries[-1].order + b"\0"
    # Others may stand between them: messages that came back while the set was taken.
    rows = {key[len(leases) :]: value for key, value in transaction.range(begin, end, 2 * len(entries), snapshot=True)}
    contents: dict[bytes, bytes] = {}
    for one in entries:
        value = rows[one.order] if one.order in rows else transaction.get(leases + one.order, snapshot=True)
        if value is not None:
            contents[one.order] = value
    return contents


def chunks(engine: Engine, life: bytes, one: Entry) -> bytes:
    """The content of a message whose row has it not. Raises: ValueError: chunks are missing."""
    base = QueueKeys(life).blob(one.blob)
    begin, pieces, size = base, list[bytes](), 0
    while size <= one.size:
        transaction = engine.begin()
        try:
            rows = transaction.range(begin, after(base), _CHUNKS_AT_ONCE, snapshot=True)
        finally:
            transaction.close()
        pieces.extend(value for _, value in rows)
        size += sum(len(value) for _, value in rows)
        if len(rows) < _CHUNKS_AT_ONCE:
            break
        begin = rows[-1][0] + b"\0"
    if size != one.size:
        raise ValueError(f"a message of {one.size} bytes has chunks of {size} bytes")
    return b"".join(pieces)


def is_redelivered(one: Entry) -> bool:
    return bool(one.flags & FLAG_REDELIVERED)
