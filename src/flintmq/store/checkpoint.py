"""Checkpoints in the index log: their parts as bytes, and which of them a start may believe (docs/FORMAT.md, "Checkpoints").

in: facts of the message log, of its list and of queues, in slices; records of a scan of the index log. out: payloads of records; the newest
checkpoint that is whole and belongs to the message log that is there.

K1  A checkpoint counts when its last record is there and names exactly the parts that are there, in their order.
K2  What a checkpoint says of the message log is compared with that: its history (a block header), its base, its durable end.
K3  Every run that it names stands in the index log, at or above that log's base.
K4  Lengths and numbers are compared with the bytes that are there before they are used: who wrote them is not believed.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field

from flintmq.slotted import slotted

# types of records (docs/FORMAT.md)
INDEX_RUN = 72
CHECKPOINT_PART = 73
CHECKPOINT = 74
# of the format of parts
VERSION = 1
# bytes of a part at most: the writer holds the log's lock for as long as it takes to copy them
PART_BYTES = 32 << 10

_HEAD = struct.Struct("<IIII")  # kind, number of the part, rows, zero
_LAST = struct.Struct("<IIQIIQQQ")

CONTAINERS = 1
DEATHS = 2
TAILS = 3
SEGMENTS = 4
MOVED = 5
LISTED = 6

_CONTAINER = struct.Struct("<QQQQQ")
_DEATH = struct.Struct("<QII")
_TAIL = struct.Struct("<QII")
_SEGMENT_HEAD = struct.Struct("<QII")
_SEGMENT = struct.Struct("<QIIQIIqQQ")
_MOVED = struct.Struct("<QQ")
_LISTED = struct.Struct("<QII")
_PLACE = struct.Struct("<QQqQQ")


class MalformedError(Exception):
    """Bytes of a part contradict each other."""


@slotted(frozen=True)
class ContainerFacts:
    """A container of the message log: things that were ever in it below the begin of the checkpoint, those of them that live."""

    sequence: int
    count: int
    live: int
    bytes: int
    ended_at: int


@slotted(frozen=True)
class SegmentFacts:
    """One segment of a queue's level: a shell, or a snapshot of one in memory; `run` has its entries."""

    base: int
    count: int
    live: int
    bytes: int
    redelivered: int
    spilled: int
    expiry_min: int
    flagged_upto: int
    run: int


@slotted(frozen=True)
class ListedFacts:
    """A message of the message list: places as (queue id, position, expiry, enqueued by, dequeued by), transactions that it names."""

    id: int
    places: tuple[tuple[int, int, int, int, int], ...]
    names: tuple[int, ...] = ()


@slotted(frozen=True)
class History:
    """What a checkpoint says of the message log.

    begin: LSN from which the log must be read; epoch: in which it was written; tail: of the log when the last record was appended; named_tx: highest transaction id
    named below `begin`.
    """

    begin: int
    epoch: int
    container_size: int
    tail: int
    named_tx: int


@slotted()
class Checkpoint:
    """A whole checkpoint. first: LSN of its first record in the index log; last: of its last one; places: of its parts; parts: (kind, rows, bytes)."""

    first: int
    last: int
    history: History
    places: tuple[int, ...] = ()
    parts: list[tuple[int, int, bytes]] = field(default_factory=list)


# --- writing ----------------------------------------------------------------------------------------------------------------------


def part(kind: int, number: int, rows: Sequence[bytes]) -> bytes:
    """Own fields of a Checkpoint-Part."""
    return _HEAD.pack(kind, number, len(rows), 0) + b"".join(rows)


def parts(kind: int, rows: Iterable[bytes], most: int = PART_BYTES) -> Iterator[tuple[int, list[bytes]]]:
    """Rows of one kind in parts of at most `most` bytes (a longer row has one of its own): (kind, rows)."""
    held: list[bytes] = []
    size = 0
    for row in rows:
        if held and size + len(row) > most:
            yield kind, held
            held, size = [], 0
        held.append(row)
        size += len(row)
    if held:
        yield kind, held


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


def container_row(facts: ContainerFacts) -> bytes:
    return _CONTAINER.pack(facts.sequence, facts.count, facts.live, facts.bytes, facts.ended_at)


