"""The messages of a sealed set of shared queues: in which order, in which slices, and as rows of docs/DATAPLANE.md.

in: a set (shared/batch_rows.py), messages as their owners give them. out: slices, pieces to read, rows with their contents inline.

R1  All is a function of the sealed set, which does not change: any node gives the same rows in the same order.
R2  A message that can't be read becomes a row whose content contradicts itself, which the service names, or leaves out: it stops no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Protocol

from flintmq.dataplane.sets import cut
from flintmq.shared.batch_rows import SealedSet
from flintmq.transactions.bulk import INLINE, ROW

# a position names set and number, so that it rises from set to set
_NUMBER_BITS, _SEQ_BITS = 20, 43
_DELIVERIES_MAX = 0xFFFF
# a route of two empty names, and neither header nor body
_BROKEN = b"\0\0"


class Message(Protocol):
    """As its owner gives it (cluster/set_calls.py). content: exchange, routing key, header, body; None: it can't be read."""

    deliveries: int
    is_redelivered: bool
    content: tuple[bytes, bytes, bytes, bytes] | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one part. number: of the first one in its set; first: of the first one in its part."""

    queue: str
    number: int
    first: int
    count: int


def _parts(sealed: SealedSet) -> list[tuple[str, int, int]]:
    return [(queue, count, size) for queue, (count, size) in sorted(sealed.parts.items()) if count]


def bounds(sealed: SealedSet, slices: int) -> list[int]:
    """Numbers of the messages at which slices begin, and the end. The messages of one queue count as equally large. O(messages)."""
    slices = min(slices, sealed.count)
    if slices <= 1:
        return [0, sealed.count] if sealed.count else [0]
    sizes = chain.from_iterable(repeat(size // count, count) for _, count, size in _parts(sealed))
    return cut(sizes, sealed.count, slices)


def pieces(sealed: SealedSet, begin: int, end: int) -> Iterator[Piece]:
    """The messages from number `begin` on, before `end`: one piece for each queue."""
    start = 0
    for queue, count, _ in _parts(sealed):
        first, stop = max(begin, start), min(end, start + count)
        if first < stop:
            yield Piece(queue, first, first - start, stop - first)
        start += count


def rows_of(seq: int, number: int, messages: Sequence[Message]) -> tuple[list[bytes], list[bytes]]:
    """(rows, inline contents). Args: number: of the first message in its set."""
    rows, inline = [], []
    for place, one in enumerate(messages, number + 1):
        header = body = b""
        run = _BROKEN
        if one.content is not None:
            exchange, key, header, body = one.content
            run = b"".join((bytes([len(exchange)]), exchange, bytes([len(key)]), key, header, body))
        position = (seq % (1 << _SEQ_BITS)) << _NUMBER_BITS | place
        rows.append(ROW.pack(position, 0, 0, len(body), min(one.deliveries, _DELIVERIES_MAX), one.is_redelivered, 0))
        inline.append(INLINE.pack(len(run), len(header), 0) + run)
    return rows, inline
