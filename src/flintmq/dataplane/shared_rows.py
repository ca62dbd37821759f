"""The messages of a set of shared queues: in which order, in which slices, and as rows of docs/DATAPLANE.md.

in: parts of a set (shared/sets.py), rows of the engine. out: slices, pieces to read, rows with their contents inline.

R1  All is a function of the parts, which do not change: any node gives the same rows in the same order.
R2  What can't be read becomes a row whose content contradicts itself, which the service names, or leaves out: it stops no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flintmq.core.memory_account import MemoryShare
from flintmq.dataplane.sets import cut
from flintmq.dataplane.wire import Refused
from flintmq.kv.engine import Engine, Transaction
from flintmq.shared.codec import unpack_message
from flintmq.shared.queue import opened
from flintmq.shared.sets import Entry, Part, chunks, fetch, is_redelivered
from flintmq.transactions.bulk import INLINE, ROW

# bytes of memory of one message of a set that is known here
ENTRY_BYTES = 250
# a position names set and number, so that it rises from set to set
_NUMBER_BITS, _SEQ_BITS = 20, 43
_DELIVERIES_MAX = 0xFFFF
# a route of two empty names, and neither header nor body
_BROKEN = b"\0\0"


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring messages of one part. first: number of the first one in its set."""

    life: bytes
    name: str
    first: int
    entries: Sequence[Entry]


class Manifest:
    """Which messages a set has. Args: names: life of a queue -> its name; parts of other lives are gone with their queue."""

    def __init__(self, seq: int, names: Mapping[bytes, str], parts: Sequence[Part]) -> None:
        self.seq = seq
        self._pieces: list[Piece] = []
        self.count = 0
        for part in parts:
            if part.life in names and part.entries:
                self._pieces.append(Piece(part.life, names[part.life], self.count, part.entries))
                self.count += len(part.entries)
        self._share = MemoryShare("entries")
        self._share.add(self.count * ENTRY_BYTES)

    def bounds(self, slices: int) -> list[int]:
        """Numbers of the messages at which slices begin, and the end."""
        slices = min(slices, self.count)
        if slices <= 1:
            return [0, self.count] if self.count else [0]
        return cut((one.size for piece in self._pieces for one in piece.entries), self.count, slices)

    def pieces(self, begin: int, end: int, most: int, size: int) -> Iterator[Piece]:
        """The messages from `begin` on, before `end`: at most `most`, and about `size` bytes (one message at least), in each piece."""
        for piece in self._pieces:
            row = max(begin, piece.first)
            stop = min(end, piece.first + len(piece.entries))
            while row < stop:
                count = total = 0
                for one in piece.entries[row - piece.first : stop - piece.first]:
                    total += one.size
                    if count and (count == most or total > size):
                        break
                    count += 1
                start = row - piece.first
                yield Piece(piece.life, piece.name, row, piece.entries[start : start + count])
                row += count


def read_piece(engine: Engine, transaction: Transaction, leases: bytes, piece: Piece) -> list[bytes]:
    """The contents of a piece, in order. Raises: Refused SET_CHANGED."""
    rows = fetch(transaction, leases, piece.entries)
    if len(rows) != len(piece.entries):
        raise Refused("SET_CHANGED", f"messages of queue '{piece.name}' are not there any more: it was deleted")
    contents = []
    for one in piece.entries:
        try:
            contents.append(chunks(engine, piece.life, one) if one.blob else opened(rows[one.order])[1])
        except ValueError:
            contents.append(b"")
    return contents


def rows_of(seq: int, piece: Piece, contents: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """(rows, inline contents) of a piece."""
    rows, inline = [], []
    for number, (one, content) in enumerate(zip(piece.entries, contents, strict=True), piece.first + 1):
        try:
            exchange, key, header, body, _, _ = unpack_message(content)
        except ValueError:
            run, header, body = _BROKEN, b"", b""
        else:
            run = b"".join((bytes([len(exchange)]), exchange, bytes([len(key)]), key, header, body))
        position = (seq % (1 << _SEQ_BITS)) << _NUMBER_BITS | number
        rows.append(ROW.pack(position, 0, 0, len(body), min(one.deliveries, _DELIVERIES_MAX), is_redelivered(one), 0))
        inline.append(INLINE.pack(len(run), len(header), 0) + run)
    return rows, inline
