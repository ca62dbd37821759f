"""The rows of transactions on shared queues: keys, values, and what a transaction does in one queue, as bytes (docs/adr/0015, R10).

in: messages and positions. out: pieces for rows; the same again, of the rows.

    x/TRANSACTION                          whether it is decided, by whom, its queues (JSON)
    c/NODE                                 changes after a commit of the node's that may come late, and with each of its lives
    q/QUEUE/xTRANSACTION part piece        what it publishes to a queue, and which messages it ends there: pieces of a part's bytes
    q/QUEUE/aTRANSACTION part epoch batch  which messages of the part are in that batch of the queue: a bit each

A part: number of ends, of messages; positions of the ends; of each message its numbers, and the bytes of its content's parts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from flintmq.engines.engine import Range

# bytes of a transaction's id, as it stands in keys: 16 of the node's life, 12 of its number
TRANSACTION_BYTES = 28
_COUNTS = struct.Struct(">II")
_POSITION = struct.Struct(">Q")
# flags, priority, when it expires; bytes of exchange, routing key, content header, body
_MESSAGE = struct.Struct(">BBqHHII")
_PART = struct.Struct(">II")
_BATCH = struct.Struct(">IQQ")
# behind all keys of one transaction in a queue
_BEHIND = b"\xff" * (_BATCH.size + 1)


@dataclass(frozen=True, slots=True)
class Message:
    """A message for a shared queue. header: payload of its content header frame; flags: CONTENT_*; expires_at_ms: wall clock, 0: never."""

    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    flags: int
    priority: int
    expires_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """is_decided: it takes place; until then its coordinator (node, life) may decide it; queues: ids of all that it has rows in; stage: of
    one that a writer puts aside, whatever scope_rows.py has of it: then its scope's row decides."""

    is_decided: bool
    node: str
    life: str
    queues: list[str] = field(default_factory=list)
    stage: dict[str, Any] | None = None

    def pack(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def unpack(value: bytes) -> TransactionRow:
        """Raises: ValueError."""
        try:
            row = json.loads(value)
            names = [str(name) for name in row["queues"]]
            is_decided, node, life, stage = row["is_decided"], row["node"], row["life"], row.get("stage")
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"the row of a transaction is damaged: {value[:80]!r}") from error
        if not isinstance(is_decided, bool) or not isinstance(node, str) or not isinstance(life, str) or not isinstance(stage, dict | None):
            raise ValueError(f"the row of a transaction has not the fields is_decided, life, node, queues: {value[:80]!r}")
        return TransactionRow(is_decided, node, life, names, stage)


# --- keys ----------------------------------------------------------------------------------------------------------------


def transaction_id(life: str, number: int) -> bytes:
    """Rises with the number: so the transactions of one node stand in their order in each queue."""
    return f"{life[:16]:0>16}{number:012x}".encode()


def transaction_key(transaction: bytes) -> bytes:
    return b"x/" + transaction


def coordinator_key(node: str) -> bytes:
    return b"c/" + node.encode()


def transactions() -> Range:
    return b"x/", b"x0"


def transaction_of(key: bytes) -> bytes:
    """Of a key of any of the three kinds."""
    if key.startswith(b"x/"):
        return key[2:]
    begin = key.index(b"/", 2) + 2
    return key[begin : begin + TRANSACTION_BYTES]


def _of_kind(queue: bytes, kind: bytes, transaction: bytes) -> bytes:
    return b"q/" + queue + b"/" + kind + transaction


def pending_key(queue: bytes, transaction: bytes, part: int, piece: int) -> bytes:
    return _of_kind(queue, b"x", transaction) + _PART.pack(part, piece)


def part_of(key: bytes) -> int:
    """The part of a pending key."""
    return int(_PART.unpack(key[-_PART.size :])[0])


def pending_of(queue: bytes, transaction: bytes) -> Range:
    """All of a transaction in a queue."""
    return _of_kind(queue, b"x", transaction), _of_kind(queue, b"x", transaction + _BEHIND)


def pending(queue: bytes) -> Range:
    """Of all transactions in a queue."""
    return _of_kind(queue, b"x", b""), _of_kind(queue, b"x", b"\xff")


def applied_key(queue: bytes, transaction: bytes, part: int, epoch: int, batch: int) -> bytes:
    return _of_kind(queue, b"a", transaction) + _BATCH.pack(part, epoch, batch)


def applied_numbers(key: bytes) -> tuple[int, int, int]:
    """(part, epoch, batch) of an applied key."""
    part, epoch, batch = _BATCH.unpack(key[-_BATCH.size :])
    return int(part), int(epoch), int(batch)


def applied_of(queue: bytes, transaction: bytes) -> Range:
    return _of_kind(queue, b"a", transaction), _of_kind(queue, b"a", transaction + _BEHIND)


def applied(queue: bytes) -> Range:
    return _of_kind(queue, b"a", b""), _of_kind(queue, b"a", b"\xff")


# --- what it does in a queue ---------------------------------------------------------------------------------------------


def pack_part(messages: Sequence[Message], ends: Sequence[int] = ()) -> bytes:
    """O(bytes). Raises: struct.error: a name above 65,535 bytes, or a body above 4 GiB."""
    pieces = [_COUNTS.pack(len(ends), len(messages)), *map(_POSITION.pack, ends)]
    for one in messages:
        content = (one.exchange, one.routing_key, one.header, one.body)
        pieces += (_MESSAGE.pack(one.flags, one.priority, one.expires_at_ms, *map(len, content)), *content)
    return b"".join(pieces)


def unpack_part(data: bytes) -> tuple[list[Message], list[int]]:
    """(messages, ends). Raises: ValueError: it is damaged, or not whole. O(bytes)."""
    try:
        end_count, count = _COUNTS.unpack_from(data)
        offset = _COUNTS.size + end_count * _POSITION.size
        ends = [int(_POSITION.unpack_from(data, begin)[0]) for begin in range(_COUNTS.size, offset, _POSITION.size)]
        messages: list[Message] = []
        for _ in range(count):
            flags, priority, expires_at_ms, *sizes = _MESSAGE.unpack_from(data, offset)
            bounds = list(accumulate(sizes, initial=offset + _MESSAGE.size))
            offset = bounds[-1]
            exchange, routing_key, header, body = (data[begin:end] for begin, end in pairwise(bounds))
            messages.append(Message(exchange, routing_key, header, body, flags, priority, expires_at_ms))
    except struct.error as error:
        raise ValueError(f"a part of a transaction is damaged: {error}") from error
    if offset != len(data):
        raise ValueError("a part of a transaction is damaged: its size is not that of its messages")
    return messages, ends


def pieces(data: bytes, size: int) -> list[bytes]:
    """A part as it stands in rows of `size` bytes at most. O(bytes)."""
    return [data[begin : begin + size] for begin in range(0, len(data), size)]


def bits(indices: Sequence[int], count: int) -> bytes:
    """A bit each of `count`, those of the indices set."""
    value = bytearray((count + 7) // 8)
    for index in indices:
        value[index >> 3] |= 1 << (index & 7)
    return bytes(value)


def is_set(value: bytes, index: int) -> bool:
    return index >> 3 < len(value) and bool(value[index >> 3] >> (index & 7) & 1)


def joined(first: bytes, second: bytes) -> bytes:
    """The bits that are set in either one, which have the same size."""
    return bytes(one | other for one, other in zip(first, second, strict=True))