def death_row(sequence: int, grains: Sequence[int], container_grains: int) -> bytes:
    """What died in a container: as a list of grains, or as a bit map when that is shorter."""
    if 4 * len(grains) <= (container_grains + 7) // 8:
        body = struct.pack(f"<{len(grains)}I", *grains)
        head = _DEATH.pack(sequence, 0, len(grains))
    else:
        bits = bytearray((container_grains + 7) // 8)
        for grain in grains:
            bits[grain >> 3] |= 1 << (grain & 7)
        body = bytes(bits)
        head = _DEATH.pack(sequence, 1, len(body))
    return (head + body).ljust(len(head) + (len(body) + 7) // 8 * 8, b"\0")


def tail_row(queue_id: int, tails: Sequence[int]) -> bytes:
    return _TAIL.pack(queue_id, len(tails), 0) + struct.pack(f"<{len(tails)}Q", *tails)


def segment_row(queue_id: int, level: int, facts: Sequence[SegmentFacts]) -> bytes:
    rows = (
        _SEGMENT.pack(one.base, one.count, one.live, one.bytes, one.redelivered, one.spilled, one.expiry_min, one.flagged_upto, one.run)
        for one in facts
    )
    return _SEGMENT_HEAD.pack(queue_id, level, len(facts)) + b"".join(rows)


def moved_row(message_id: int, lsn: int) -> bytes:
    return _MOVED.pack(message_id, lsn)


def listed_row(facts: ListedFacts) -> bytes:
    head = _LISTED.pack(facts.id, len(facts.places), len(facts.names))
    return head + b"".join(_PLACE.pack(*place) for place in facts.places) + struct.pack(f"<{len(facts.names)}Q", *facts.names)


# --- reading ----------------------------------------------------------------------------------------------------------------------


class _Reader:
    """Rows of a part, with their lengths checked (K4)."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        if self.offset + form.size > len(self.data):
            raise MalformedError("a row is cut off")
        fields = form.unpack_from(self.data, self.offset)
        self.offset += form.size
        return fields

    def many(self, letter: str, size: int, count: int) -> tuple[int, ...]:
        if count > (len(self.data) - self.offset) // size:
            raise MalformedError("a row says that it is longer than its part")
        fields = struct.unpack_from(f"<{count}{letter}", self.data, self.offset)
        self.offset += count * size
        return fields

    def piece(self, size: int) -> bytes:
        if size > len(self.data) - self.offset:
            raise MalformedError("a row says that it is longer than its part")
        self.offset += size
        return self.data[self.offset - size : self.offset]


def _deaths(reader: _Reader) -> tuple[int, tuple[int, ...]]:
    sequence, form, size = reader.take(_DEATH)
    if form == 0:
        grains = reader.many("I", 4, size)
        padding = -4 * size % 8
    elif form == 1:
        bits = reader.piece(size)
        grains = tuple(8 * place + bit for place, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1)
        padding = -size % 8
    else:
        raise MalformedError(f"deaths of form {form}")
    reader.piece(padding)
    if any(right <= left for left, right in itertools.pairwise(grains)):
        raise MalformedError("deaths do not rise")
    return sequence, grains


def _row(kind: int, reader: _Reader) -> object:
    if kind == CONTAINERS:
        return ContainerFacts(*reader.take(_CONTAINER))
    if kind == DEATHS:
        return _deaths(reader)
    if kind == TAILS:
        queue_id, levels, _ = reader.take(_TAIL)
        return queue_id, reader.many("Q", 8, levels)
    if kind == SEGMENTS:
        queue_id, level, count = reader.take(_SEGMENT_HEAD)
        if count > len(reader.data) // _SEGMENT.size:
            raise MalformedError("more segments than the part has bytes for")
        facts = [reader.take(_SEGMENT) for _ in range(count)]
        return queue_id, level, tuple(SegmentFacts(*row) for row in facts)
    if kind == MOVED:
        return reader.take(_MOVED)
    if kind == LISTED:
        message_id, places, names = reader.take(_LISTED)
        if places > len(reader.data) // _PLACE.size:
            raise MalformedError("more places than the part has bytes for")
        stands = tuple(reader.take(_PLACE) for _ in range(places))
        return ListedFacts(message_id, stands, reader.many("Q", 8, names))  # type: ignore[arg-type]
    raise MalformedError(f"a part of kind {kind}")


def rows_of(kind: int, count: int, data: bytes) -> list[object]:
    """The rows of a part. Raises: MalformedError."""
    reader = _Reader(data)
    rows = []
    for _ in range(count):
        if reader.offset == len(data):
            raise MalformedError("fewer rows than the part says")
        rows.append(_row(kind, reader))
    if reader.offset != len(data):
        raise MalformedError("bytes behind the last row")
    return rows


class Finder:
    """Takes the records of an index log in their order, and keeps its whole checkpoints (K1): the last two, newest last."""

    def __init__(self) -> None:
        self.whole: list[Checkpoint] = []
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
        if version != VERSION or count != len(held) or len(data) != _LAST.size + 8 * count:
            return
        if struct.unpack_from(f"<{count}Q", data, _LAST.size) != tuple(place for place, _ in held):
            return
        history = History(begin, epoch, size, tail, named_tx)
        self.whole = [*self.whole[-1:], Checkpoint(first, lsn, history, tuple(place for place, _ in held), [one for _, one in held])]

    def newest(self, refusal: Callable[[Checkpoint], str | None]) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that may be believed, and the reasons against newer ones. refusal: why one may not, or None."""
        refused: list[str] = []
        for one in reversed(self.whole):
            reason = refusal(one)
            if reason is None:
                return one, refused
            refused.append(f"checkpoint at LSN {one.last} of the index log: {reason}")
        return None, refused


def misfit(history: History, base: int, tail: int, container_size: int) -> str | None:
    """Why a checkpoint is not one of this message log (K2); None: it is. Args: base, tail: of the message log."""
    if history.container_size != container_size:
        return "the message log has another container size"
    if history.begin > history.tail or history.tail > tail:
        return "the message log ends before what it rests on"
    if history.begin < base:
        return "the message log begins behind it"
    return None
