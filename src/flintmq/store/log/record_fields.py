"""The fields of the log's records by name, for recovery of transactions, `flintmq log` and tables of Spark (docs/FORMAT.md).

in: records that the log's reader checked. out: `Record`s with their type's fields by name. No length found in the bytes is trusted before
it is compared with the bytes there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from flintmq.errors import FlintError
from flintmq.slotted import slotted
from flintmq.store.log.containers import MESSAGES, PAGES, STREAMS, TRANSACTIONS

# --- record types (docs/FORMAT.md "Message log", "Transaction log", "Page log")
START, CHUNK, MESSAGE_DELETE, ENQUEUE, DEQUEUE, COPY, QUEUE_MARK, REDELIVERED, NAME, QUEUE_END, QUEUE_PURGE, SHAPE, MESSAGE = range(1, 14)
DELIVERED = 14
DTX_START, TX_START, PREPARE, COMMIT, ROLLBACK, TX_DELETE, END, TX_COPY, HEURISTIC, NOTE, ACQUIRE_SET = range(33, 44)
STREAM_RECORD, STREAM_BASE = 48, 49
STREAM_MESSAGE, STREAM_CHUNK, STREAM_MARK = 50, 51, 52
# length of a filter value that is not there
NO_FILTER = 0xFFFF
PAGE_CONTENT = 64

TYPE_NAMES = {
    START: "Message-Start",
    CHUNK: "Message-Chunk",
    MESSAGE_DELETE: "Message-Delete",
    ENQUEUE: "Message-Enqueue",
    DEQUEUE: "Message-Dequeue",
    COPY: "Message-Copy",
    QUEUE_MARK: "Queue-Mark",
    REDELIVERED: "Queue-Redelivered",
    NAME: "Name",
    QUEUE_END: "Queue-End",
    QUEUE_PURGE: "Queue-Purge",
    SHAPE: "Message-Shape",
    MESSAGE: "Message",
    DELIVERED: "Queue-Delivered",
    DTX_START: "Dtx-Start",
    TX_START: "Tx-Start",
    PREPARE: "Prepare",
    COMMIT: "Commit",
    ROLLBACK: "Rollback",
    TX_DELETE: "Delete",
    END: "End",
    TX_COPY: "Tx-Copy",
    HEURISTIC: "Heuristic",
    NOTE: "Note",
    ACQUIRE_SET: "Acquire-Set",
    STREAM_RECORD: "Stream-Record",
    STREAM_BASE: "Stream-Base",
    STREAM_MESSAGE: "Stream-Message",
    STREAM_CHUNK: "Stream-Chunk",
    STREAM_MARK: "Stream-Mark",
    PAGE_CONTENT: "Page-Content",
}

# a Message-Copy that has the time of its Message-Start; a Tx-Copy with the rows of Acquire-Sets
COPY_PUBLISHED, TX_COPY_SETS = 1, 1

# --- record flags
UNDO_NEXT, TRANSACTION, EXPIRES, LAST = 1, 2, 4, 8

REASONS = {1: "ack", 2: "reject", 3: "expire", 4: "drop", 5: "purge", 6: "move"}
TX_STATES = {1: "open", 2: "prepared", 3: "committed", 4: "rolled back"}
HEURISTICS = {0: "none", 1: "committed", 2: "rolled back"}

HEADER = struct.Struct("<IIBBHIQ")
HEADER_SIZE = HEADER.size
_U64 = struct.Struct("<Q")
_CONTENT = struct.Struct("<IIHBBI")
_PLACE = struct.Struct("<QQQQQ")
_ROW = struct.Struct("<QQQ")
_DEQUEUE = struct.Struct("<QQQIHBB")


WAITS = 0xFFFFFFFF


def waiting_number(position: int) -> int | None:
    """Which of its transaction's enqueues on the queue a place is, from 0 on, when the Commit is to give its position; else None."""
    return position & 0xFFFFFFFF if position >> 32 == WAITS else None


