"""Checkpoints in the index log: their parts as bytes, and which of them a start may believe (docs/FORMAT.md, "Checkpoints").

in: records of a scan of the index log. out: the newest checkpoint that is whole and belongs to the message log that is there.
checkpoint_parts.py writes the parts, past.py reads their rows.

K1  A checkpoint counts when its last record is there and names exactly the parts that are there, in their order.
K2  What a checkpoint says of the message log is compared with that: container size, base, durable end; and with the transaction log's end.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import field

from flintmq.slotted import slotted

# types of records (docs/FORMAT.md)
CHECKPOINT_PART = 73
CHECKPOINT = 74
# of the format of parts: a checkpoint of another one is none, and the message log is read
VERSION = 2

_HEAD = struct.Struct("<IIII")  # kind, number of the part, rows, zero
_LAST = struct.Struct("<IIQIIQQQ")

_TAIL = struct.Struct("<QII")


class MalformedError(Exception):
    """Bytes of a part contradict each other."""


@slotted(frozen=True)
class History:
    """What a checkpoint says of the message log.

    begin: LSN from which the log must be read; epoch: in which it was written; tail: of the log when the last record was appended;
    named_tx: no record below `begin` names a transaction with a higher id.
    """

    begin: int
    epoch: int
    container_size: int
    tail: int
    named_tx: int


@slotted()
class Checkpoint:
    """A whole checkpoint. first, last: LSNs of its first and last record in the index log; places: of its parts; parts: (kind, rows,
    bytes)."""

    first: int
    last: int
    history: History
    places: tuple[int, ...] = ()
    parts: list[tuple[int, int, bytes]] = field(default_factory=list)


# --- writing ----------------------------------------------------------------------------------------------------------------------


def last_record(history: History, places: Sequence[int]) -> bytes:
    """Own fields of a Checkpoint. places: LSNs of its parts."""
    head = _LAST.pack(
        VERSION,
        len(places),
        history.begin,
        history.epoch,
        0,
        history.container_size,
        history.tail,
        history.named_tx,
    )
    return head + struct.pack(f"<{len(places)}Q", *places)


# --- reading ----------------------------------------------------------------------------------------------------------------------


def tails_of(count: int, data: bytes) -> dict[int, tuple[int, ...]]:
    """Rows of tails, or of marks: queue id -> an index for each level. Raises: MalformedError."""
    tails: dict[int, tuple[int, ...]] = {}
    place = 0
    for _ in range(count):
        if len(data) - place < _TAIL.size:
            raise MalformedError("a row of tails is cut off")
        queue_id, levels, _ = _TAIL.unpack_from(data, place)
        place += _TAIL.size
        if levels > (len(data) - place) // 8:
            raise MalformedError("a row of tails says that it is longer than its part")
        tails[queue_id] = struct.unpack_from(f"<{levels}Q", data, place)
        place += 8 * levels
    if place != len(data):
        raise MalformedError("bytes behind the last row of tails")
    return tails


class Finder:
    """Takes the records of an index log in their order, and keeps its whole checkpoints (K1): the last two, newest last. other_version: of
    the last one whose parts are in a format that is not read here; None: there is none."""

    def __init__(self) -> None:
        self.whole: list[Checkpoint] = []
        self.other_version: int | None = None
        self._first = 0
        self._parts: list[tuple[int, tuple[int, int, bytes]]] = []

    def take(self, lsn: int, kind: int, undo_prev: int, data: bytes) -> None:
        """One record."""
        if kind == CHECKPOINT_PART:
            self._take_part(lsn, undo_prev, data)
        elif kind == CHECKPOINT:
            self._take_last(lsn, undo_prev, data)

    def _take_part(self, lsn: int, undo_prev: int, data: bytes) -> None:
        if undo_prev == 0:
            self._first, self._parts = lsn, []
        if (undo_prev or lsn) != self._first or len(data) < _HEAD.size:
            self._first, self._parts = 0, []
            return
        kind, number, rows, _ = _HEAD.unpack_from(data)
        if number != len(self._parts):
            self._first, self._parts = 0, []
            return
        self._parts.append((lsn, (kind, rows, data[_HEAD.size :])))

    def _take_last(self, lsn: int, undo_prev: int, data: bytes) -> None:
        first, held = self._first, self._parts
        self._first, self._parts = 0, []
        if first == 0 or undo_prev != first or len(data) < _LAST.size:
            return
        version, count, begin, epoch, _, size, tail, named_tx = _LAST.unpack_from(data)
        if version != VERSION:
            self.other_version = version
            return
        if count != len(held) or len(data) != _LAST.size + 8 * count:
            return
        if struct.unpack_from(f"<{count}Q", data, _LAST.size) != tuple(place for place, _ in held):
            return
        history = History(begin, epoch, size, tail, named_tx)
        self.whole = [*self.whole[-1:], Checkpoint(first, lsn, history, tuple(place for place, _ in held), [one for _, one in held])]


def misfit(history: History, base: int, tail: int, container_size: int) -> str | None:
    """Why a checkpoint is not one of this message log (K2); None: it is. Args: base, tail: of the message log."""
    if history.container_size != container_size:
        return "the message log has another container size"
    if history.begin > history.tail or history.tail > tail:
        return "the message log ends before what it rests on"
    if history.begin < base:
        return "the message log begins behind it"
    return None