class Malformed(FlintError):
    """A record whose checksum is right and whose fields are not: written by a broken or an unknown writer."""


@slotted()
class Record:
    """A record. Times in microseconds of the wall clock, `expires_ms` in milliseconds; 0 where a field is absent. `data`: own fields."""

    lsn: int
    type: int
    stream: int
    flags: int
    time_us: int
    undo_prev: int
    undo_next: int
    tx: int
    expires_ms: int
    length: int
    data: bytes

    @property
    def name(self) -> str:
        return TYPE_NAMES.get(self.type, f"unknown-{self.type}")


@slotted(frozen=True)
class Place:
    """Where a copied message stands. position 0: the Commit of `enqueued_by` gives it, see `waiting_number`."""

    queue: int
    position: int
    expires_ms: int
    enqueued_by: int
    dequeued_by: int
    number: int | None = None


def aligned(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


# --- fields by type -----------------------------------------------------------------------------------------------------


class _Fields:
    """Reads little-endian fields in order. Raises Malformed when the record ends early."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        if self.at + layout.size > len(self.data):
            raise Malformed(f"{len(self.data)} bytes of fields, more than {self.at + layout.size} were expected")
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return values

    def take_bytes(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise Malformed(f"{len(self.data)} bytes of fields, {self.at + size} were expected")
        self.at += size
        return self.data[self.at - size : self.at]

    def u16(self) -> int:
        return int(self.take(_U16)[0])

    def u32(self) -> int:
        return int(self.take(_U32)[0])

    def u64(self) -> int:
        return int(self.take(_U64)[0])

    def rest(self) -> bytes:
        return self.take_bytes(len(self.data) - self.at)

    def list_of(self, layout: struct.Struct, count: int) -> list[tuple[Any, ...]]:
        if count * layout.size > len(self.data) - self.at:
            raise Malformed(f"{count} items of {layout.size} bytes do not fit in {len(self.data) - self.at}")
        return [self.take(layout) for _ in range(count)]

    def end(self) -> None:
        if self.at != len(self.data):
            raise Malformed(f"{len(self.data) - self.at} bytes follow the last field")


_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_COUNT = struct.Struct("<II")
_RANGE = struct.Struct("<QQ")
_TX_COPY = struct.Struct("<BBBBH")
_NOTE = struct.Struct("<HHI")


def _nothing(fields: _Fields) -> dict[str, Any]:
    return {}


def _content(fields: _Fields) -> dict[str, Any]:
    """Message-Start and what ends like it. `content` holds the bytes in this record; its parts are cut out by `content_parts`."""
    body, header, route, flags, priority, here = fields.take(_CONTENT)
    if here > body + header + route:
        raise Malformed(f"{here} bytes of content in the record, {body + header + route} in the whole message")
    content = fields.take_bytes(here)
    return {
        "body": body,
        "header": header,
        "route": route,
        "content_flags": flags,
        "priority": priority,
        "here": here,
        "content": content,
    } | _route(content[:route] if here >= route else b"", route)


def _route(route: bytes, size: int) -> dict[str, Any]:
    if len(route) != size or size < 2 or 1 + route[0] >= size or 2 + route[0] + route[1 + route[0]] != size:
        return {}
    cut = 1 + route[0]
    return {"exchange": route[1:cut], "routing_key": route[cut + 1 :]}


def _chunk(fields: _Fields) -> dict[str, Any]:
    offset = fields.u32()
    content = fields.rest()
    return {"offset": offset, "here": len(content), "content": content}


def _enqueue(fields: _Fields) -> dict[str, Any]:
    queue, position = fields.u64(), fields.u64()
    number = waiting_number(position)
    return {"queue": queue, "position": position} if number is None else {"queue": queue, "position": 0, "number": number}


def _dequeue(fields: _Fields) -> dict[str, Any]:
    queue, position, delivered_us, consumer, deliveries, reason, _ = fields.take(_DEQUEUE)
    return {
        "queue": queue,
        "position": position,
        "delivered_us": delivered_us,
        "consumer": consumer,
        "deliveries": deliveries,
        "reason": REASONS.get(reason, f"unknown-{reason}"),
    }


def _copy(fields: _Fields) -> dict[str, Any]:
    count, copy_flags = fields.take(_COUNT)
    if copy_flags & ~COPY_PUBLISHED:
        raise Malformed(f"flags {copy_flags} of a copy")
    places = []
    for queue, position, expires, enqueued_by, dequeued_by in fields.list_of(_PLACE, count):
        number = waiting_number(position)
        places.append(Place(queue, position if number is None else 0, expires, enqueued_by, dequeued_by, number))
    published = {"published_us": fields.u64()} if copy_flags & COPY_PUBLISHED else {}
    return {"places": places, **published, **_content(fields)}


def _mark(fields: _Fields) -> dict[str, Any]:
    queue = fields.u64()
    count, _ = fields.take(_COUNT)
    return {"queue": queue, "levels": [value for (value,) in fields.list_of(_U64, count)]}


def _redelivered(fields: _Fields) -> dict[str, Any]:
    queue = fields.u64()
    count, _ = fields.take(_COUNT)
    return {"queue": queue, "ranges": fields.list_of(_RANGE, count)}


def _name(fields: _Fields) -> dict[str, Any]:
    kind, _ = fields.take(_COUNT)
    number = fields.u64()
    return {"kind": kind, "id": number, "tag": fields.take_bytes(fields.u16()), "group": fields.take_bytes(fields.u16())}


def _queue_end(fields: _Fields) -> dict[str, Any]:
    return {"queue": fields.u64()}


def _shape(fields: _Fields) -> dict[str, Any]:
    place = {"queue": fields.u64(), "position": fields.u64()}
    content = _content(fields)
    if content["body"] or content["here"] != content["header"] + content["route"]:
        raise Malformed(f"a shape with {content['body']} bytes of body and {content['here']} in the record")
    return place | content


def _message(fields: _Fields) -> dict[str, Any]:
    distance, content = fields.u32(), fields.rest()
    return {"distance": distance, "body": len(content), "content": content}


def _dtx_start(fields: _Fields) -> dict[str, Any]:
    return {"xid": fields.take_bytes(fields.u16())}


def _commit(fields: _Fields) -> dict[str, Any]:
    count, _ = fields.take(_COUNT)
    return {"rows": fields.list_of(_ROW, count)}


def _tx_copy(fields: _Fields) -> dict[str, Any]:
    state, heuristic, ended, flags, size = fields.take(_TX_COPY)
    xid = fields.take_bytes(size)
    fields.take_bytes(-fields.at % 4)
    if state not in TX_STATES or heuristic not in HEURISTICS:
        raise Malformed(f"state {state}, heuristic outcome {heuristic}")
    values = {"state": TX_STATES[state], "heuristic": HEURISTICS[heuristic], "ended": bool(ended), "xid": xid, **_commit(fields)}
    return values | _acquire_set(fields) if flags & TX_COPY_SETS else values


def _acquire_set(fields: _Fields) -> dict[str, Any]:
    count, consumer = fields.take(_COUNT)
    return {"consumer": consumer, "sets": fields.list_of(_ROW, count)}


def _heuristic(fields: _Fields) -> dict[str, Any]:
    (outcome,) = fields.take_bytes(1)
    if outcome not in HEURISTICS:  # 0: forgotten
        raise Malformed(f"heuristic outcome {outcome}")
    return {"outcome": HEURISTICS[outcome]}


def _note(fields: _Fields) -> dict[str, Any]:
    kind, key_size, value_size = fields.take(_NOTE)
    return {"kind": kind, "key": fields.take_bytes(key_size), "value": fields.take_bytes(value_size)}


def _stream_record(fields: _Fields) -> dict[str, Any]:
    return {"payload": fields.rest()}


def _stream_base(fields: _Fields) -> dict[str, Any]:
    return {"base": fields.u64()}


def _stream_message(fields: _Fields) -> dict[str, Any]:
    offset = fields.u64()
    body, header, route, flags, priority, here = fields.take(_CONTENT)
    if here > body + header + route:
        raise Malformed(f"{here} bytes of content in the record, {body + header + route} in the whole message")
    size, _ = fields.u16(), fields.u16()
    value = None if size == NO_FILTER else fields.take_bytes(size)
    content = fields.take_bytes(here)
    known = {"stream_offset": offset, "filter": value, "body": body, "header": header, "route": route, "content_flags": flags}
    known |= {"priority": priority, "here": here, "content": content}
    return known | _route(content[:route] if here >= route else b"", route)


def _stream_chunk(fields: _Fields) -> dict[str, Any]:
    return {"stream_offset": fields.u64(), **_chunk(fields)}


def _stream_mark(fields: _Fields) -> dict[str, Any]:
    return {"next_offset": fields.u64()}


_FIELDS: dict[int, Callable[[_Fields], dict[str, Any]]] = {
    START: _content,
    CHUNK: _chunk,
    MESSAGE_DELETE: _nothing,
    ENQUEUE: _enqueue,
    DEQUEUE: _dequeue,
    COPY: _copy,
    QUEUE_MARK: _mark,
    REDELIVERED: _redelivered,
    NAME: _name,
    QUEUE_END: _queue_end,
    QUEUE_PURGE: _redelivered,  # laid out alike
    SHAPE: _shape,
    MESSAGE: _message,
    DELIVERED: _mark,  # laid out alike
    DTX_START: _dtx_start,
    TX_START: _nothing,
    PREPARE: _nothing,
    COMMIT: _commit,
    ROLLBACK: _nothing,
    TX_DELETE: _nothing,
    END: _nothing,
    TX_COPY: _tx_copy,
    HEURISTIC: _heuristic,
    NOTE: _note,
    ACQUIRE_SET: _acquire_set,
    STREAM_RECORD: _stream_record,
    STREAM_BASE: _stream_base,
    STREAM_MESSAGE: _stream_message,
    STREAM_CHUNK: _stream_chunk,
    STREAM_MARK: _stream_mark,
    PAGE_CONTENT: _content,
}

_TYPES_OF = {
    MESSAGES: frozenset(range(START, DELIVERED + 1)),
    TRANSACTIONS: frozenset(range(DTX_START, ACQUIRE_SET + 1)),
    PAGES: frozenset((PAGE_CONTENT, CHUNK)),
    STREAMS: frozenset((NAME, STREAM_RECORD, STREAM_BASE, STREAM_MESSAGE, STREAM_CHUNK, STREAM_MARK)),
}


def fields_of(record: Record, log: int) -> dict[str, Any]:
    """The record's own fields by name, in the order of docs/FORMAT.md. Raises: Malformed."""
    return own_fields(record.type, record.data, log)


def own_fields(kind: int, data: bytes, log: int) -> dict[str, Any]:
    """As fields_of, from the type of a record and the bytes of its own fields."""
    if kind not in _TYPES_OF[log]:
        raise Malformed(f"a record of type {kind} does not belong in this log")
    fields = _Fields(data)
    values = _FIELDS[kind](fields)
    fields.end()
    return values


def is_known(kind: int, log: int) -> bool:
    """Whether a record of this type belongs in the log."""
    return kind in _TYPES_OF[log]


def content_parts(values: dict[str, Any]) -> dict[str, bytes]:
    """Header and body bytes that lie in a Message-Start, -Copy or Page-Content record."""
    content, route, header = values["content"], values["route"], values["header"]
    return {"header": content[route : route + header], "body": content[route + header :]}


def time_text(time_us: int) -> str:
    """A time of the log for people: ISO 8601 in UTC with microseconds; a number where it is none."""
    try:
        return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{time_us % 1_000_000:06d}Z"
    except (OverflowError, ValueError, OSError):
        return f"@{time_us}us"
